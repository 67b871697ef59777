package csi

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
	"github.com/nearflash/nearflash/pkg/volume"
)

const mib = 1 << 20

// fixture is a Backend over a real API server, with a stand-in for all that serves claims.
type fixture struct {
	*csitest.Cluster
	b   *Backend
	api client.WithWatch
	// strict is the other driver's controller.
	strict *origintest.Driver
}

func newFixture(t *testing.T, cfg *rest.Config, name string) *fixture {
	t.Helper()
	api := apiserver.Client(t, cfg)
	f := &fixture{Cluster: csitest.Start(t, api, name, 256*mib), api: api}
	f.b = f.backend(api, 20*time.Second)
	f.strict = origintest.New(origintest.Config{
		Name: f.Driver, Node: "a", Kubelet: t.TempDir(), Capabilities: origintest.Capabilities{Attach: true}, Devices: &origintest.Files{Root: t.TempDir()},
	})
	f.Sidecars(f.strict)
	t.Cleanup(func() {
		if wrong := f.Wrong(); len(wrong) > 0 {
			t.Errorf("%q", wrong)
		}
		if breaches, err := f.strict.Breaches(); err != nil || len(breaches) > 0 {
			t.Errorf("breaches of the CSI specification: %q, %v", breaches, err)
		}
	})
	return f
}

func (f *fixture) backend(api client.Client, patience time.Duration) *Backend {
	return New(Config{Client: api, Namespace: f.Namespace, Driver: "csi.nearflash.io", Patience: patience})
}

// wantBusy wants a call to end with ErrBusy that does not wait long. One whose time was over in
// the middle of a read, because the machine is slow, is made again.
func (f *fixture) wantBusy(t *testing.T, call func(b *Backend) error, words ...string) {
	t.Helper()
	err := volume.ErrUnavailable
	for patience := 150 * time.Millisecond; errors.Is(err, volume.ErrUnavailable) && t.Context().Err() == nil; patience *= 2 {
		err = call(f.backend(f.api, patience))
	}
	want(t, err, volume.ErrBusy, words...)
}

func (f *fixture) request(size int64) backend.Request {
	return backend.Request{SizeBytes: size, Origin: volume.Origin{StorageClass: f.Class("")}, UID: "uid"}
}

func (f *fixture) grant(node string, generation int64) backend.Grant {
	return backend.Grant{Node: f.Node(node), Generation: generation}
}

// make makes a volume of 8 MiB.
func (f *fixture) make(t *testing.T, id volume.ID) {
	t.Helper()
	must(t, f.b.Create(t.Context(), id, f.request(8*mib)))
}

func (f *fixture) claim(t *testing.T, id volume.ID) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	must(t, f.api.Get(t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: string(id)}, claim))
	return claim
}

func (f *fixture) pv(t *testing.T, id volume.ID) *corev1.PersistentVolume {
	t.Helper()
	pv := &corev1.PersistentVolume{}
	must(t, f.api.Get(t.Context(), client.ObjectKey{Name: f.claim(t, id).Spec.VolumeName}, pv))
	return pv
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want fails unless err is of a kind and says each of the words.
func want(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got %v, want %v", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

// TestBackend runs everything that needs the API server, which is started once.
func TestBackend(t *testing.T) {
	cfg := apiserver.Start(t)
	t.Run("conformance", func(t *testing.T) { testConformance(t, cfg) })
	for name, test := range map[string]func(*testing.T, *fixture){
		"create": testCreate, "refusals": testRefusals, "late": testLate, "static": testStatic, "reach": testReach,
		"admit": testAdmit, "no-attach": testNoAttach, "foreign": testForeign, "slow": testSlow, "limit": testLimit, "admitted": testAdmitted,
		"expand": testExpand, "delete": testDelete, "translated": testKinds,
		"killed": testKilled, "killed-then-moved": testKilledThenMoved, "stalled": testStalled, "race": testRace,
	} {
		t.Run(name, func(t *testing.T) { test(t, newFixture(t, cfg, "t-"+name)) })
	}
}

// spoken is a Backend for who speaks of initiators and of the provisioning of a storage server.
type spoken struct {
	*Backend
	f *fixture
}

func testConformance(t *testing.T, cfg *rest.Config) {
	var mu sync.Mutex
	n := 0
	backendtest.Conformance(t, func(t *testing.T) backend.Backend {
		mu.Lock()
		n++
		name := "conform-" + string(rune('a'+n))
		mu.Unlock()
		f := newFixture(t, cfg, name)
		return &spoken{Backend: f.b, f: f}
	}, "account", "capacity", "epoch", "readers")
}

// node is the node of an initiator name.
func (s *spoken) node(initiator string) string {
	if initiator == "" {
		return ""
	}
	return s.f.Node(strings.ToLower(initiator[strings.LastIndex(initiator, ":")+1:]))
}

// Create implements backend.Backend.
func (s *spoken) Create(ctx context.Context, id volume.ID, req backend.Request) error {
	req.Origin.StorageClass, req.Provisioning = s.f.Class(req.Provisioning), ""
	return s.Backend.Create(ctx, id, req)
}

// Export implements backend.Backend.
func (s *spoken) Export(ctx context.Context, id volume.ID, g backend.Grant) (volume.Source, error) {
	g.Node = s.node(g.Initiator)
	return s.Backend.Export(ctx, id, g)
}

// Unexport implements backend.Backend.
func (s *spoken) Unexport(ctx context.Context, id volume.ID, e backend.Export) error {
	e.Initiator = s.node(e.Initiator)
	return s.Backend.Unexport(ctx, id, e)
}

// Access implements backend.Backend.
func (s *spoken) Access(ctx context.Context, id volume.ID) (backend.Access, error) {
	a, err := s.Backend.Access(ctx, id)
	for i := range a.Exports {
		node := a.Exports[i].Initiator
		a.Exports[i].Initiator = "iqn.1993-08.org.debian:01:" + node[len(node)-1:]
	}
	return a, err
}

// AdmittedHosts implements backend.Backend.
func (s *spoken) AdmittedHosts(ctx context.Context) (map[string]volume.ID, error) {
	all, err := s.Backend.AdmittedHosts(ctx)
	out := map[string]volume.ID{}
	for _, initiator := range []string{"iqn.1993-08.org.debian:01:a", "iqn.1993-08.org.debian:01:b"} {
		if id, ok := all[s.node(initiator)]; ok {
			out[initiator] = id
		}
	}
	return out, err
}

func TestNoEpochs(t *testing.T) {
	b := New(Config{})
	if b.namespace != "nearflash-origins" {
		t.Errorf("namespace %q", b.namespace)
	}
	_, err := b.Epoch(t.Context())
	want(t, err, backend.ErrNoEpochs)
	want(t, b.SwapEpoch(t.Context(), "", "x"), backend.ErrNoEpochs)
	if free, err := b.Capacity(t.Context()); free != math.MaxInt64 || err != nil {
		t.Errorf("capacity %d, %v", free, err)
	}
}
