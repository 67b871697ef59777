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

// The tests of this file are about the end of a loan; TestMoves runs them.

func testReleaseOnFinish(t *testing.T, f *fixture) {
	f.source()
	m, _ := f.mustBegin()
	for range 2 {
		must(t, f.b.Finish(t.Context(), m, volume.MoveCompleted, ""))
	}
	f.wantState(m, v1alpha1.ExportStateReleased)
	if !f.lender.has(m) {
		t.Error("said to be released, and not reclaimed")
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
	f.eventually("reclaimed", func() bool { return f.lender.has(m) })
	if lent, err := f.b.Lent(t.Context(), m); lent || err != nil {
		t.Errorf("lent: %v, %v", lent, err)
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
	if !f.lender.has(m) || time.Now().Before(r.Deadline.Truncate(time.Second)) {
		t.Error("not reclaimed, or before the deadline")
	}
	if got := f.load(m).Status.Outcome; got != "" {
		t.Errorf("outcome %q: the destination goes on from the origin", got)
	}
}

// testOrphan: a loan of which nobody knows, found at the start.
func testOrphan(t *testing.T, f *fixture) {
	m := volume.MoveID{Name: "long-gone-1", UID: "00000000-0000-4000-8000-000000000000"}
	f.lender.loans["long-gone"] = volume.LoanRequest{Move: m, Volume: "long-gone"}
	f.source()
	time.Sleep(time.Second)
	if f.lender.has(m) {
		t.Error("reclaimed before the grace was over")
	}
	f.eventually("reclaimed", func() bool { return f.lender.has(m) })
}

func testSourceRestarts(t *testing.T, f *fixture) {
	stop := f.source()
	m, loan := f.mustBegin()
	stop()
	f.source()
	time.Sleep(3 * time.Second) // longer than the grace
	f.wantState(m, v1alpha1.ExportStateExported)
	if r, _ := f.lender.loan(f.id); f.lender.calls() != 1 || r.Credentials != loan.Credentials {
		t.Error("the restart changed a loan that is used")
	}
	must(t, f.b.Finish(t.Context(), m, volume.MoveEnded, "the pod left"))
	f.wantState(m, v1alpha1.ExportStateReleased)
}

// testKilledBeforeAnswer: the loan exists, its key is lost, B waits.
func testKilledBeforeAnswer(t *testing.T, f *fixture) {
	kill := make(chan struct{})
	f.lender.killed = sync.OnceFunc(func() { close(kill) })
	f.lender.delay = 300 * time.Millisecond
	stop := f.source()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		<-kill
		stop()
		f.source()
	})
	_, loan := f.mustBegin()
	if r, _ := f.lender.loan(f.id); r.Credentials != loan.Credentials {
		t.Error("the nodes derived different credentials")
	}
}

// testSourceReboots: the kernel's exports are gone, and so is the right to lend.
func testSourceReboots(t *testing.T, f *fixture) {
	stop := f.source()
	m, _ := f.mustBegin()
	stop()
	f.lender.restart()
	f.source()
	f.wantState(m, v1alpha1.ExportStateRefused)
	if !f.lender.has(m) {
		t.Error("what is left of the loan was not reclaimed")
	}
	if src := f.load(m).Status.Source; src.IQN != "" || src.PublicKey != "" || src.Message == "" {
		t.Errorf("source %+v", src)
	}
}

// testFinishedIsNotLent: the destination gave up while the lender was at work.
func testFinishedIsNotLent(t *testing.T, f *fixture) {
	ctx := expiring{Context: t.Context(), done: make(chan struct{})}
	expire, gaveUp := sync.OnceFunc(func() { close(ctx.done) }), make(chan struct{})
	f.lender.atWork = func() { expire(); <-gaveUp }
	defer time.AfterFunc(time.Minute, expire).Stop()
	f.source()
	m, _, err := f.b.Begin(ctx, f.request())
	lent := f.lender.calls()
	close(gaveUp)
	if !errors.Is(err, volume.ErrUnavailable) || lent > 0 {
		t.Fatalf("got %v, after %d answers", err, lent)
	}
	f.eventually("reclaimed", func() bool { return f.lender.has(m) })
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
