package targetclient

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

// Errors of the client; test with errors.Is. The server's gRPC status stays
// reachable with status.FromError.
var (
	// ErrNotFound: there is no such volume.
	ErrNotFound = errors.New("volume not found on the storage server")
	// ErrAlreadyExists: a different volume has the name.
	ErrAlreadyExists = errors.New("volume exists on the storage server with other properties")
	// ErrNoSpace: no room.
	ErrNoSpace = errors.New("no space left on the storage server")
	// ErrInvalid: the request is wrong; see *InvalidFieldError.
	ErrInvalid = errors.New("request refused by the storage server")
	// ErrInUse: something on the server itself uses the volume.
	ErrInUse = errors.New("volume is in use on the storage server")
	// ErrInProgress: the deadline passed; the server goes on with it.
	ErrInProgress = errors.New("not finished on the storage server yet")
	// ErrDenied: the server does not list the name in our certificate.
	ErrDenied = errors.New("storage server does not allow this client")
	// ErrUnavailable: the server cannot be reached or does not trust our
	// certificate.
	ErrUnavailable = errors.New("storage server cannot be reached")
	// ErrStaleGeneration is matched by *StaleGenerationError.
	ErrStaleGeneration = errors.New("generation is outdated")
	// ErrExported is matched by *ExportedError.
	ErrExported = errors.New("volume is exported")
	// ErrEpoch is matched by *EpochError.
	ErrEpoch = errors.New("storage server is used under another epoch")
	// ErrUnknownCall: the server is of an earlier version.
	ErrUnknownCall = errors.New("storage server does not know this call")
)

// StaleGenerationError says that the volume was exported with a higher generation
// before: what the caller knows about the volume is outdated.
type StaleGenerationError struct {
	Stored, Requested int64
	err               error
}

// Error implements error.
func (e *StaleGenerationError) Error() string {
	return fmt.Sprintf("generation %d is outdated, the storage server has %d", e.Requested, e.Stored)
}

// Is matches ErrStaleGeneration.
func (e *StaleGenerationError) Is(target error) bool { return target == ErrStaleGeneration }

// Unwrap returns the gRPC error.
func (e *StaleGenerationError) Unwrap() error { return e.err }

// ExportedError says that the volume is exported to initiators that stand in the
// way.
type ExportedError struct {
	Initiators []string
	err        error
}

// Error implements error.
func (e *ExportedError) Error() string {
	return "volume is exported to " + strings.Join(e.Initiators, ", ")
}

// Is matches ErrExported.
func (e *ExportedError) Is(target error) bool { return target == ErrExported }

// Unwrap returns the gRPC error.
func (e *ExportedError) Unwrap() error { return e.err }

// EpochError says that the server has another epoch than the call.
type EpochError struct {
	// Server is the server's.
	Server string
	err    error
}

// Error implements error.
func (e *EpochError) Error() string { return e.err.Error() }

// Is matches ErrEpoch.
func (e *EpochError) Is(target error) bool { return target == ErrEpoch }

// Unwrap returns the gRPC error.
func (e *EpochError) Unwrap() error { return e.err }

// InvalidFieldError says which field of a request is wrong. Value is empty for
// secrets.
type InvalidFieldError struct {
	Field, Value, Accepted string
	err                    error
}

// Error implements error.
func (e *InvalidFieldError) Error() string {
	return fmt.Sprintf("%s %q is invalid; accepted: %s", e.Field, e.Value, e.Accepted)
}

// Is matches ErrInvalid.
func (e *InvalidFieldError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns the gRPC error.
func (e *InvalidFieldError) Unwrap() error { return e.err }

func wrap(what, volume string, err error) error {
	if err == nil {
		return nil
	}
	if volume != "" {
		what += " " + volume
	}
	return fmt.Errorf("%s: %w", what, typed(err))
}

func typed(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *targetpb.StaleGeneration:
			return &StaleGenerationError{Stored: d.GetStoredGeneration(), Requested: d.GetRequestedGeneration(), err: err}
		case *targetpb.VolumeExported:
			return &ExportedError{Initiators: d.GetInitiators(), err: err}
		case *targetpb.EpochMismatch:
			return &EpochError{Server: d.GetEpoch(), err: err}
		case *targetpb.InvalidField:
			return &InvalidFieldError{Field: d.GetField(), Value: d.GetValue(), Accepted: d.GetAccepted(), err: err}
		}
	}
	sentinel := map[codes.Code]error{
		codes.NotFound:           ErrNotFound,
		codes.AlreadyExists:      ErrAlreadyExists,
		codes.ResourceExhausted:  ErrNoSpace,
		codes.InvalidArgument:    ErrInvalid,
		codes.FailedPrecondition: ErrInUse,
		codes.DeadlineExceeded:   ErrInProgress,
		codes.Unavailable:        ErrUnavailable,
		codes.Unauthenticated:    ErrUnavailable, // the certificate, as a handshake that fails; the next call makes a connection
		codes.PermissionDenied:   ErrDenied,
		codes.Unimplemented:      ErrUnknownCall,
	}[st.Code()]
	if sentinel == nil {
		return err
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}
