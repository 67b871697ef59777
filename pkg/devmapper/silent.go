package devmapper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

const (
	// allPatience is how long one command may take for the status of all caches. The status
	// of a cache waits for its metadata, and those for an SSD that does not answer.
	allPatience = 3 * time.Second
	// eachPatience is how long the status of one may take after that, and eachAtOnce how
	// many are asked beside each other.
	eachPatience, eachAtOnce = time.Second, 8
)

// StatusAll implements Client. Without --noflush the kernel would commit a cache's
// metadata for every look at it.
func (d *dmsetup) StatusAll(ctx context.Context) (map[string]CacheStatus, error) {
	actx, cancel := context.WithTimeout(ctx, allPatience)
	out, err := d.exec(actx, nil, "status", "--noflush", "--target", "cache", "--select", oneTarget)
	cancel()
	switch {
	case err == nil:
		return parseStatusAll(string(out))
	case ctx.Err() != nil, !hangs(err):
		return nil, fmt.Errorf("status of all caches: %w", err)
	}
	return d.statusEach(ctx)
}

// hangs tells a command that waits for a device from one that fails.
func hangs(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, hostexec.ErrStuck)
}

// statusEach asks the caches one by one, so that one that does not answer hides no other.
// It is Silent then, and so is every device that was not asked: what is missing in the
// answer is known to be no cache.
func (d *dmsetup) statusEach(ctx context.Context) (map[string]CacheStatus, error) {
	infos, err := d.Info(ctx, "nf-")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	all := map[string]CacheStatus{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(eachAtOnce)
	for name := range infos {
		if below(name) {
			mu.Lock()
			all[name] = CacheStatus{Silent: true}
			mu.Unlock()
			continue
		}
		group.Go(func() error {
			ectx, cancel := context.WithTimeout(ctx, eachPatience)
			defer cancel()
			s, cache, err := d.Status(ectx, name)
			switch {
			case errors.Is(err, ErrNotExist): // removed meanwhile
				return nil
			case err != nil && hangs(err):
				s, cache = CacheStatus{Silent: true}, true
			case err != nil:
				return err
			}
			if cache {
				mu.Lock()
				defer mu.Unlock()
				all[name] = s
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("status of each cache: %w", err)
	}
	return all, nil
}

// below tells the devices that are below a volume's own, by their names (states.md, Names
// on the host): it would cost a process each to ask them.
func below(name string) bool { return strings.Contains(name, ".") }
