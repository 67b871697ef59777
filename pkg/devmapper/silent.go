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
	// allPatience is how long one command may take for the status of all caches, or clones. The
	// status of one waits for its metadata, and those for an SSD that does not answer.
	allPatience = 3 * time.Second
	// eachPatience is how long the status of one may take after that, and eachAtOnce how
	// many are asked beside each other.
	eachPatience, eachAtOnce = time.Second, 8
)

// StatusAll implements Client. Without --noflush the kernel would commit a cache's
// metadata for every look at it.
func (d *dmsetup) StatusAll(ctx context.Context) (map[string]CacheStatus, error) {
	return statusAll(ctx, d, "cache", parseStatusAll, func(name string) bool { return !below(name) }, CacheStatus{Silent: true}, d.Status)
}

// CloneStatusAll implements Client. As with caches, nothing is committed: the counts in
// memory are the newer ones.
func (d *dmsetup) CloneStatusAll(ctx context.Context) (map[string]CloneStatus, error) {
	return statusAll(ctx, d, "clone", parseCloneStatusAll, mayBeClone, CloneStatus{Silent: true}, d.CloneStatus)
}

// statusAll asks all devices of one kind at once, and otherwise those that may be one by one.
func statusAll[T any](ctx context.Context, d *dmsetup, kind string, parse func(string) (map[string]T, error), ask func(name string) bool,
	silent T, one func(context.Context, string) (T, bool, error)) (map[string]T, error) {
	actx, cancel := context.WithTimeout(ctx, allPatience)
	out, err := d.exec(actx, nil, "status", "--noflush", "--target", kind, "--select", oneTarget)
	cancel()
	switch {
	case err == nil:
		return parse(string(out))
	case ctx.Err() != nil, !hangs(err):
		return nil, fmt.Errorf("status of all devices of kind %s: %w", kind, err)
	}
	infos, err := d.Info(ctx, "nf-")
	if err != nil {
		return nil, err
	}
	return statusEach(ctx, infos, ask, silent, one)
}

// hangs tells a command that waits for a device from one that fails.
func hangs(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, hostexec.ErrStuck)
}

// statusEach asks devices one by one, so that one that does not answer hides no other.
// It is silent then, and so is every device that was not asked: what is missing in the
// answer is known to be of another kind.
func statusEach[T any](ctx context.Context, infos map[string]Info, ask func(name string) bool, silent T, one func(context.Context, string) (T, bool, error)) (map[string]T, error) {
	var mu sync.Mutex
	all := map[string]T{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(eachAtOnce)
	for name := range infos {
		if !ask(name) {
			mu.Lock()
			all[name] = silent
			mu.Unlock()
			continue
		}
		group.Go(func() error {
			ectx, cancel := context.WithTimeout(ctx, eachPatience)
			defer cancel()
			s, found, err := one(ectx, name)
			switch {
			case errors.Is(err, ErrNotExist): // removed meanwhile
				return nil
			case err != nil && hangs(err):
				s, found = silent, true
			case err != nil:
				return err
			}
			if found {
				mu.Lock()
				defer mu.Unlock()
				all[name] = s
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("status of each device: %w", err)
	}
	return all, nil
}

// below tells the devices that are below a volume's own, by their names (states.md, Names
// on the host): it would cost a process each to ask them.
func below(name string) bool { return strings.Contains(name, ".") }

// mayBeClone tells the devices that a copy may be made on, in the same way.
func mayBeClone(name string) bool { return strings.HasSuffix(name, ".data") }
