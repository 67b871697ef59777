package moves_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The tests of this file are about the end of a lease; TestMoves runs them.

func testReleaseOnFinish(t *testing.T, f *fixture) {
	f.source()
	m, _ := f.mustBegin()
	for range 2 {
		must(t, f.b.Finish(t.Context(), m, volume.MoveCompleted, ""))
	}
	f.wantState(m, v1alpha1.ExportStateReleased)
	if !f.lessor.has(m) {
		t.Error("said to be released, and not released")
	}
	obj := f.load(m)
	if obj.Status.Outcome != v1alpha1.MigrationCompleted || len(obj.Status.Conditions) != 1 || obj.Status.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("status %+v", obj.Status)
	}
	if n := len(f.events.Events); n != 1 {
		t.Errorf("%d events", n)
	}
	if e := <-f.events.Events; !strings.HasPrefix(e, "Normal "+moves.EventCompleted) {
		t.Errorf("event %q", e)
	}
}

func testReleaseOnDeletion(t *testing.T, f *fixture) {
	f.source()
	m, _ := f.mustBegin()
	must(t, f.api.Delete(t.Context(), f.load(m)))
	f.eventually("released", func() bool { return f.lessor.has(m) })
	if exported, err := f.b.Exported(t.Context(), m); exported || err != nil {
		t.Errorf("exported: %v, %v", exported, err)
	}
}

func testReleaseOnDeadline(t *testing.T, f *fixture) {
	f.source()
	r := f.request()
	r.Deadline = time.Now().Add(6 * time.Second)
	m, _, err := f.b.Begin(t.Context(), r)
	must(t, err)
	f.wantState(m, v1alpha1.ExportStateExported)
	f.wantState(m, v1alpha1.ExportStateReleased)
	if !f.lessor.has(m) || time.Now().Before(r.Deadline.Truncate(time.Second)) {
		t.Error("not released, or before the deadline")
	}
	if got := f.load(m).Status.Outcome; got != "" {
		t.Errorf("outcome %q: the destination goes on from the origin", got)
	}
}

// testOrphan: a lease of which nobody knows, found at the start.
func testOrphan(t *testing.T, f *fixture) {
	m := volume.MoveID{Name: "long-gone-1", UID: "00000000-0000-4000-8000-000000000000"}
	f.lessor.leases["long-gone"] = volume.LeaseRequest{Move: m, Volume: "long-gone"}
	f.source()
	time.Sleep(time.Second)
	if f.lessor.has(m) {
		t.Error("released before the grace was over")
	}
	f.eventually("released", func() bool { return f.lessor.has(m) })
}

func testSourceRestarts(t *testing.T, f *fixture) {
	stop := f.source()
	m, lease := f.mustBegin()
	stop()
	f.source()
	time.Sleep(3 * time.Second) // longer than the grace
	f.wantState(m, v1alpha1.ExportStateExported)
	if r, _ := f.lessor.lease(f.id); f.lessor.calls() != 1 || !r.Credentials.Equal(lease.Credentials) {
		t.Error("the restart changed a lease that is used")
	}
	must(t, f.b.Finish(t.Context(), m, volume.MoveEnded, "the pod left"))
	f.wantState(m, v1alpha1.ExportStateReleased)
}

// testUpgraded: a version before has answered, in its own word.
func testUpgraded(t *testing.T, f *fixture) {
	stop := f.source()
	m, _ := f.mustBegin()
	stop()
	obj := f.load(m)
	obj.Status.Source.State = "Lent"
	must(t, f.api.Status().Update(t.Context(), obj))
	f.source()
	time.Sleep(3 * time.Second) // longer than the grace
	if _, served := f.lessor.lease(f.id); !served || f.lessor.calls() != 1 || f.load(m).Status.Source.State != "Lent" {
		t.Error("the upgrade ended or changed a lease that is used")
	}
	must(t, f.b.Finish(t.Context(), m, volume.MoveEnded, "the pod left"))
	f.wantState(m, v1alpha1.ExportStateReleased)
}

// testKilledBeforeAnswer: the lease exists, its key is lost, B waits.
func testKilledBeforeAnswer(t *testing.T, f *fixture) {
	kill := make(chan struct{})
	f.lessor.killed = sync.OnceFunc(func() { close(kill) })
	f.lessor.delay = 300 * time.Millisecond
	stop := f.source()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		<-kill
		stop()
		f.source()
	})
	_, lease := f.mustBegin()
	if r, _ := f.lessor.lease(f.id); !r.Credentials.Equal(lease.Credentials) {
		t.Error("the nodes derived different credentials")
	}
}

// testSourceReboots: the kernel's exports are gone, and so is the right to export.
func testSourceReboots(t *testing.T, f *fixture) {
	stop := f.source()
	m, _ := f.mustBegin()
	stop()
	f.lessor.restart()
	f.source()
	f.wantState(m, v1alpha1.ExportStateRefused)
	if !f.lessor.has(m) {
		t.Error("what is left of the lease was not released")
	}
	if src := f.load(m).Status.Source; src.IQN != "" || src.PublicKey != "" || src.Message == "" {
		t.Errorf("source %+v", src)
	}
}

// testFinishedIsNotExported: the destination gave up while the source node was at work.
func testFinishedIsNotExported(t *testing.T, f *fixture) {
	ctx := expiring{Context: t.Context(), done: make(chan struct{})}
	expire, abandoned := sync.OnceFunc(func() { close(ctx.done) }), make(chan struct{})
	f.lessor.atWork = func() { expire(); <-abandoned }
	defer time.AfterFunc(time.Minute, expire).Stop()
	f.source()
	m, _, err := f.b.Begin(ctx, f.request())
	exported := f.lessor.calls()
	close(abandoned)
	if !errors.Is(err, volume.ErrUnavailable) || exported > 0 {
		t.Fatalf("got %v, after %d answers", err, exported)
	}
	f.eventually("released", func() bool { return f.lessor.has(m) })
	f.wantState(m, v1alpha1.ExportStateReleased)
}

// expiring is a context whose deadline is what the test says.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.done }

func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
