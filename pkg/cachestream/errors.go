package cachestream

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Errors of a Client beside those of pkg/volume.
var (
	// ErrBroken means that the other node sends what it must not. To ask it again is of no use.
	ErrBroken = errors.New("the stream of the source node is broken")
	// ErrKey means that who answers has not the key that the source node's CachePool says;
	// it comes with volume.ErrUnavailable: a node that has lost its state directory has a new key.
	ErrKey = errors.New("the key is not that of the source node")
)

// errEnded is why a stream is ended by its own side. To ask for it again is of no use, all the
// less as the node may be about to go.
var errEnded = fmt.Errorf("%w: the lease has ended", volume.ErrNotFound)

// maxText bounds how much of another node's text is repeated, in bytes.
const maxText = 512

// errorCodes are what both sides make of each other's errors.
var errorCodes = []struct {
	err  error
	code codes.Code
}{
	{volume.ErrNotFound, codes.NotFound},
	{volume.ErrFenced, codes.PermissionDenied},
	{volume.ErrInvalid, codes.InvalidArgument},
	{volume.ErrUnavailable, codes.Unavailable},
	{volume.ErrBusy, codes.Unavailable},
	{errToken, codes.Unauthenticated},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// statusFor is the answer to a call that ends with err.
func statusFor(err error) error {
	if err == nil {
		return nil
	}
	for _, m := range errorCodes {
		if errors.Is(err, m.err) {
			return status.Error(m.code, err.Error())
		}
	}
	return status.Error(codes.Internal, "the cache cannot be read; see the log of the source node")
}

// errorOf reads such an answer. The text is another node's.
func errorOf(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	kind := ErrBroken
	switch st.Code() {
	case codes.NotFound:
		kind = volume.ErrNotFound
	case codes.PermissionDenied:
		kind = volume.ErrFenced
	case codes.InvalidArgument:
		kind = volume.ErrInvalid
	case codes.Unavailable, codes.Unauthenticated, codes.Canceled, codes.DeadlineExceeded:
		kind = volume.ErrUnavailable
	}
	return fmt.Errorf("%w: %s: %.*q", kind, st.Code(), maxText, st.Message())
}
