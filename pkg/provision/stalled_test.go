package provision

import (
	"errors"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/volume"
)

// second returns a Service of another controller, which has taken over.
func (f *fixture) second(t *testing.T, cfg *rest.Config) *fixture {
	t.Helper()
	other := newFixture(t, cfg, f.id)
	other.storage = f.storage
	other.svc = New(Config{Client: other.client, Servers: one(f.storage), Events: other.events})
	f.storage.Step = f.recordStep
	return other
}

// stall lets meanwhile happen when everything is decided, and the order to end an
// admission is about to be sent.
func (f *fixture) stall(meanwhile func()) {
	f.fail = func(step string, done bool) error {
		if step != "unexport" || done {
			return nil
		}
		f.fail = nil
		f.storage.Step = nil // f is busy in this very step
		meanwhile()
		f.storage.Step = f.recordStep
		return nil
	}
}

// testLateOrder: a controller has asked whom the server admits, has judged the record,
// and stalls before its order. Meanwhile the next one admits the same node again. The
// order is for the admission that was asked about, and must not end the next.
func testLateOrder(t *testing.T, cfg *rest.Config, f *fixture) {
	never := spec()
	never.Mode, never.AcceptNodeLoss = volume.ModeWritethrough, false
	if _, err := f.svc.Create(t.Context(), f.id, never); err != nil {
		t.Fatal(err)
	}
	other := f.second(t, cfg)
	publish := func(node string) error {
		_, err := f.svc.Publish(t.Context(), f.id, node, nil, chap)
		return err
	}
	for i, tc := range []struct {
		act  func() error
		want error
	}{
		{func() error { return f.svc.Settle(t.Context(), f.id) }, nil},
		{func() error { return f.svc.Unpublish(t.Context(), f.id, nodeA) }, nil},
		{func() error { return publish(nodeB) }, volume.ErrBusy},
		{func() error { return f.svc.Delete(t.Context(), f.id) }, volume.ErrInUse},
	} {
		f.publish(t, nodeA, 1)
		f.failOnce("unexport", false)
		if err := f.svc.Unpublish(t.Context(), f.id, nodeA); err == nil {
			t.Fatal("nothing failed")
		}
		f.wantExports(t, iqnA)
		f.stall(func() { other.publish(t, nodeA, 1) })
		if err := tc.act(); !errors.Is(err, tc.want) || f.pending() {
			t.Errorf("%d: got %v, want %v", i, err, tc.want)
		}
		f.wantOwner(t, nodeA, 1, true)
		f.wantExports(t, iqnA)
	}
}
