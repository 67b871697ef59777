package metrics_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/metrics"
)

// recorded is the record of a volume of claim shop/NAME on a node.
func recorded(name, node string, dirty v1alpha1.DirtyState, p v1alpha1.PublicationState) v1alpha1.CachedVolume {
	return v1alpha1.CachedVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.CachedVolumeSpec{ClaimRef: &v1alpha1.ClaimReference{Namespace: "shop", Name: "claim-" + name}},
		Status:     v1alpha1.CachedVolumeStatus{OwnerNode: node, DirtyState: dirty, Publication: p, PersistentVolumeName: "pv-" + name},
	}
}

func poolOf(node, reason string, ready metav1.ConditionStatus) v1alpha1.CachePool {
	return v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: v1alpha1.CachePoolStatus{
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: ready, Reason: reason}},
	}}
}

func clusterFacts() metrics.ClusterFacts {
	const dirty, published, released = v1alpha1.DirtyStatePossiblyDirty, v1alpha1.PublicationPublished, v1alpha1.PublicationReleased
	waits := recorded("waits", "down", dirty, published)
	waits.Status.Cache = v1alpha1.CacheStatus{DirtyBytes: ptr.To(int64(4096)), DirtySinceTime: metav1.NewTime(noon.Add(-time.Hour)), ObservedTime: metav1.NewTime(noon.Add(-time.Minute))}
	flushes := recorded("flushes", "up", dirty, released)
	flushes.Status.Cache = v1alpha1.CacheStatus{DirtyBytes: ptr.To(int64(0)), ObservedTime: metav1.NewTime(noon.Add(-time.Minute))}
	nameless := recorded("nameless", "gone", dirty, released)
	nameless.Status.PersistentVolumeName, nameless.Spec.ClaimRef = "", nil
	return metrics.ClusterFacts{
		Volumes: []v1alpha1.CachedVolume{
			waits, flushes, nameless, recorded("works", "up", dirty, published),
			recorded("clean", "down", v1alpha1.DirtyStateClean, published), recorded("new", "", "", ""),
		},
		Pools: []v1alpha1.CachePool{
			poolOf("up", v1alpha1.ReasonPoolReady, metav1.ConditionTrue), poolOf("down", v1alpha1.ReasonPoolError, metav1.ConditionFalse),
			poolOf("gone", v1alpha1.ReasonPoolReady, metav1.ConditionTrue), poolOf("bare", v1alpha1.ReasonNoDevices, metav1.ConditionFalse),
			{ObjectMeta: metav1.ObjectMeta{Name: "fresh"}},
		},
		Moves: []v1alpha1.CacheMigration{
			{}, {Status: v1alpha1.CacheMigrationStatus{Outcome: v1alpha1.MigrationFailed}}, {Status: v1alpha1.CacheMigrationStatus{Outcome: v1alpha1.MigrationFailed}},
		},
		Ready: map[string]bool{"up": true, "down": false, "bare": true, "fresh": true, "never": true, "other": true},
		// The plugin of one has never started; another one is gone, and one pod has no node yet.
		Planned:    []string{"up", "never", "left", ""},
		Registered: map[string]bool{"up": true, "gone": true, "bare": true},
	}
}

func newCluster(leads bool, facts metrics.ClusterFacts, err error) *metrics.Cluster {
	elected := make(chan struct{})
	if leads {
		close(elected)
	}
	c := metrics.NewCluster(elected, func(context.Context) (metrics.ClusterFacts, error) { return facts, err }, func() time.Time { return noon })
	c.Storage = func() []metrics.StorageServer {
		return []metrics.StorageServer{
			{Address: "a:1", Up: true, Healthy: true, CapacityBytes: 100, UsedBytes: 86, MetadataRatio: 0.25, ServerNotAfter: time.Unix(2000, 0), ClientNotAfter: time.Unix(1000, 0)},
			{Address: "b:1", Healthy: true},
		}
	}
	return c
}

func TestCluster(t *testing.T) {
	want := `
nearflash_cachemigrations{outcome="completed"} 0
nearflash_cachemigrations{outcome="ended"} 0
nearflash_cachemigrations{outcome="failed"} 2
nearflash_cachemigrations{outcome="running"} 1
nearflash_controller_cluster_visible 1
nearflash_controller_leads 1
nearflash_node_plugin_registered{node="bare"} 1
nearflash_node_plugin_registered{node="down"} 0
nearflash_node_plugin_registered{node="fresh"} 0
nearflash_node_plugin_registered{node="never"} 0
nearflash_node_plugin_registered{node="up"} 1
nearflash_node_pool_ready{node="down"} 0
nearflash_node_pool_ready{node="fresh"} 0
nearflash_node_pool_ready{node="up"} 1
nearflash_storage_server_capacity_bytes{address="a:1"} 100
nearflash_storage_server_certificate_not_after_timestamp_seconds{address="a:1",certificate="client"} 1000
nearflash_storage_server_certificate_not_after_timestamp_seconds{address="a:1",certificate="server"} 2000
nearflash_storage_server_healthy{address="a:1"} 1
nearflash_storage_server_healthy{address="b:1"} 0
nearflash_storage_server_metadata_used_ratio{address="a:1"} 0.25
nearflash_storage_server_up{address="a:1"} 1
nearflash_storage_server_up{address="b:1"} 0
nearflash_storage_server_used_bytes{address="a:1"} 86
nearflash_unflushed_volume_age_seconds{namespace="shop",node="down",pv="pv-waits",pvc="claim-waits"} 3600
nearflash_unflushed_volume_age_seconds{namespace="shop",node="up",pv="pv-flushes",pvc="claim-flushes"} 60
nearflash_unflushed_volume_bytes{namespace="shop",node="down",pv="pv-waits",pvc="claim-waits"} 4096
nearflash_unflushed_volume_bytes{namespace="shop",node="up",pv="pv-flushes",pvc="claim-flushes"} 0
nearflash_unflushed_volume_node_lost{namespace="",node="gone",pv="nameless",pvc=""} 1
nearflash_unflushed_volume_node_lost{namespace="shop",node="down",pv="pv-waits",pvc="claim-waits"} 1
nearflash_unflushed_volume_node_lost{namespace="shop",node="up",pv="pv-flushes",pvc="claim-flushes"} 0
`
	if err := testutil.CollectAndCompare(newCluster(true, clusterFacts(), nil), withHelp(want)); err != nil {
		t.Error(err)
	}
}

// withHelp is the text of gauges with the lines that the format wants before each.
func withHelp(want string) *strings.Reader {
	var text strings.Builder
	last := ""
	for line := range strings.Lines(strings.TrimPrefix(want, "\n")) {
		if name := line[:strings.IndexAny(line, "{ ")]; name != last {
			last = name
			for _, m := range metrics.Table() {
				if m.Name == name {
					text.WriteString("# HELP " + name + " " + m.Help + "\n# TYPE " + name + " gauge\n")
				}
			}
		}
		text.WriteString(line)
	}
	return strings.NewReader(text.String())
}

// TestClusterDoesNotLead: of several controllers one exports figures, and each whether it leads.
func TestClusterDoesNotLead(t *testing.T) {
	if err := testutil.CollectAndCompare(newCluster(false, clusterFacts(), nil), withHelp("nearflash_controller_leads 0\n")); err != nil {
		t.Error(err)
	}
}

// TestClusterBlind: a scrape of a controller that cannot read the records says so, and has what
// does not rest on them.
func TestClusterBlind(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(newCluster(true, metrics.ClusterFacts{}, errors.New("no informers")))
	if _, err := r.Gather(); err == nil || !strings.Contains(err.Error(), "no informers") {
		t.Errorf("the log would lack the reason: %v", err)
	}
	answer := httptest.NewRecorder()
	metrics.Handler(t.Context(), r).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	body := answer.Body.String()
	for _, want := range []string{"nearflash_controller_leads 1", "nearflash_controller_cluster_visible 0", `nearflash_storage_server_up{address="a:1"} 1`} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("status %d, %q is not in:\n%s", answer.Code, want, body)
		}
	}
}

// TestClusterStale: what may be old is served, and said to be so.
func TestClusterStale(t *testing.T) {
	c := newCluster(true, clusterFacts(), nil)
	c.Stale = func() error { return errors.New("no role") }
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	answer := httptest.NewRecorder()
	metrics.Handler(t.Context(), r).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	for _, want := range []string{"nearflash_controller_cluster_visible 0\n", "nearflash_unflushed_volume_node_lost{"} {
		if body := answer.Body.String(); !strings.Contains(body, want) {
			t.Errorf("status %d, %q is not in:\n%s", answer.Code, want, body)
		}
	}
}
