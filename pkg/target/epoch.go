package target

import (
	"context"
	"fmt"
	"regexp"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

const epochAccepted = `^[A-Za-z0-9]{16,64}$`

var epochPattern = regexp.MustCompile(epochAccepted)

// EpochError says that the server is not the caller's: it has another epoch.
type EpochError struct {
	// Server is the server's epoch, Given the caller's; "" for none.
	Server, Given string
}

// Error implements error.
func (e *EpochError) Error() string {
	who := "another cluster has taken it over, or the records of this one come from a backup"
	if e.Given == "" {
		who = "the call has none, as of a controller of an earlier version"
	}
	return fmt.Sprintf("the storage server is used under another epoch than %q: %s; if no other cluster uses it, and the controller is of the server's version: kubectl nearflash takeover", e.Given, who)
}

type epochKey struct{}

// WithEpoch returns a context whose calls have an epoch.
func WithEpoch(ctx context.Context, epoch string) context.Context {
	return context.WithValue(ctx, epochKey{}, epoch)
}

func epochOf(ctx context.Context) string {
	epoch, _ := ctx.Value(epochKey{}).(string)
	return epoch
}

// readEpoch takes the epoch of a call from its metadata.
func readEpoch(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if v := metadata.ValueFromIncomingContext(ctx, targetpb.EpochKey); len(v) > 0 {
		ctx = WithEpoch(ctx, v[0])
	}
	return handler(ctx, req)
}

// Epoch returns the epoch of the cluster that uses the server, "" if none has set one.
func (s *Service) Epoch(context.Context) (string, error) {
	s.epochMu.Lock()
	defer s.epochMu.Unlock()
	return s.store.Epoch()
}

// SwapEpoch replaces the epoch current by next. That next is there already is success:
// the answer to an earlier call was lost.
// Errors: *InvalidError, *EpochError.
func (s *Service) SwapEpoch(_ context.Context, current, next string) error {
	if current != "" && !epochPattern.MatchString(current) {
		return &InvalidError{Field: "current", Value: current, Accepted: epochAccepted + ", or nothing"}
	}
	if !epochPattern.MatchString(next) {
		return &InvalidError{Field: "next", Value: next, Accepted: epochAccepted}
	}
	s.epochMu.Lock()
	defer s.epochMu.Unlock()
	have, err := s.store.Epoch()
	switch {
	case err != nil:
		return err
	case have == next:
		return nil
	case have != current:
		return &EpochError{Server: have, Given: current}
	}
	return s.store.SetEpoch(next)
}

// checkEpoch refuses a call that does not have the server's epoch.
func (s *Service) checkEpoch(given string) error {
	have, err := s.Epoch(s.base)
	if err != nil {
		return err
	}
	if have != "" && have != given {
		return &EpochError{Server: have, Given: given}
	}
	return nil
}

// change is do for what a caller changes. The epoch is compared when the volume is
// free, so that a call which has waited for it does not act for a cluster that was
// refused meanwhile (states.md, Two clusters and one storage server).
func change[T any](ctx context.Context, s *Service, volume string, op func(ctx context.Context) (T, error)) (T, error) {
	given := epochOf(ctx)
	return do(ctx, s, volume, func(ctx context.Context) (T, error) {
		if err := s.checkEpoch(given); err != nil {
			var none T
			return none, err
		}
		return op(ctx)
	})
}

// changeOnly is change for operations without a result.
func changeOnly(ctx context.Context, s *Service, volume string, op func(ctx context.Context) error) error {
	_, err := change(ctx, s, volume, func(ctx context.Context) (struct{}, error) { return struct{}{}, op(ctx) })
	return err
}
