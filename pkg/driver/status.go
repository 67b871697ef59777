package driver

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Errors that only the CSI layer has.
var (
	// errPrecondition means that a call that must come before did not.
	errPrecondition = errors.New("failed precondition")
	// errToken means that a list cannot be continued from the given token.
	errToken = errors.New("invalid starting token")
)

// codeTable gives the code of each error of the domain; the first match wins.
//
// ErrBackend is Unavailable and not Internal on purpose: the storage server may
// have done part of the work, and external-provisioner takes Internal as proof
// that nothing was made. It would then forget the volume when the claim is
// deleted, and leak it; after Unavailable it asks until it knows.
var codeTable = []struct {
	err  error
	code codes.Code
}{
	{volume.ErrInvalid, codes.InvalidArgument},
	{volume.ErrNotFound, codes.NotFound},
	{volume.ErrNodeNotFound, codes.NotFound},
	{volume.ErrExists, codes.AlreadyExists},
	{volume.ErrFenced, codes.FailedPrecondition},
	{volume.ErrInUse, codes.FailedPrecondition},
	{volume.ErrNotStaged, codes.FailedPrecondition},
	{errPrecondition, codes.FailedPrecondition},
	{volume.ErrBusy, codes.Aborted},
	{errToken, codes.Aborted},
	{volume.ErrNoSpace, codes.ResourceExhausted},
	{volume.ErrOutOfRange, codes.OutOfRange},
	{volume.ErrAuth, codes.Unauthenticated},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{volume.ErrUnavailable, codes.Unavailable},
	{volume.ErrBackend, codes.Unavailable},
}

// statusFor turns an error into a gRPC status error. It is the only place that
// chooses codes; an error that is not in the table is Internal.
func statusFor(err error) error {
	if err == nil {
		return nil
	}
	for _, row := range codeTable {
		if errors.Is(err, row.err) {
			return status.Error(row.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}
