package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/app/health"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/preflight"
)

// storageInterval is how often the storage server is asked how it is: each time it runs lvs.
const storageInterval = 30 * time.Second

// clusterMetrics adds to mgr what the metrics of the cluster rest on, and returns them. storage
// is nil without a storage server.
func clusterMetrics(mgr manager.Manager, address string, storage backend.Backend, plugins *pluginPods) (prometheus.Collector, error) {
	informed := mgr.GetCache()
	gather := func(ctx context.Context) (metrics.ClusterFacts, error) { return clusterFacts(ctx, informed, plugins) }
	c := metrics.NewCluster(mgr.Elected(), gather, time.Now)
	if reporter, ok := storage.(backend.Reporter); ok {
		w := &storageWatch{storage: reporter, address: address}
		if err := mgr.Add(w); err != nil {
			return nil, fmt.Errorf("watch of the storage server: %w", err)
		}
		c.Storage = w.last
	}
	return c, nil
}

// pluginPods says which pods are the node plugin's.
type pluginPods struct {
	namespace string
	selector  labels.Selector
}

// pluginPodsOf are nil if cfg does not say.
func pluginPodsOf(cfg Config) (*pluginPods, error) {
	if cfg.NodePods == "" {
		return nil, nil
	}
	selector, err := labels.Parse(cfg.NodePods)
	if err != nil {
		return nil, fmt.Errorf("--node-pods: %w", err)
	}
	namespace, err := ownNamespace(cfg, "node plugin's pods")
	if err != nil {
		return nil, err
	}
	return &pluginPods{namespace: namespace, selector: selector}, nil
}

// clusterFacts reads from informers, which the first scrape begins: a process that does not lead
// needs none of them. It waits until they have everything.
func clusterFacts(ctx context.Context, in client.Reader, plugins *pluginPods) (f metrics.ClusterFacts, err error) {
	volumes, pools, moves := &v1alpha1.CachedVolumeList{}, &v1alpha1.CachePoolList{}, &v1alpha1.CacheMigrationList{}
	nodes, registrations := &corev1.NodeList{}, &storagev1.CSINodeList{}
	for _, list := range []client.ObjectList{volumes, pools, moves, nodes, registrations} {
		// Nothing is written to what is read here.
		if err := in.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return f, fmt.Errorf("list %T: %w", list, err)
		}
	}
	f = metrics.ClusterFacts{Volumes: volumes.Items, Pools: pools.Items, Moves: moves.Items, Ready: map[string]bool{}, Registered: map[string]bool{}}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		f.Ready[n.Name] = kube.NodeReady(n)
	}
	for i := range registrations.Items {
		n := &registrations.Items[i]
		f.Registered[n.Name] = kube.Registered(n, driver.Name)
	}
	if plugins == nil {
		return f, nil
	}
	pods := &corev1.PodList{}
	err = in.List(ctx, pods, client.InNamespace(plugins.namespace), client.MatchingLabelsSelector{Selector: plugins.selector}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return f, fmt.Errorf("pods of the node plugin: %w", err)
	}
	for i := range pods.Items {
		f.Planned = append(f.Planned, pods.Items[i].Spec.NodeName)
	}
	return f, nil
}

// storageWatch asks the storage server how it is, while this process leads.
type storageWatch struct {
	storage backend.Reporter
	address string

	mu   sync.Mutex
	said *metrics.StorageServer
}

// Start implements manager.Runnable.
func (w *storageWatch) Start(ctx context.Context) error {
	for {
		said := w.ask(ctx)
		w.mu.Lock()
		w.said = &said
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(storageInterval):
		}
	}
}

func (w *storageWatch) ask(ctx context.Context) metrics.StorageServer {
	ctx, cancel := context.WithTimeout(ctx, health.CheckTimeout)
	defer cancel()
	r, err := w.storage.Report(ctx)
	if err != nil || len(r.Problems) > 0 {
		klog.FromContext(ctx).Info("The storage server is not well", "address", w.address, "problems", r.Problems, "err", preflight.StorageServer(w.address, err))
	}
	return metrics.StorageServer{
		Address: w.address, Up: err == nil, Healthy: len(r.Problems) == 0, CapacityBytes: r.CapacityBytes, UsedBytes: r.UsedBytes,
		MetadataRatio: r.MetadataRatio, ServerNotAfter: r.ServerNotAfter, ClientNotAfter: r.ClientNotAfter,
	}
}

// last is what the server said last; none before the first answer.
func (w *storageWatch) last() []metrics.StorageServer {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.said == nil {
		return nil
	}
	return []metrics.StorageServer{*w.said}
}
