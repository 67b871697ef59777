package hydration

import (
	"context"
	"errors"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

const (
	// CopyBeside is how much a clone copies at a time beside the pod's I/O, which waits
	// behind it: the clone begins nothing while any I/O is under way, but finishes what
	// it has begun (dm-clone-target.c, do_hydration).
	CopyBeside = 128 << 10
	// copyAlone is how much while there is none: several copies under way hide the time
	// that each takes on the network.
	copyAlone = 2 << 20
	// CopyUnit is the most that one of them copies, as large as kcopyd reads at once.
	CopyUnit = 512 << 10
	// quietRate is how many I/Os per second of the pod still count as none.
	quietRate = 10
)

// copyAtATime is how many bytes a clone may have under way, for a pod that made so many
// I/Os in the time since the last look, and a bandwidth in bytes per second (0 is no
// limit), which one look must not exceed by much.
func copyAtATime(ios uint64, elapsed time.Duration, bandwidth int64) int64 {
	if elapsed <= 0 || float64(ios) > quietRate*elapsed.Seconds() {
		return CopyBeside
	}
	if bandwidth > 0 {
		return min(copyAlone, max(CopyBeside, int64(float64(bandwidth)*tick.Seconds())))
	}
	return copyAlone
}

// yield makes the copy give way to the pod's I/O. A clone begins with CopyBeside; when
// the I/O is not measured, it stays so. What fails here must not keep a lost peer from
// being replaced, so that it is logged.
func (r *Runner) yield(ctx context.Context, e *state.Entry, memo *account, active int) {
	log := klog.FromContext(ctx).WithValues("volume", e.ID)
	st, err := r.Devices.StatsAll(ctx, layout.Device(e.ID, layout.Top))
	top, measured := st[layout.Device(e.ID, layout.Top)]
	if err != nil || !measured {
		log.V(4).Info("The pod's I/O is not known", "err", err)
		return
	}
	now, ios := r.Now(), top.Read.Operations+top.Write.Operations
	want := int64(CopyBeside)
	if !memo.iosAt.IsZero() && ios >= memo.ios {
		want = copyAtATime(ios-memo.ios, now.Sub(memo.iosAt), r.Limit(e.Hydration.Bandwidth, active))
	}
	memo.ios, memo.iosAt = ios, now
	if want == memo.atATime {
		return
	}
	err = r.Devices.Message(ctx, layout.Device(e.ID, layout.Data), 0, "hydration_threshold", strconv.FormatUint(e.Hydration.Regions(want), 10))
	switch {
	case err == nil:
		memo.atATime = want
	case !errors.Is(err, devmapper.ErrNotExist):
		log.Error(err, "The copy could not be told how much to copy at a time")
	}
}

// forgetDevice is called when the devices of a hydration may not be those that were looked
// at last.
func (m *account) forgetDevice() { m.known, m.atATime, m.idle = false, 0, false }

// idlePoll is the pause between two looks at copies that need not be held back: each is
// a process, which takes processor time that the pods have a use for.
const idlePoll = 2 * time.Second

// remembered returns the clones as they were seen last, nil if it is time to look again.
func (f *memory) remembered(now time.Time) map[string]devmapper.CloneStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.m {
		if !m.idle || now.Sub(m.at) > idlePoll {
			return nil
		}
	}
	return f.clones
}

// remember keeps what was seen.
func (f *memory) remember(clones map[string]devmapper.CloneStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clones = clones
}
