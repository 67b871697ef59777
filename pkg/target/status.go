package target

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

// statusFor maps the errors of Service to gRPC, in this one place.
func statusFor(err error) error {
	var (
		invalid  *InvalidError
		exported *ExportedError
		stale    *StaleGenerationError
		epoch    *EpochError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return detailed(codes.InvalidArgument, err, &targetpb.InvalidField{Field: invalid.Field, Value: invalid.Value, Accepted: invalid.Accepted})
	case errors.As(err, &stale):
		return detailed(codes.FailedPrecondition, err, &targetpb.StaleGeneration{StoredGeneration: stale.Stored, RequestedGeneration: stale.Requested})
	case errors.As(err, &epoch):
		return detailed(codes.FailedPrecondition, err, &targetpb.EpochMismatch{Epoch: epoch.Server})
	case errors.As(err, &exported):
		return detailed(codes.FailedPrecondition, err, &targetpb.VolumeExported{Initiators: exported.Initiators})
	}
	for _, m := range []struct {
		is   error
		code codes.Code
	}{
		{ErrInProgress, codes.DeadlineExceeded},
		{ErrStopping, codes.Unavailable},
		{ErrNotFound, codes.NotFound},
		{ErrAlreadyExists, codes.AlreadyExists},
		{ErrNoSpace, codes.ResourceExhausted},
		{ErrBusy, codes.FailedPrecondition},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
	} {
		if errors.Is(err, m.is) {
			return status.Error(m.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}

func detailed(code codes.Code, err error, detail protoadapt.MessageV1) error {
	st := status.New(code, err.Error())
	with, derr := st.WithDetails(detail)
	if derr != nil {
		return st.Err() // the code alone is still right
	}
	return with.Err()
}
