package hydration

import (
	"context"
	"errors"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// reckon brings the hydration's account up to date and reports whether it is overdrawn.
func (r *Runner) reckon(e *state.Entry, memo *account, st devmapper.CloneStatus, active int) bool {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	now, s := r.Now(), &memo.state
	hydrated := int64(st.Hydrated) * int64(e.Hydration.RegionSectors) * devmapper.SectorSize
	if memo.at.IsZero() {
		memo.at, memo.base, s.Began, s.HydratedBytes = now, hydrated, now, hydrated
	}
	elapsed := now.Sub(memo.at)
	copied := hydrated - s.HydratedBytes
	s.TotalBytes, s.HydratedBytes = int64(st.Regions)*int64(e.Hydration.RegionSectors)*devmapper.SectorSize, hydrated
	s.From = volume.FromPeer
	if memo.onOrigin {
		s.From = volume.FromOrigin
	}
	if total := now.Sub(s.Began); total > 0 {
		s.Rate = int64(float64(hydrated-memo.base) / total.Seconds())
	}
	memo.at = now
	limit := r.Limit(e.Hydration.Bandwidth, active)
	if limit == 0 {
		memo.onTime, memo.idle = 0, elapsed > 0 && !s.nearEnd()
		return false
	}
	earned := func(d time.Duration) int64 { return int64(float64(limit) * d.Seconds()) }
	memo.tokens = min(memo.tokens+earned(elapsed)-copied, earned(burst))
	switch {
	case memo.ranFor == 0:
	case copied > 0:
		memo.speed, memo.least = float64(copied)/memo.ranFor.Seconds(), max(memo.least/2, minOnTime)
	default:
		// The kernel did not come to it in that time.
		memo.least = min(2*max(memo.least, minOnTime), tick)
	}
	memo.ranFor = 0
	memo.onTime = onTime(memo.tokens, memo.speed, max(memo.least, minOnTime))
	memo.idle = memo.onTime == 0 && memo.tokens >= 0 && elapsed > 0 && copied < earned(elapsed)/2 && !s.nearEnd()
	return memo.tokens < 0
}

// nearEnd reports whether the copy is going to be whole before the next look at a calm one:
// until the swap every read of the pod takes the longer way.
func (s *State) nearEnd() bool {
	return s.Rate > 0 && s.TotalBytes-s.HydratedBytes < int64(idlePoll.Seconds()*float64(s.Rate))
}

// onTime is how long a copy of the given speed may run for the tokens that it has, and
// at least so long that it copies anything; 0 is until the next look.
func onTime(tokens int64, speed float64, least time.Duration) time.Duration {
	d := least
	if speed > 0 {
		d = max(d, time.Duration(float64(max(tokens, 0))/speed*float64(time.Second)))
	}
	if d >= tick {
		return 0
	}
	return d
}

// Limit is the bandwidth of one of several copies in bytes per second: its own,
// and its share of the node's. 0 is no limit.
func (r *Runner) Limit(own int64, active int) int64 {
	node := r.NodeBandwidth()
	limit, share := own, node/int64(max(active, 1))
	if node > 0 && (limit == 0 || share < limit) {
		return max(share, 1)
	}
	return limit
}

// hydrate lets the copy run, with a limit for a moment only: between two looks a
// fast device would copy far more than it may.
func (r *Runner) hydrate(ctx context.Context, id volume.ID, memo *account) error {
	if err := r.lockedStep(ctx, id, stepEnable, memo); err != nil || memo.onTime == 0 {
		return err
	}
	began := time.Now()
	select {
	case <-ctx.Done():
	case <-time.After(memo.onTime):
	}
	// Without the lock: at worst the device is gone by now.
	err := r.Devices.Message(context.WithoutCancel(ctx), layout.Device(id, layout.Data), 0, "disable_hydration")
	memo.ranFor = time.Since(began)
	if errors.Is(err, devmapper.ErrNotExist) {
		return nil
	}
	return err
}
