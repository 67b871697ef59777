package attach

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// reportStaged tells the record what the cache does. The volume works without
// the report, so that a failure is only logged (I6).
func (a *Attacher) reportStaged(ctx context.Context, s *staging) {
	r := volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive,
		Message: fmt.Sprintf("%s on node %s", s.began(), a.Node)}
	if !s.entry.Cached() {
		r = volume.CacheReport{Reason: s.plan.Reason, Message: s.plan.Message, Warning: s.plan.Reason != v1alpha1.ReasonModeNone}
		if s.plan.Cache == planAdopt {
			return
		}
	}
	if err := a.Records.Report(ctx, s.req.ID, r); err != nil {
		klog.FromContext(ctx).Error(err, "Cache state could not be reported", "volume", s.req.ID)
	}
	// The cache on this node is in use or gone: it is no retained cache any more.
	if err := a.Records.SetRetainedCache(ctx, s.req.ID, a.Node, nil); err != nil {
		klog.FromContext(ctx).Error(err, "Retained cache could not be withdrawn", "volume", s.req.ID)
	}
}

// began says in words how the cache began.
func (s *staging) began() string {
	switch e, cache := s.entry, s.plan.Cache.words(); {
	case e.Hydration == nil && s.plan.NotWarm != "" && s.rec.WarmSource != nil:
		return fmt.Sprintf("%s, without the cache of node %s (%s),", cache, s.rec.WarmSource.Node, s.plan.NotWarm)
	case e.Hydration == nil && s.plan.NotPreloaded != "":
		return fmt.Sprintf("%s, not preloaded (%s),", cache, s.plan.NotPreloaded)
	case e.Hydration == nil:
		return cache
	case e.Hydration.Peer != nil && e.Hydration.From != nil:
		return "a new cache that is copied from node " + e.Hydration.From.Node + " (warm move)"
	case e.Streams() && e.Hydration.Stream.Source != nil && e.Hydration.From != nil:
		return "a new cache that node " + e.Hydration.From.Node + " sends (warm move by stream)"
	case e.Hydration.Preload:
		return cache + ", filled with the whole volume as far as it has room,"
	default:
		return cache + ", filled with what was read most,"
	}
}

// words say what becomes of the cache.
func (p cachePlan) words() string {
	switch p {
	case planReuse:
		return "the cache that was kept"
	case planRecover:
		return "the cache as it was before the unclean stop, with its unflushed writes"
	case planCreate:
		return "a new, empty cache"
	case planAdopt:
		return "the cache that is at work"
	case planUncached:
	}
	return "no cache"
}
