package node

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/volume"
)

// namesTimeout is what a pass waits for the names of its volumes.
const namesTimeout = 100 * time.Millisecond

// ownedRecords are the records of the node's volumes, as a watch shows them.
type ownedRecords interface {
	Objects(ctx context.Context) ([]v1alpha1.CachedVolume, error)
}

// observed lists the volumes of the journal in dir. Their names for people come
// from the records, and until those are known from the journal.
func observed(ctx context.Context, dir string, entries *journal.Store[state.Entry], owned ownedRecords) func() ([]observe.Volume, error) {
	journalled := observe.Remember(dir, func() ([]observe.Volume, error) {
		list, err := entries.List()
		out := make([]observe.Volume, len(list))
		for i, e := range list {
			out[i] = observe.Volume{
				ID: e.ID, Attached: e.State != state.Retained && e.State != state.Prewarmed, Mode: volume.CacheMode(volume.ModeName(e.Mode, e.Unsafe)), Cached: e.Cached(), Activation: e.Counting, Base: e.Base,
				PV: cmp.Or(e.Names.PV, string(e.ID)), Namespace: e.Names.Namespace, Claim: e.Names.Claim,
			}
		}
		return out, err
	})
	return func() ([]observe.Volume, error) {
		volumes, err := journalled()
		// Before the watch has everything, this would wait for the API server.
		ctx, cancel := context.WithTimeout(ctx, namesTimeout)
		defer cancel()
		objects, listErr := owned.Objects(ctx)
		if listErr != nil {
			// The API server has no part in what the kernel counts.
			klog.FromContext(ctx).V(4).Info("Volumes are measured without their names", "reason", listErr.Error())
		}
		nameVolumes(volumes, objects)
		return volumes, err
	}
}

// nameVolumes brings what people know volumes by up to date. A provisioned
// volume's PersistentVolume has the volume's own name.
func nameVolumes(volumes []observe.Volume, objects []v1alpha1.CachedVolume) {
	byID := make(map[volume.ID]*v1alpha1.CachedVolume, len(objects))
	for i := range objects {
		byID[volume.ID(objects[i].Name)] = &objects[i]
	}
	for i := range volumes {
		v := &volumes[i]
		obj := byID[v.ID]
		if obj == nil {
			continue
		}
		if !v.Cached && obj.Spec.CacheMode != "" {
			// Of a volume without a cache, the journal does not tell what it asks for.
			v.Mode = volume.CacheMode(obj.Spec.CacheMode)
		}
		if obj.Status.PersistentVolumeName != "" {
			v.PV = obj.Status.PersistentVolumeName
		}
		if c := obj.Spec.ClaimRef; c != nil {
			v.Namespace, v.Claim = c.Namespace, c.Name
		}
	}
}

// metrics gathers the CSI calls, the process, the volumes and the pool.
func (p *plugin) metrics(calls rpc.CallMetrics) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	c := metrics.NewCollector(p.cfg.NodeName, p.sampler.Scrape, p.poolMetrics, time.Now)
	c.Hydrations, c.Leases, c.Moves, c.Failovers = p.hydrationMetrics, p.attacher.Lessor().Leases, p.moveCounts, p.failovers.Load
	c.DirtyLimits, c.Scrubs = p.attacher.DirtyLimits().Uses, p.attacher.Scrubs().Uses
	registry.MustRegister(metrics.BuildInfo("node"), c,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return prometheus.Gatherers{registry, calls.Gatherer()}
}

// hydrationMetrics are the caches that are being filled.
func (p *plugin) hydrationMetrics() []metrics.Hydration {
	var out []metrics.Hydration
	for _, f := range p.attacher.Hydrations().States() {
		out = append(out, metrics.Hydration{Volume: f.ID, TotalBytes: f.TotalBytes, HydratedBytes: f.HydratedBytes, From: f.From})
	}
	for _, s := range p.attacher.Streams().States() {
		out = append(out, metrics.Hydration{Volume: s.ID, TotalBytes: s.TotalBytes, HydratedBytes: s.HydratedBytes, From: s.From})
	}
	return out
}

// poolMetrics is the pool as it was reconciled last.
func (p *plugin) poolMetrics() metrics.Pool {
	v := p.pool.View()
	out := metrics.Pool{
		Ready: v.Ready, Known: v.VG != "" && v.CapacityBytes > 0,
		CapacityBytes: v.CapacityBytes, FreeBytes: v.FreeBytes, RetainedBytes: v.RetainedCacheBytes,
	}
	kept, _ := p.attacher.Kept()
	out.Kept = len(kept)
	for _, path := range v.Devices {
		h := v.Health[path]
		out.Devices = append(out.Devices, metrics.PoolDevice{Path: path, Health: pool.DeviceHealth(h.Verdict), WearPercent: h.WearPercent})
	}
	return out
}
