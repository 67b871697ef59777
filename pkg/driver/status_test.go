package driver

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestStatusFor(t *testing.T) {
	cases := map[string]struct {
		err  error
		want codes.Code
	}{
		"none":          {nil, codes.OK},
		"invalid":       {volume.ErrInvalid, codes.InvalidArgument},
		"not found":     {volume.ErrNotFound, codes.NotFound},
		"no such node":  {volume.ErrNodeNotFound, codes.NotFound},
		"exists":        {volume.ErrExists, codes.AlreadyExists},
		"fenced":        {volume.ErrFenced, codes.FailedPrecondition},
		"in use":        {volume.ErrInUse, codes.FailedPrecondition},
		"not staged":    {volume.ErrNotStaged, codes.FailedPrecondition},
		"busy":          {volume.ErrBusy, codes.Aborted},
		"no space":      {volume.ErrNoSpace, codes.ResourceExhausted},
		"backend":       {volume.ErrBackend, codes.Unavailable},
		"unavailable":   {volume.ErrUnavailable, codes.Unavailable},
		"auth":          {volume.ErrAuth, codes.Unauthenticated},
		"cancelled":     {context.Canceled, codes.Canceled},
		"too late":      {context.DeadlineExceeded, codes.DeadlineExceeded},
		"out of range":  {volume.ErrOutOfRange, codes.OutOfRange},
		"precondition":  {errPrecondition, codes.FailedPrecondition},
		"token":         {errToken, codes.Aborted},
		"anything else": {errors.New("disk on fire"), codes.Internal},
		// A backend call that ran into the caller's deadline is the caller's
		// deadline; a fence that could not be read because of it likewise.
		"backend too late": {fmt.Errorf("%w: %w", volume.ErrBackend, context.DeadlineExceeded), codes.DeadlineExceeded},
		"joined":           {errors.Join(errors.New("x"), volume.ErrBusy), codes.Aborted},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := tc.err
			if err != nil {
				err = fmt.Errorf("volume pvc-1: %w", err)
			}
			got := statusFor(err)
			if status.Code(got) != tc.want {
				t.Fatalf("statusFor(%v) = %v, want %v", err, status.Code(got), tc.want)
			}
			if err != nil && status.Convert(got).Message() != err.Error() {
				t.Errorf("message %q, want %q", status.Convert(got).Message(), err)
			}
		})
	}
}
