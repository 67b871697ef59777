package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/app/health"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/epoch"
	"github.com/nearflash/nearflash/pkg/backend/reported"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/preflight"
)

// storageInterval is how often the storage server is asked how it is: each time it runs lvs.
const storageInterval = 30 * time.Second

// clusterMetrics adds to mgr what the metrics of the cluster rest on, and returns them.
func clusterMetrics(mgr manager.Manager, cfg Config, servers map[string]storageServer, plugins *pluginPods) (prometheus.Collector, error) {
	informed := mgr.GetCache()
	gather := func(ctx context.Context) (metrics.ClusterFacts, error) { return clusterFacts(ctx, informed, plugins) }
	c := metrics.NewCluster(mgr.Elected(), gather, time.Now)
	look := &sight{api: mgr.GetAPIReader()}
	if err := mgr.Add(look); err != nil {
		return nil, fmt.Errorf("look at the records: %w", err)
	}
	c.Stale = look.problem
	var watches []*storageWatch
	for _, name := range namesOf(servers) {
		reporter, ok := servers[name].storage.(backend.Reporter)
		if !ok {
			continue
		}
		namespace, err := ownNamespace(cfg, "ConfigMap "+reported.Name(name))
		if err != nil {
			return nil, err
		}
		keeper := &reported.Keeper{
			Client: mgr.GetClient(), Namespace: namespace, Target: name, Labels: map[string]string{epoch.RecordLabel: epoch.RecordLabelValue},
		}
		w := &storageWatch{storage: reporter, address: servers[name].address, keep: keeper.Keep}
		if err := mgr.Add(w); err != nil {
			return nil, fmt.Errorf("watch of storage server %s: %w", w.address, err)
		}
		watches = append(watches, w)
	}
	c.Storage = func() (out []metrics.StorageServer) {
		for _, w := range watches {
			out = append(out, w.last()...)
		}
		return out
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

// recordLists are the records of all volumes and nodes.
type recordLists struct {
	volumes       v1alpha1.CachedVolumeList
	pools         v1alpha1.CachePoolList
	moves         v1alpha1.CacheMigrationList
	nodes         corev1.NodeList
	registrations storagev1.CSINodeList
}

func (r *recordLists) all() []client.ObjectList {
	return []client.ObjectList{&r.volumes, &r.pools, &r.moves, &r.nodes, &r.registrations}
}

// clusterFacts reads from informers, which the first scrape begins: a process that does not lead
// needs none of them. It waits until they have everything.
func clusterFacts(ctx context.Context, in client.Reader, plugins *pluginPods) (f metrics.ClusterFacts, err error) {
	var r recordLists
	for _, list := range r.all() {
		// Nothing is written to what is read here.
		if err := in.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return f, fmt.Errorf("list %T: %w", list, err)
		}
	}
	f = metrics.ClusterFacts{Volumes: r.volumes.Items, Pools: r.pools.Items, Moves: r.moves.Items, Ready: map[string]bool{}, Registered: map[string]bool{}}
	for i := range r.nodes.Items {
		n := &r.nodes.Items[i]
		f.Ready[n.Name] = kube.NodeReady(n)
	}
	for i := range r.registrations.Items {
		n := &r.registrations.Items[i]
		f.Registered[n.Name] = kube.Registered(n, driver.Name)
	}
	if plugins == nil {
		return f, nil
	}
	pods := &corev1.PodList{}
	// The informer has no others (cacheOptions).
	if err := in.List(ctx, pods, client.InNamespace(plugins.namespace), client.UnsafeDisableDeepCopy); err != nil {
		// All else is of volumes at risk, and does not rest on pods.
		klog.FromContext(ctx).Error(err, "It is not known where the node plugin never started")
	}
	for i := range pods.Items {
		f.Planned = append(f.Planned, pods.Items[i].Spec.NodeName)
	}
	return f, nil
}

// storageWatch asks a storage server how it is, while this process leads.
type storageWatch struct {
	storage backend.Reporter
	address string
	// keep keeps an answer where people can read it.
	keep func(context.Context, reported.Answer) error

	mu   sync.Mutex
	said *metrics.StorageServer
}

// Start implements manager.Runnable.
func (w *storageWatch) Start(ctx context.Context) error {
	for {
		said, answer := w.ask(ctx)
		w.mu.Lock()
		w.said = &said
		w.mu.Unlock()
		w.tell(ctx, answer)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(storageInterval):
		}
	}
}

// tell keeps an answer where people can read it.
func (w *storageWatch) tell(ctx context.Context, a reported.Answer) {
	ctx, cancel := context.WithTimeout(ctx, health.CheckTimeout)
	defer cancel()
	if err := w.keep(ctx, a); err != nil {
		klog.FromContext(ctx).Error(err, "doctor will not know how the storage server is", "address", w.address)
	}
}

func (w *storageWatch) ask(ctx context.Context) (metrics.StorageServer, reported.Answer) {
	asked := metav1.Now()
	r, err := w.report(ctx)
	if err != nil || len(r.Problems) > 0 {
		klog.FromContext(ctx).Info("The storage server is not well", "address", w.address, "problems", r.Problems, "err", preflight.StorageServer(w.address, err))
	}
	return metrics.StorageServer{
		Address: w.address, Up: err == nil, Healthy: len(r.Problems) == 0, CapacityBytes: r.CapacityBytes, UsedBytes: r.UsedBytes,
		MetadataRatio: r.MetadataRatio, ServerNotAfter: r.ServerNotAfter, ClientNotAfter: r.ClientNotAfter,
	}, answerOf(w.address, asked, r, err)
}

func (w *storageWatch) report(ctx context.Context) (backend.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, health.CheckTimeout)
	defer cancel()
	return w.storage.Report(ctx)
}

// answerOf is what people read of an answer.
func answerOf(address string, asked metav1.Time, r backend.Report, err error) reported.Answer {
	a := reported.Answer{Address: address, Asked: asked, Problems: r.Problems, CapacityBytes: r.CapacityBytes, UsedBytes: r.UsedBytes, MetadataRatio: r.MetadataRatio}
	if err != nil {
		a.Error = err.Error()
	}
	if !r.ServerNotAfter.IsZero() {
		a.ServerNotAfter = new(metav1.NewTime(r.ServerNotAfter))
	}
	if !r.ClientNotAfter.IsZero() {
		a.ClientNotAfter = new(metav1.NewTime(r.ClientNotAfter))
	}
	return a
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
