package epoch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cluster is what survives the controllers of one cluster: its objects.
type cluster struct {
	objects client.WithWatch
	storage *backendtest.Server
	events  *events.FakeRecorder
	clock   *testclock.FakeClock
	// step, when set, is asked before (done false) and after each write of an object.
	step func(op string, done bool) error
}

func newCluster(storage *backendtest.Server) *cluster {
	return &cluster{
		objects: fake.NewClientBuilder().Build(), storage: storage, events: events.NewFakeRecorder(100),
		clock: testclock.NewFakeClock(time.Unix(1e9, 0)),
	}
}

// object returns the object with the records, as etcd has it; nil if there is none.
func (c *cluster) object(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	obj := &corev1.ConfigMap{}
	err := c.objects.Get(context.WithoutCancel(t.Context()), client.ObjectKey{Namespace: namespace, Name: RecordName}, obj)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return obj
}

func (c *cluster) record(t *testing.T) Record {
	t.Helper()
	obj := c.object(t)
	if obj == nil {
		return Record{}
	}
	r, err := Decode(obj, server)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// setBack gives the cluster the objects of a backup; nil is one without records.
func (c *cluster) setBack(t *testing.T, backup *corev1.ConfigMap) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if now := c.object(t); now != nil {
		if err := c.objects.Delete(ctx, now); err != nil {
			t.Fatal(err)
		}
	}
	if backup == nil {
		return
	}
	backup = backup.DeepCopy()
	backup.ResourceVersion = ""
	if err := c.objects.Create(ctx, backup); err != nil {
		t.Fatal(err)
	}
}

// copied returns a second cluster made from a copy of etcd.
func (c *cluster) copied(t *testing.T) *cluster {
	t.Helper()
	out := newCluster(c.storage)
	out.setBack(t, c.object(t))
	return out
}

// consent is what `kubectl nearflash takeover` does.
func (c *cluster) consent(t *testing.T) {
	t.Helper()
	obj, rec := c.object(t), c.record(t)
	if rec.Refused == nil {
		t.Fatal("nothing is refused")
	}
	rec.Takeover = &Takeover{Epoch: rec.Refused.Epoch, Time: metav1.Unix(1, 0), By: "admin"}
	if err := errors.Join(Encode(obj, server, rec), c.objects.Update(t.Context(), obj)); err != nil {
		t.Fatal(err)
	}
}

// controller starts a process.
func (c *cluster) controller() *Keeper {
	between := func(op string, act func() error) error {
		if c.step != nil {
			if err := c.step(op, false); err != nil {
				return err
			}
		}
		if err := act(); err != nil || c.step == nil {
			return err
		}
		return c.step(op, true)
	}
	api := interceptor.NewClient(c.objects, interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return between("record", func() error { return api.Create(ctx, obj, opts...) })
		},
		Update: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return between("record", func() error { return api.Update(ctx, obj, opts...) })
		},
	})
	return New(Config{Namespace: namespace, Storage: c.storage, Events: c.events, Clock: c.clock, Client: api})
}

// newStorage returns a server with a volume v, to which an initiator is admitted.
func newStorage(t *testing.T) *backendtest.Server {
	t.Helper()
	s := backendtest.New(1 << 30)
	if err := s.Create(t.Context(), "v", backend.Request{SizeBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Export(t.Context(), "v", backendtest.Grant(initiator, 1)); err != nil {
		t.Fatal(err)
	}
	return s
}

// orders gives the server one order of each kind; what they do is the same each time.
func orders(ctx context.Context, k *Keeper) []error {
	_, exportErr := k.Export(ctx, "v", backendtest.Grant(initiator, 1))
	_, expandErr := k.Expand(ctx, "v", 1<<20)
	_, cutErr := k.Cut(ctx, "s", "v", backend.CutRequest{Hold: "h"})
	return []error{
		exportErr, expandErr, cutErr, k.Accept(ctx, "s", "h"), k.DropCut(ctx, "none", "h"), k.DeleteCut(ctx, "none"),
		k.Create(ctx, "v", backend.Request{SizeBytes: 1 << 20}),
		k.Unexport(ctx, "v", backend.Export{Initiator: initiator, Admission: "a-former-one"}),
		k.Delete(ctx, "none"),
	}
}

func wantOrders(t *testing.T, what string, k *Keeper, refused bool) {
	t.Helper()
	before := len(k.Backend.(*backendtest.Server).Calls())
	for i, err := range orders(t.Context(), k) {
		var r *RefusedError
		if refused && (!errors.As(err, &r) || !errors.Is(err, volume.ErrFenced) || !strings.Contains(err.Error(), "kubectl nearflash takeover")) {
			t.Errorf("%s: order %d: %v, want a refusal with the remedy", what, i, err)
		}
		if !refused && err != nil {
			t.Errorf("%s: order %d: %v", what, i, err)
		}
	}
	if calls := k.Backend.(*backendtest.Server).Calls()[before:]; refused && len(calls) > 0 {
		t.Errorf("%s: a refused controller has done %v", what, calls)
	}
	if _, err := k.Access(t.Context(), "v"); err != nil {
		t.Errorf("%s: looking: %v", what, err)
	}
}

// steps counts the writes of one swap: intent, swap and confirmation.
func (c *cluster) steps(t *testing.T, hook func(n int) error) func() {
	t.Helper()
	n := 0
	count := func(op string, _ bool) error {
		if op != "record" && op != "swap" {
			return nil
		}
		n++
		return hook(n)
	}
	c.step, c.storage.Step = count, count
	return func() { c.step, c.storage.Step = nil, nil }
}
