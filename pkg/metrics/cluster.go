package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// ClusterFacts are the records of all volumes and nodes.
type ClusterFacts struct {
	Volumes []v1alpha1.CachedVolume
	Pools   []v1alpha1.CachePool
	Moves   []v1alpha1.CacheMigration
	// Ready has the nodes of the cluster, and whether Kubernetes says that they are ready.
	Ready map[string]bool
	// Registered are the nodes whose kubelet knows the node plugin.
	Registered map[string]bool
	// Planned are the nodes with a pod of the node plugin, whatever its state.
	Planned []string
}

// StorageServer is what a storage server said of itself when it was last asked.
type StorageServer struct {
	Address string
	// Up says that it answered, Healthy that it has no problem.
	Up, Healthy bool
	// CapacityBytes and UsedBytes are those of the thin pool, or of the volume group where
	// volumes are thick by default; 0 and 0 while they are not known.
	CapacityBytes, UsedBytes int64
	// MetadataRatio is how much of the thin pool's metadata is used, from 0 to 1.
	MetadataRatio float64
	// ServerNotAfter and ClientNotAfter are when the certificates end of the last connection;
	// zero while there was none.
	ServerNotAfter, ClientNotAfter time.Time
}

// Cluster exports what the controller knows of volumes and nodes, also of nodes that export
// nothing any more. Of several controllers the one that leads exports.
type Cluster struct {
	// Leads is closed once this process leads.
	Leads <-chan struct{}
	// Gather returns the facts.
	Gather func(context.Context) (ClusterFacts, error)
	// Stale says why the facts may be of before, and nil if they are not: what Gather reads from
	// does not know when nothing new comes any more.
	Stale func() error
	// Storage returns the storage servers that were asked.
	Storage func() []StorageServer
	// Now is the clock's.
	Now func() time.Time

	descs map[string]desc
}

// NewCluster returns a Cluster without storage servers.
func NewCluster(leads <-chan struct{}, gather func(context.Context) (ClusterFacts, error), now func() time.Time) *Cluster {
	return &Cluster{Leads: leads, Gather: gather, Stale: func() error { return nil }, Storage: func() []StorageServer { return nil }, Now: now, descs: descsOf(clusterTable())}
}

// Describe implements prometheus.Collector.
func (c *Cluster) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d.Desc
	}
}

// Collect implements prometheus.Collector.
func (c *Cluster) Collect(ch chan<- prometheus.Metric) {
	leads := false
	select {
	case <-c.Leads:
		leads = true
	default:
	}
	own := emitter{c.descs, ch, nil}
	if own.put(nameControllerLeads, number(leads)); !leads {
		return
	}
	for _, s := range c.Storage() {
		emitter{c.descs, ch, []string{s.Address}}.storage(s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	facts, err := c.Gather(ctx)
	// What is stale is served all the same: a volume that waited for its node does so still.
	if own.put(nameControllerSees, number(err == nil && c.Stale() == nil)); err != nil {
		// The reason gets into the log. What else there is is served all the same (Handler).
		ch <- prometheus.NewInvalidMetric(c.descs[nameAtRiskLost].Desc, err)
		return
	}
	c.records(ch, &facts)
}

// records emits what the records of volumes and nodes say.
func (c *Cluster) records(ch chan<- prometheus.Metric, facts *ClusterFacts) {
	for _, r := range atRisk(facts) {
		e := emitter{c.descs, ch, []string{r.pv, r.namespace, r.claim, r.node}}
		e.put(nameAtRiskLost, number(r.lost))
		if r.bytes != nil {
			e.put(nameAtRiskBytes, float64(*r.bytes))
		}
		if !r.since.IsZero() {
			e.put(nameAtRiskAge, max(0, c.Now().Sub(r.since).Seconds()))
		}
	}
	for _, n := range nodesOf(facts) {
		e := emitter{c.descs, ch, []string{n.name}}
		e.put(nameNodeRegistered, number(n.registered))
		if n.devices {
			e.put(nameNodePoolReady, number(n.ready))
		}
	}
	for outcome, n := range movesOf(facts) {
		emitter{c.descs, ch, nil}.put(nameClusterMoves, float64(n), outcome)
	}
}

func (e emitter) storage(s StorageServer) {
	e.put(nameStorageUp, number(s.Up))
	e.put(nameStorageHealthy, number(s.Up && s.Healthy))
	if s.CapacityBytes > 0 {
		e.put(nameStorageCapacity, float64(s.CapacityBytes))
		e.put(nameStorageUsed, float64(s.UsedBytes))
		e.put(nameStorageMetadata, s.MetadataRatio)
	}
	for certificate, end := range map[string]time.Time{"server": s.ServerNotAfter, "client": s.ClientNotAfter} {
		if !end.IsZero() {
			e.put(nameStorageCertificate, float64(end.Unix()), certificate)
		}
	}
}

// riskyVolume is a volume whose newest writes may be on the SSD of one node alone, where no pod
// works with it.
type riskyVolume struct {
	pv, namespace, claim, node string
	// lost says that the node is not ready, or gone: the volume waits for it.
	lost bool
	// bytes is what the node last reported as unflushed, nil if it never did.
	bytes *int64
	// since is when nothing was unflushed for the last time that is known; zero if never.
	since time.Time
}

// atRisk are the volumes whose record says PossiblyDirty while the node that has the writes is
// lost, or the volume is published nowhere (states.md, The record). A volume at work on a node
// that is ready is reported by that node.
func atRisk(f *ClusterFacts) (out []riskyVolume) {
	for i := range f.Volumes {
		v := &f.Volumes[i]
		lost := !f.Ready[v.Status.OwnerNode]
		if v.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty || v.Status.Publication == v1alpha1.PublicationPublished && !lost {
			continue
		}
		r := riskyVolume{pv: v.Status.PersistentVolumeName, node: v.Status.OwnerNode, lost: lost, bytes: v.Status.Cache.DirtyBytes, since: v.Status.Cache.DirtySinceTime.Time}
		if r.pv == "" {
			r.pv = v.Name // two volumes without a name would be one series
		}
		if r.since.IsZero() {
			r.since = v.Status.Cache.ObservedTime.Time
		}
		if claim := v.Spec.ClaimRef; claim != nil {
			r.namespace, r.claim = claim.Namespace, claim.Name
		}
		out = append(out, r)
	}
	return out
}

// poolNode is a node where the node plugin was, or is to be.
type poolNode struct {
	name              string
	ready, registered bool
	// devices says that it has SSDs for a pool.
	devices bool
}

// nodesOf are the nodes that the cluster still has with a CachePool, or with a pod of the node
// plugin, which may never have started there.
func nodesOf(f *ClusterFacts) (out []poolNode) {
	seen := map[string]bool{}
	for i := range f.Pools {
		p := &f.Pools[i]
		if _, there := f.Ready[p.Name]; !there {
			continue
		}
		n := poolNode{name: p.Name, registered: f.Registered[p.Name], devices: true}
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			n.ready, n.devices = ready.Status == metav1.ConditionTrue, ready.Reason != v1alpha1.ReasonNoDevices
		}
		seen[n.name] = true
		out = append(out, n)
	}
	for _, name := range f.Planned {
		if _, there := f.Ready[name]; there && !seen[name] {
			seen[name] = true
			out = append(out, poolNode{name: name, registered: f.Registered[name]})
		}
	}
	return out
}

// movesOf counts the CacheMigrations by how they ended; "running" are those that have not.
func movesOf(f *ClusterFacts) map[string]int {
	out := map[string]int{"running": 0}
	for _, o := range []v1alpha1.MigrationOutcome{v1alpha1.MigrationCompleted, v1alpha1.MigrationEnded, v1alpha1.MigrationFailed} {
		out[label(o)] = 0
	}
	for i := range f.Moves {
		outcome := "running"
		if o := f.Moves[i].Status.Outcome; o != "" {
			outcome = label(o)
		}
		out[outcome]++
	}
	return out
}
