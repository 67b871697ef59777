package heat

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/iosizes"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

// sampleFor is how long reads are counted by size, between two looks.
const sampleFor = 30 * time.Second

// Sampler counts reads by size ([iosizes.Sampler]).
type Sampler interface {
	Sample(ctx context.Context, d time.Duration) (map[string]iosizes.Counts, error)
	Stop() error
}

// sizes are what samples have of volumes, until a look takes it in. Their lock is that of looks.
type sizes map[volume.ID][reuse.SizeBins]uint64

// RunSizes makes samples until ctx ends.
func (k *Keeper) RunSizes(ctx context.Context) {
	if k.Dir == "" || k.Host == nil || k.Sampler == nil {
		return
	}
	passes.Repeat(ctx, k.every(), k.SamplePass, func(err error) {
		klog.FromContext(ctx).Info("Reads are not counted by size", "reason", err.Error())
	})
}

// SamplePass makes one sample of all attached volumes. Where there are none, the kernel keeps nothing of
// it either.
func (k *Keeper) SamplePass(ctx context.Context) error {
	before, err := k.devices(ctx)
	if err != nil {
		return err
	}
	if len(before) == 0 {
		return k.Sampler.Stop()
	}
	counts, err := k.Sampler.Sample(ctx, sampleFor)
	if err != nil {
		return err
	}
	after, err := k.devices(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, devno := range before {
		// A volume that came or went meanwhile may share its number with another one.
		c, counted := counts[devno]
		if !counted || after[id] != devno {
			continue
		}
		if k.sizes == nil {
			k.sizes = sizes{}
		}
		sums := k.sizes[id]
		for e, n := range c {
			sums[reuse.SizeBin(1<<e)] += n
		}
		k.sizes[id] = sums
	}
	return nil
}

// devices are the numbers of what pods read.
func (k *Keeper) devices(ctx context.Context) (map[volume.ID]string, error) {
	entries, err := k.Host.Entries()
	out := map[volume.ID]string{}
	for i := range entries {
		if entries[i].State != state.Staged {
			continue
		}
		devno, deviceErr := k.Device(ctx, entries[i].ID)
		err = errors.Join(err, deviceErr)
		if devno != "" {
			out[entries[i].ID] = devno
		}
	}
	if len(out) > 0 {
		return out, nil // the others' are not known
	}
	return out, err
}

// takeSizes returns what samples have of a volume since it was called last.
func (k *Keeper) takeSizes(id volume.ID) [reuse.SizeBins]uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	taken := k.sizes[id]
	delete(k.sizes, id)
	return taken
}
