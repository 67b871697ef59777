package attach

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ErrorCounter counts the bios that devices of the device mapper, named "major:minor", have
// failed.
type ErrorCounter interface {
	// Start begins to count, if that does not go on.
	Start(ctx context.Context, devno string) error
	// Count never becomes less as long as the id is the same.
	Count(ctx context.Context, devno string) (n uint64, id string, err error)
}

// markOrigin notes in the entry, which the caller saves, what has failed of the origin so
// far: before the table of a cache is loaded (states.md, Writes that failed).
func (a *Attacher) markOrigin(ctx context.Context, e *state.Entry) {
	m, err := a.marks(ctx, e, true)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Errors of the origin cannot be counted; the cache will not be kept", "volume", e.ID)
	}
	if m == nil {
		m = transport.Marks{} // not known, which is not what a version before says
	}
	e.OriginMarks = m
}

// kernelCount begins the name of the kernel's own count among the marks of a volume; the number
// of the device that it counts at follows.
const kernelCount = "kernel "

// marks are those of the paths of the origin; of a disk that counts nothing, with what the kernel
// has counted at the origin's device. It begins to count, if begin.
func (a *Attacher) marks(ctx context.Context, e *state.Entry, begin bool) (transport.Marks, error) {
	m, err := a.Transport.Marks(ctx, transport.Target{Source: e.Source})
	uncounted := false
	for path, mark := range m {
		uncounted = uncounted || mark.Uncounted
		mark.Uncounted = false
		m[path] = mark
	}
	if err != nil || !uncounted {
		return m, err
	}
	if a.IOErrors == nil {
		return nil, errors.New("nobody counts what it fails")
	}
	devno, err := a.countedAt(ctx, e, begin)
	if err != nil {
		return nil, err
	}
	if begin {
		if err := a.IOErrors.Start(ctx, devno); err != nil {
			return nil, err
		}
	}
	n, id, err := a.IOErrors.Count(ctx, devno)
	if err != nil {
		return nil, err
	}
	m[kernelCount+devno] = transport.PathMark{Path: id, Errors: n}
	return m, nil
}

// countedAt is the number of the origin's device: when a count begins the device's own, later the
// one of the mark. The last look comes when the device has been removed; what another one of
// that number has failed since is counted too, and costs no more than a cache.
func (a *Attacher) countedAt(ctx context.Context, e *state.Entry, begin bool) (string, error) {
	name := layout.Device(e.ID, layout.Origin)
	infos, err := a.DM.Info(ctx, name)
	if err != nil {
		return "", err
	}
	info, there := infos[name]
	if begin {
		if !there {
			return "", fmt.Errorf("no device %s, at which it is counted what fails", name)
		}
		return info.DevNo(), nil
	}
	for mark := range e.OriginMarks {
		devno, found := strings.CutPrefix(mark, kernelCount)
		switch {
		case !found:
		case there && info.DevNo() != devno:
			return "", fmt.Errorf("device %s is %s, and what fails was counted at %s", name, info.DevNo(), devno)
		default:
			return devno, nil
		}
	}
	return "", errors.New("it was not counted what fails")
}

// rescan has the kernel read the origin's size again, and notes in the entry, which the
// caller saves, what failed meanwhile. It returns that too, by portal, of those paths of
// which it is known. Paths that the cache has not used so far get a mark now, before it does.
func (a *Attacher) rescan(ctx context.Context, e *state.Entry, cred *volume.Credentials) (map[string]uint64, error) {
	if len(e.OriginMarks) == 0 {
		// There is no cache, or nothing is known of it already.
		return map[string]uint64{}, a.Transport.Rescan(ctx, transport.Target{Source: e.Source}, cred)
	}
	before, err := a.marks(ctx, e, false)
	if rescanErr := a.Transport.Rescan(ctx, transport.Target{Source: e.Source}, cred); rescanErr != nil {
		return nil, rescanErr
	}
	var after transport.Marks
	if err == nil {
		after, err = a.marks(ctx, e, false)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Errors of a rescan cannot be counted; the cache will not be kept", "volume", e.ID)
		if e.OriginMarks != nil {
			e.OriginMarks = transport.Marks{} // nor what a path that has come does from now on
		}
		return map[string]uint64{}, nil
	}
	if len(e.OriginMarks) == 0 {
		return map[string]uint64{}, nil
	}
	failed := e.OriginMarks.Rescanned(before, after)
	for portal, m := range after {
		if _, known := e.OriginMarks[portal]; !known {
			e.OriginMarks[portal] = m
		}
	}
	return failed, nil
}

// rescanPrice measures how many commands of a rescan the origin refuses, on each path, while
// nobody uses the volume. The smaller of two counts: a price that is too high hides an error.
func (a *Attacher) rescanPrice(ctx context.Context, e *state.Entry) map[string]uint64 {
	var runs [2]map[string]uint64
	for i := range runs {
		var err error
		if runs[i], err = a.rescan(ctx, e, nil); err != nil {
			klog.FromContext(ctx).Error(err, "What the origin refuses of a rescan cannot be measured", "volume", e.ID)
			return nil
		}
	}
	price := map[string]uint64{}
	for portal, n := range runs[0] {
		price[portal] = min(n, runs[1][portal])
	}
	return price
}

// doubt says why the cache of an entry may hold blocks that the origin has refused, or "".
// Nobody uses the volume.
func (a *Attacher) doubt(ctx context.Context, e *state.Entry) string {
	if e.OriginMarks == nil {
		return "" // activated by a version that did not ask
	}
	var price map[string]uint64
	for _, m := range e.OriginMarks {
		if m.Rescans > 0 {
			price = a.rescanPrice(ctx, e)
			break
		}
	}
	now, err := a.marks(ctx, e, false)
	if err != nil {
		return fmt.Sprintf("nobody knows whether requests to the storage server have failed: %v", err)
	}
	failed, why := now.Since(e.OriginMarks, price)
	switch failed {
	case transport.FailedNo:
		return ""
	case transport.FailedYes:
		return "requests to the storage server have failed: " + why
	case transport.FailedUnknown:
	}
	return "requests to the storage server may have failed: " + why
}

// reportDoubt says why a cache is not kept.
func (a *Attacher) reportDoubt(ctx context.Context, e *state.Entry) {
	if e.Doubt == "" {
		return
	}
	klog.FromContext(ctx).Info("Cache is not kept", "volume", e.ID, "reason", e.Doubt)
	a.report(ctx, e.ID, volume.CacheReport{Reason: v1alpha1.ReasonOriginErrors, Warning: true,
		Message: e.Doubt + ": the cache on node " + a.Node + " was flushed and is not kept, since it may have writes that failed"})
}
