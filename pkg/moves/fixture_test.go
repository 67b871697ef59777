package moves_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

const initiatorB = "iqn.1993-08.org.debian:01:b"

// testPort is where the nodes of these tests export, and testStreamPort where they send from.
const (
	testPort       = 3260
	testStreamPort = 3263
)

// fixture is a volume that moves from node A to node B, over a real API server.
type fixture struct {
	t      *testing.T
	cfg    *rest.Config
	api    client.WithWatch
	b      *moves.Destination
	events *events.FakeRecorder
	lessor *lessor
	id     volume.ID
	fence  volume.Fence
	// nodeA and nodeB are this test's own: the tests share the server.
	nodeA, nodeB string
}

func newFixture(t *testing.T, cfg *rest.Config, name string) *fixture {
	t.Helper()
	f := &fixture{
		t: t, cfg: cfg, api: apiserver.Client(t, cfg), events: events.NewFakeRecorder(100),
		nodeA: name + "-a", nodeB: name + "-b",
	}
	f.b = moves.NewDestination(f.api, f.events, time.Now, testPort, testStreamPort)
	f.lessor = newLessor(map[volume.ID]int64{})
	f.lessor.node = f.nodeA
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.nodeA}}
	must(t, f.api.Create(t.Context(), node))
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	must(t, f.api.Status().Update(t.Context(), node))
	f.id, f.fence = f.volume(name)
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: f.nodeB}}
	must(t, f.api.Create(t.Context(), pool))
	pool.Status.InitiatorIQN = initiatorB
	must(t, f.api.Status().Update(t.Context(), pool))
	return f
}

// volume makes a volume with a retained cache of generation 1 on A, owned by B.
func (f *fixture) volume(name string) (volume.ID, volume.Fence) {
	f.t.Helper()
	id := volume.ID(name)
	obj := records.NewObject(id, volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, CapacityBytes: 1 << 30})
	must(f.t, f.api.Create(f.t.Context(), obj))
	f.lessor.mu.Lock()
	defer f.lessor.mu.Unlock()
	f.lessor.retainedCaches[id] = 1
	return id, volume.Fence{UID: string(obj.UID), Generation: 2, Node: f.nodeB}
}

func (f *fixture) request() volume.MoveRequest {
	return volume.MoveRequest{
		Volume: f.id, Fence: f.fence, Source: &volume.WarmSource{Node: f.nodeA, Generation: 1},
		Bandwidth: 100 << 20, Deadline: time.Now().Add(time.Hour),
	}
}

// source runs node A until the test or the returned function ends it.
func (f *fixture) source() (stop func()) {
	f.t.Helper()
	_, stop = f.runSource()
	return stop
}

func (f *fixture) runSource() (s *moves.Source, stop func()) {
	f.t.Helper()
	scheme, err := kube.NewScheme()
	must(f.t, err)
	ctx, cancel := context.WithCancel(f.t.Context())
	s, err = moves.NewSource(ctx, f.cfg, scheme, moves.SourceConfig{
		Node: f.nodeA, Lessor: f.lessor, Client: f.api, Now: time.Now, Resync: time.Second, Grace: 2 * time.Second,
	})
	must(f.t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			f.t.Errorf("source: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	f.t.Cleanup(stop)
	return s, stop
}

// answer answers the move of the fixture once, in the place of node A.
func (f *fixture) answer(a v1alpha1.MigrationSource) {
	f.t.Helper()
	ctx := f.t.Context()
	go func() {
		key := types.NamespacedName{Name: moves.Name(f.id, 2)}
		for ctx.Err() == nil {
			obj := &v1alpha1.CacheMigration{}
			if f.api.Get(ctx, key, obj) == nil {
				obj.Status.Source = a
				if f.api.Status().Update(ctx, obj) == nil {
					return
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
}

func (f *fixture) begin() (volume.MoveID, *volume.Lease, error) {
	f.t.Helper()
	return f.beginFor(20 * time.Second)
}

func (f *fixture) beginFor(d time.Duration) (volume.MoveID, *volume.Lease, error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), d)
	defer cancel()
	return f.b.Begin(ctx, f.request())
}

func (f *fixture) mustBegin() (volume.MoveID, *volume.Lease) {
	f.t.Helper()
	m, lease, err := f.begin()
	must(f.t, err)
	if lease == nil {
		f.t.Fatal("no lease")
	}
	return m, lease
}

func (f *fixture) load(m volume.MoveID) *v1alpha1.CacheMigration {
	f.t.Helper()
	obj := &v1alpha1.CacheMigration{}
	must(f.t, f.api.Get(f.t.Context(), types.NamespacedName{Name: m.Name}, obj))
	return obj
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) eventually(what string, ok func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			f.t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (f *fixture) wantState(m volume.MoveID, want v1alpha1.ExportState) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("source says %s", want), func() bool { return f.load(m).Status.Source.State == want })
	exported, err := f.b.Exported(f.t.Context(), m)
	if err != nil || exported != (want == v1alpha1.ExportStateExported) {
		f.t.Errorf("Exported is %v, %v; the source says %s", exported, err, want)
	}
}

// wantNoSecret looks for the password in everything that the API server keeps of
// nearflash, and in the events.
func (f *fixture) wantNoSecret(password string) {
	f.t.Helper()
	var all []byte
	for _, kind := range []string{"CacheMigration", "CachedVolume", "CachePool"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
		must(f.t, f.api.List(f.t.Context(), list))
		b, err := json.Marshal(list.Items)
		must(f.t, err)
		if kind == "CacheMigration" && !strings.Contains(string(b), string(f.id)) {
			f.t.Error("the move is not among the objects: the search proves nothing")
		}
		all = append(all, b...)
	}
	for len(f.events.Events) > 0 {
		all = append(all, <-f.events.Events...)
	}
	for _, form := range []string{password, base64.StdEncoding.EncodeToString([]byte(password)), hex.EncodeToString([]byte(password))} {
		if strings.Contains(string(all), form) {
			f.t.Error("the secret is in an object")
		}
	}
}
