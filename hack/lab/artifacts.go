package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nearflash/nearflash/hack/lab/artifact"
)

// ensureArtifacts makes or verifies the groups' artifacts of a checkout; progress
// goes to standard error.
func ensureArtifacts(ctx context.Context, checkout string, groups ...artifact.Group) (*artifact.Set, error) {
	began := time.Now()
	var mu sync.Mutex
	set, err := artifact.Ensure(ctx, artifact.Options{
		Checkout: checkout, Groups: groups,
		Progress: func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("artifacts: %w", err)
	}
	return set, nil
}
