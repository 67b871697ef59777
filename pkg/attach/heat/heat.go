// Package heat keeps how often the areas of attached volumes are read, by which their caches
// are sent and listed hottest first (docs/design/states.md, Heat).
package heat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Devices count reads, as a part of [devmapper.Client].
type Devices interface {
	TrackReads(ctx context.Context, name string, chunkSectors uint64) error
	ReadAreas(ctx context.Context, name string) (devmapper.Reads, error)
	ClearReads(ctx context.Context, name string) error
}

const (
	// addTimeout bounds what a volume that leaves waits for its counts.
	addTimeout = 5 * time.Second
	suffix     = ".heat"
)

// Keeper keeps the heat of a node's volumes. Nothing here is an error of a volume: without
// heat, the order is that of smq. Calls for one volume are the caller's to serialise, but Of.
//
// The kernel counts, and a file of at most 19 kB for each volume has the sums of before. So a
// process has nothing to lose, no pass has to look at volumes in between, and a hundred of
// them cost a hundred files in half an hour.
type Keeper struct {
	Devices Devices
	// Dir is a folder for the sums; without one nothing is counted.
	Dir string
	Now func() time.Time

	// Host has the volumes, for Pass.
	Host Host
	// Flushes returns how many flushes the disks below a volume have counted, and whether they do; nil
	// if nobody knows.
	Flushes func(ctx context.Context, e *state.Entry) (n uint64, known bool)
	// Sampler counts reads by size, nil if nobody does, and Device has the number ("major:minor") of what pods
	// read of a volume, "" if there is none.
	Sampler Sampler
	Device  func(ctx context.Context, id volume.ID) (devno string, err error)
	// Every is the time between two looks of Pass at a volume; 0 is lookEvery.
	Every time.Duration

	// failed has the volumes (volume.ID) of which was said that they are not counted.
	failed sync.Map
	looks
}

// Begin has the reads of a volume counted, whose top device is there, with a cache or without. What is
// counted already goes on, unless the device has grown: then what was counted since Add is lost.
func (k *Keeper) Begin(ctx context.Context, e *state.Entry) {
	if k.Dir == "" || e.ActivationID == "" || e.Cached() && e.ChunkSectors == 0 {
		return
	}
	k.failure(ctx, e.ID, k.Devices.TrackReads(ctx, layout.Device(e.ID, layout.Top), chunkSectors(e)))
}

// Add adds what was counted since to the sums. A volume that is not counted keeps those that
// it has.
func (k *Keeper) Add(ctx context.Context, e *state.Entry) {
	if k.Dir == "" || !e.Cached() || e.ActivationID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	err := k.add(ctx, e)
	if errors.Is(err, devmapper.ErrNotExist) {
		return // Begin has said why, or the device is gone
	}
	k.failure(ctx, e.ID, err)
}

// add writes first and clears then: killed in between, a few reads count twice.
func (k *Keeper) add(ctx context.Context, e *state.Entry) error {
	name := layout.Device(e.ID, layout.Top)
	r, err := k.Devices.ReadAreas(ctx, name)
	if err != nil {
		return err
	}
	k.look(ctx, e, r)
	sums := k.Of(ctx, e).Add(e.ActivationID, k.Now(), r.AreaSectors, r.Counts)
	if err := durable.WriteFile(k.file(e.ID), sums.Encode()); err != nil {
		return err
	}
	faultHeatWritten.Hit()
	if err := k.Devices.ClearReads(ctx, name); err != nil {
		return err
	}
	k.cleared(e.ID)
	return nil
}

// Of returns the sums of the stage that the entry is about, as of the last Add; none if there
// are none, or they cannot be read.
func (k *Keeper) Of(ctx context.Context, e *state.Entry) cachemap.Heat {
	if k == nil || k.Dir == "" || e.ActivationID == "" {
		return cachemap.Heat{}
	}
	h, err := read(k.file(e.ID))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return cachemap.Heat{}
	case err != nil:
		klog.FromContext(ctx).Error(err, "Heat of the volume cannot be read", "volume", e.ID)
		return cachemap.Heat{}
	case h.Of != e.ActivationID:
		return cachemap.Heat{}
	}
	return h
}

// Drop removes the sums of a volume that the journal is about to forget.
func (k *Keeper) Drop(ctx context.Context, id volume.ID) {
	if k.Dir == "" {
		return
	}
	k.failed.Delete(id)
	k.forget(id)
	for _, file := range []string{k.file(id), k.reuseFile(id)} {
		if err := durable.Remove(file); err != nil {
			klog.FromContext(ctx).Error(err, "Heat of the volume is left behind", "volume", id)
		}
	}
}

func (k *Keeper) file(id volume.ID) string { return filepath.Join(k.Dir, string(id)+suffix) }

// failure logs an error, once for each volume.
func (k *Keeper) failure(ctx context.Context, id volume.ID, err error) {
	if err == nil {
		return
	}
	if _, said := k.failed.LoadOrStore(id, true); !said {
		klog.FromContext(ctx).Error(err, "Reads of the volume are not counted by area; what is hottest is what smq says", "volume", id)
	}
}

// read reads no more than a file of sums can have.
func read(path string) (cachemap.Heat, error) {
	b, err := readBounded(path, cachemap.MaxHeatBytes)
	if err != nil {
		return cachemap.Heat{}, err
	}
	h, err := cachemap.DecodeHeat(b)
	if err != nil {
		return cachemap.Heat{}, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return h, nil
}

// readBounded reads a file, and no more of it than one byte too many.
func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	return b, errors.Join(err, f.Close())
}
