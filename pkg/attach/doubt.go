package attach

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/transport"
)

// markOrigin notes in the entry, which the caller saves, what has failed of the origin so
// far: before the table of a cache is loaded (states.md, Writes that failed).
func (a *Attacher) markOrigin(ctx context.Context, e *Entry) {
	m, err := a.Transport.Marks(ctx, target(e.Source))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Errors of the origin cannot be counted; the cache will not be kept", "volume", e.ID)
	}
	if m == nil {
		m = transport.Marks{} // not known, which is not what a version before says
	}
	e.OriginMarks = m
}

// doubt says why the cache of an entry may hold blocks that the origin has refused, or "".
func (a *Attacher) doubt(ctx context.Context, e *Entry) string {
	if e.OriginMarks == nil {
		return "" // activated by a version that did not ask
	}
	now, err := a.Transport.Marks(ctx, target(e.Source))
	if err != nil {
		return fmt.Sprintf("nobody knows whether requests to the storage server have failed: %v", err)
	}
	failed, why := now.Since(e.OriginMarks)
	switch failed {
	case transport.FailedNo:
		return ""
	case transport.FailedYes:
		return "requests to the storage server have failed: " + why
	case transport.FailedUnknown:
	}
	return "requests to the storage server may have failed: " + why
}
