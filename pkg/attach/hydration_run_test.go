package attach_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// A hydration is neither swapped nor swept by a look that is older than its clone: what has not
// been copied yet would be taken for whole.
func TestHydrationLookTooOld(t *testing.T) {
	data := layout.Device(volumeID, layout.Data)
	for name, seen := range map[string]map[string]devmapper.CloneStatus{
		"before the clone was made": {},
		"the clone of before":       {data: {RegionSectors: 64, Hydrated: 10, Regions: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t, volume.ModeWritethrough)
			req := l.publish(l.a.name)
			l.must("stage", l.a.Stage(l.ctx, req))
			e, err := l.a.Journal.Load(string(volumeID))
			l.must("journal", err)
			e.Hydration = &state.Hydration{RegionSectors: 64}
			l.must("journal", l.a.Journal.Save(string(volumeID), e))
			dm := &cloneSince{Client: l.a.DM, data: data, seen: seen, looked: make(chan struct{})}
			l.a.UseDM(dm)

			ctx, cancel := context.WithTimeout(l.ctx, time.Minute)
			ended := make(chan struct{})
			go func() { l.a.Hydrations().Run(ctx); close(ended) }()
			select {
			case <-dm.looked:
			case <-ctx.Done():
				t.Error("nobody looked at the clone again")
			}
			cancel()
			<-ended
			after, err := l.a.Journal.Load(string(volumeID))
			l.must("journal", err)
			if after.Hydration == nil || after.Hydration.Whole || dm.loads.Load() > 0 {
				t.Errorf("after a look at what was there before, the hydration is %+v, and %d tables were loaded", after.Hydration, dm.loads.Load())
			}

			l.a.UseDM(dm.Client)
			e.Hydration = nil
			l.must("journal", l.a.Journal.Save(string(volumeID), e))
			l.leave(l.a)
		})
	}
}

// cloneSince is a kernel that has a clone in place of the data device, which has copied one
// region of ten. The first look at the clones has seen what was there before.
type cloneSince struct {
	devmapper.Client
	data          string
	seen          map[string]devmapper.CloneStatus
	looks, tables atomic.Int32
	loads         atomic.Int32
	looked        chan struct{}
}

func (c *cloneSince) CloneStatusAll(context.Context) (map[string]devmapper.CloneStatus, error) {
	if c.looks.Add(1) == 1 {
		return c.seen, nil
	}
	return map[string]devmapper.CloneStatus{c.data: {RegionSectors: 64, Hydrated: 1, Regions: 10}}, nil
}

func (c *cloneSince) CloneStatus(context.Context, string) (devmapper.CloneStatus, bool, error) {
	return devmapper.CloneStatus{RegionSectors: 64, Hydrated: 1, Regions: 10}, true, nil
}

func (c *cloneSince) Table(ctx context.Context, name string) (devmapper.Table, error) {
	if name != c.data {
		return c.Client.Table(ctx, name)
	}
	if c.tables.Add(1) == 1 {
		defer close(c.looked)
	}
	return devmapper.Table{{Length: 640, Target: devmapper.CloneTarget{Metadata: "252:9", Destination: "252:8", Source: "252:7", RegionSectors: 64}}}, nil
}

func (c *cloneSince) Load(ctx context.Context, name string, t devmapper.Table) error {
	if name == c.data {
		c.loads.Add(1)
	}
	return c.Client.Load(ctx, name, t)
}
