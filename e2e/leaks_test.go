//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// seen are the words that leftovers of the suite's volumes would contain.
var seen struct {
	sync.Mutex
	words []string
}

func remember(v cluster.Volume) {
	seen.Lock()
	defer seen.Unlock()
	seen.words = append(seen.words, hoststate.Words(v.Handle, v.PV)...)
}

// awaitNoLeaks waits until nothing is left of the space's volumes, retained caches
// excepted: a node gives those up in its own time.
func (s *space) awaitNoLeaks(ctx context.Context, timeout time.Duration) error {
	var words []string
	for _, v := range s.volumes {
		words = append(words, hoststate.Words(v.Handle, v.PV)...)
	}
	return awaitNone(ctx, timeout, func(items []hoststate.Item) []hoststate.Item {
		return slices.DeleteFunc(hoststate.Mentioning(items, words...), isRetainedCache)
	})
}

// isRetainedCache recognises the logical volumes of a cache, their devices, and the
// journal's entry.
func isRetainedCache(i hoststate.Item) bool {
	switch i.Kind {
	case "dm", "lv":
		return strings.HasSuffix(i.Name, ".data") || strings.HasSuffix(i.Name, ".meta")
	case "file":
		return true
	}
	return false
}

// awaitNothingLeft waits until no machine has anything of any volume, and the
// cluster no object of one.
func awaitNothingLeft(ctx context.Context, timeout time.Duration) error {
	seen.Lock()
	words := slices.Clone(seen.words)
	seen.Unlock()
	err := awaitNone(ctx, timeout, func(items []hoststate.Item) []hoststate.Item {
		return append(hoststate.Mentioning(items, words...), hoststate.OfVolumes(items)...)
	})
	if err != nil {
		return err
	}
	var records v1alpha1.CachedVolumeList
	if err := k.API.List(ctx, &records); err != nil {
		return err
	}
	for _, r := range records.Items {
		if slices.Contains(words, r.Name) {
			return fmt.Errorf("CachedVolume %s is left, finalizers %v", r.Name, r.Finalizers)
		}
	}
	return nil
}

// awaitNone waits until pick finds nothing on the machines.
func awaitNone(ctx context.Context, timeout time.Duration, pick func([]hoststate.Item) []hoststate.Item) error {
	err := cluster.AwaitEvery(ctx, 2*time.Second, timeout, func(ctx context.Context) (string, error) {
		items, err := hoststate.All(ctx, k.Host, k.Workers, servers)
		if err != nil {
			return "", err
		}
		if left := pick(items); len(left) > 0 {
			return fmt.Sprintf("%d things are left: %v", len(left), left), nil
		}
		return "", nil
	})
	if err != nil {
		return fmt.Errorf("leak check: %w", err)
	}
	return nil
}

// awaitEmptyPool waits until the pool of a node holds no cache, so that a spec
// knows which retained caches there are.
func awaitEmptyPool(ctx context.Context, node string) error {
	return awaitNone(ctx, late, func(items []hoststate.Item) []hoststate.Item {
		return slices.DeleteFunc(items, func(i hoststate.Item) bool {
			return i.Machine != node || i.Kind != "lv" || !isRetainedCache(i)
		})
	})
}
