package stack

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// finalTimeout bounds what a volume waits for its last counts.
const finalTimeout = 5 * time.Second

// BeginCounting notes where the counters of a new table begin and has the
// kernel measure the volume's devices. A volume works without being measured.
func (s *Stack) BeginCounting(ctx context.Context, e *state.Entry) {
	e.Counting, e.Base = rand.Text(), devmapper.Counters{}
	log := klog.FromContext(ctx)
	if e.Cached() {
		st, found, err := s.LevelStatus(ctx, e)
		if err == nil && !found {
			err = fmt.Errorf("device %s is not an active cache", layout.Device(e.ID, layout.Top))
		}
		if err != nil {
			// Without a base nothing can be counted until the next table.
			log.Error(err, "Counters of the cache could not be read", "volume", e.ID)
			e.Counting = ""
		}
		e.Base = st.Counters()
	}
	names := []string{layout.Device(e.ID, layout.Top), layout.Device(e.ID, layout.Origin)}
	if e.Cached() {
		names = append(names, layout.Device(e.ID, layout.Data))
	}
	for _, name := range names {
		if err := s.DM.StatsCreate(ctx, name); err != nil {
			log.Error(err, "Device will not be measured", "volume", e.ID, "device", name)
		}
	}
	if s.Heat != nil {
		s.Heat.Begin(ctx, e)
	}
}

// FinalCount has the last counts taken before a device goes.
func (s *Stack) FinalCount(ctx context.Context, id volume.ID) {
	if s.Meter == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, finalTimeout)
	defer cancel()
	s.Meter.Final(ctx, id)
}

// QuickCount is FinalCount for a table that must go at once: should the plugin be
// killed within the next half minute, what was counted since the last save is lost.
func (s *Stack) QuickCount(ctx context.Context, _ volume.ID) {
	if s.Meter == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, finalTimeout)
	defer cancel()
	s.Meter.Count(ctx)
}
