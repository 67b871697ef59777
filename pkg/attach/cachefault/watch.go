package cachefault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Host is the node whose caches are watched.
type Host interface {
	// Entries are those of all its volumes; on error those that can be read.
	Entries() ([]state.Entry, error)
	// Lock returns a volume's entry under its lock, which is given back in every case. There
	// is none while a request works on the volume.
	Lock(ctx context.Context, id volume.ID) (e *state.Entry, unlock func(), err error)
	// Detach has a volume go on without its cache, below a running pod, and tells of it. No
	// write may be on the SSD alone.
	Detach(ctx context.Context, e *state.Entry, cause string) error
	// ReportDetached tells of it where Detach was killed before it did.
	ReportDetached(ctx context.Context, e *state.Entry) error
	// Report tells a volume's users of its cache.
	Report(ctx context.Context, id volume.ID, r volume.CacheReport) error
	// Stripes is over how many SSDs the pool spreads a cache; 0 if that is not known.
	Stripes() int
	// VG is the pool's volume group, "" without one.
	VG() string
}

// Devices are the caches of this node, as a part of [devmapper.Client].
type Devices interface {
	Info(ctx context.Context, prefix string) (map[string]devmapper.Info, error)
	StatusAll(ctx context.Context) (map[string]devmapper.CacheStatus, error)
	CloneStatusAll(ctx context.Context) (map[string]devmapper.CloneStatus, error)
	IntegrityStatusAll(ctx context.Context) (map[string]devmapper.IntegrityStatus, error)
	Commit(ctx context.Context, name string) error
	CommitAll(ctx context.Context) error
}

// Watch watches the caches of a node.
type Watch struct {
	Host    Host
	Devices Devices
	// Node is what its reports call this node.
	Node string
	// Sysfs is where sysfs is mounted.
	Sysfs string
	Now   func() time.Time

	memory memory
	// work is who detaches caches.
	work passes.Workers
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context, every time.Duration) {
	passes.Repeat(ctx, every, w.Pass, func(err error) {
		klog.FromContext(ctx).Error(err, "Caches could not be examined, or one that fails could not be left; it is tried again")
	})
}

// Why says why a volume's cache fails, as of the last pass; "" if it does not.
func (w *Watch) Why(id volume.ID) string { return w.memory.why(id) }

// Pass examines the caches of all attached volumes once, and takes the steps of states.md,
// The cache device fails. While none of them fails, that takes two commands, once in a
// while a third, and a few reads of the SSD for each. It is not for concurrent use.
func (w *Watch) Pass(ctx context.Context) error {
	entries, err := w.Host.Entries()
	problems := []error{err}
	var watched []*state.Entry
	var kinds kinds
	for i := range entries {
		// One that the journal denies may be live if a step was killed.
		if e := &entries[i]; e.State == state.Staged && (e.Cached() || e.FailoverCause != "" || e.DataBytes > 0) {
			watched = append(watched, e)
			kinds.hydration, kinds.checked = kinds.hydration || e.Hydration != nil, kinds.checked || e.Checked
		}
	}
	w.memory.keep(watched)
	if len(watched) == 0 {
		return err
	}
	problems = append(problems, w.writeProbe(ctx, watched))
	l, err := w.examine(ctx, kinds)
	if err != nil {
		return errors.Join(append(problems, err)...)
	}
	unreadable := w.unreadable(ctx, watched, l.infos)
	var due []volume.ID
	for _, e := range watched {
		if l.silent(e) {
			continue // no news, and no table could be swapped
		}
		f := w.gather(e, l, unreadable[e.ID])
		why := f.broken()
		if !f.LiveCache {
			why = ""
		}
		w.memory.record(e.ID, why)
		if decide(f) != stepNothing {
			due = append(due, e.ID)
		}
	}
	return errors.Join(append(problems, w.work.Each(ctx, passes.Slow, passes.Patience, due, func(ctx context.Context, id volume.ID) error {
		if err := w.step(ctx, id, unreadable[id], kinds); err != nil {
			return fmt.Errorf("volume %s: %w", id, err)
		}
		return nil
	}))...)
}

// poll is what one look at the kernel shows of all caches.
type poll struct {
	status map[string]devmapper.CacheStatus
	clones map[string]devmapper.CloneStatus
	checks map[string]devmapper.IntegrityStatus
	infos  map[string]devmapper.Info
}

// kinds are what any of the caches has: a hydration, checksums.
type kinds struct{ hydration, checked bool }

// silent tells a volume whose cache, or whose copy into the cache, does not answer.
func (l poll) silent(e *state.Entry) bool {
	st, _ := layout.CacheStatus(l.status, e.ID)
	return st.Silent || e.Hydration != nil && l.clones[layout.Device(e.ID, layout.Data)].Silent
}

func (w *Watch) examine(ctx context.Context, k kinds) (l poll, err error) {
	if l.status, err = w.Devices.StatusAll(ctx); err != nil {
		return l, err
	}
	if l.infos, err = w.Devices.Info(ctx, layout.DevicePrefix); err != nil {
		return l, err
	}
	if k.checked {
		if l.checks, err = w.Devices.IntegrityStatusAll(ctx); err != nil {
			return l, err
		}
	}
	if k.hydration {
		l.clones, err = w.Devices.CloneStatusAll(ctx)
	}
	return l, err
}

func (w *Watch) gather(e *state.Entry, l poll, unreadable string) facts {
	f := facts{Entry: e, Unreadable: unreadable, AtRiskTold: w.memory.atRisk(e.ID)}
	if l.silent(e) {
		return f
	}
	f.Status, f.LiveCache = layout.CacheStatus(l.status, e.ID)
	f.Mismatches = l.checks[integrity.Device(w.Host.VG(), layout.DataLV(e.ID))].Mismatches
	f.LiveOrigin = l.infos[layout.Device(e.ID, layout.Top)].HasLive && !f.LiveCache
	if c, found := l.clones[layout.Device(e.ID, layout.Data)]; found {
		f.Clone = &c
	}
	return f
}

// step takes the step of one volume under its lock, with what is so by then. A volume that
// a request works on is looked at again.
func (w *Watch) step(ctx context.Context, id volume.ID, unreadable string, k kinds) error {
	e, unlock, err := w.Host.Lock(ctx, id)
	defer unlock()
	if err != nil || e == nil {
		return err
	}
	l, err := w.examine(ctx, k)
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("volume", id))
	f := w.gather(e, l, unreadable)
	switch decide(f) {
	case stepDetach:
		err := w.Host.Detach(ctx, e, f.broken())
		if err == nil {
			w.memory.record(id, "")
		}
		return err
	case stepReport:
		return w.Host.ReportDetached(ctx, e)
	case stepAtRisk:
		return w.reportAtRisk(ctx, f)
	case stepHealed:
		return w.reportHealed(ctx, e)
	case stepNothing:
	}
	return nil
}

// reportAtRisk tells of unflushed writes on an SSD that fails, once.
func (w *Watch) reportAtRisk(ctx context.Context, f facts) error {
	if f.AtRiskTold {
		return nil
	}
	e := f.Entry
	dirty := fmt.Sprintf("%d bytes of its writes", f.Status.DirtyBytes())
	if f.Status.Fail {
		dirty = "an unknown part of its writes"
	}
	r := volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheDeviceError, Warning: true, Message: fmt.Sprintf(
		"%s: %s may be on the SSD of node %s alone, so that the volume cannot go on without its cache; those that the SSD does not give back are lost",
		f.broken(), dirty, w.Node)}
	klog.FromContext(ctx).Error(nil, "Cache device fails with unflushed writes on it", "cause", f.broken(), "dirtyBytes", f.Status.DirtyBytes())
	if err := w.Host.Report(ctx, e.ID, r); err != nil {
		return fmt.Errorf("report of what is at risk: %w", err)
	}
	w.memory.setAtRisk(e.ID, true)
	return nil
}

// reportHealed takes that back.
func (w *Watch) reportHealed(ctx context.Context, e *state.Entry) error {
	r := volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive, Message: "the cache device answers again on node " + w.Node}
	if err := w.Host.Report(ctx, e.ID, r); err != nil {
		return fmt.Errorf("report of the cache: %w", err)
	}
	w.memory.setAtRisk(e.ID, false)
	return nil
}
