package moves_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestMoves runs all tests against one real API server.
func TestMoves(t *testing.T) {
	cfg := apiserver.Start(t)
	for name, test := range map[string]func(*testing.T, *fixture){
		"handshake":               testHandshake,
		"refused":                 testRefused,
		"prewarm":                 testPrewarm,
		"prewarm refused":         testPrewarmRefused,
		"no initiator":            testNoInitiator,
		"nobody answers":          testNobodyAnswers,
		"cancelled":               testCancelled,
		"busy":                    testBusy,
		"takes long":              testTakesLong,
		"begin again":             testBeginAgain,
		"release on finish":       testReleaseOnFinish,
		"release on deletion":     testReleaseOnDeletion,
		"release on deadline":     testReleaseOnDeadline,
		"deleted while waiting":   testDeletedWhileWaiting,
		"orphan":                  testOrphan,
		"source restarts":         testSourceRestarts,
		"source is upgraded":      testUpgraded,
		"killed before answer":    testKilledBeforeAnswer,
		"source reboots":          testSourceReboots,
		"progress":                testProgress,
		"without source":          testWithoutSource,
		"missing":                 testMissing,
		"no connection":           testNoConnection,
		"drain of twenty":         testDrain,
		"other nodes' moves":      testOtherNode,
		"answer makes no sense":   testSenselessAnswer,
		"answer leads elsewhere":  testLeadsElsewhere,
		"late answer is no lease": testFinishedIsNotExported,
		"handed over":             testHandOver,
		"handed over to nobody":   testHandOverUnheard,
		"handed over half":        testHandOverKilled,
		"handed over, nothing":    testHandOverNothing,
		"exported, by watch":      testExportedByWatch,
		"stream":                  testStream,
		"stream refused":          testStreamRefused,
		"stream without a key":    testStreamWithoutKey,
		"stream without a pool":   testStreamWithoutPool,
		"stream without a node":   testStreamWithoutNode,
		"stream leads elsewhere":  testStreamLeadsElsewhere,
		"no method":               testNoMethod,
		"usurped":                 testUsurped,
		"readers":                 testReaders,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			id := strings.NewReplacer(" ", "-", "'", "", ",", "").Replace(name)
			test(t, newFixture(t, cfg, id))
		})
	}
}

func testHandshake(t *testing.T, f *fixture) {
	f.source()
	start := time.Now()
	m, lease := f.mustBegin()
	t.Logf("exported after %v", time.Since(start).Round(time.Millisecond))
	r, ok := f.lessor.lease(f.id)
	if !ok || r.Move != m || lease.Move != m {
		t.Fatalf("exported %v for %v, lease %v", r.Move, m, lease.Move)
	}
	if !r.Credentials.Equal(lease.Credentials) || len(lease.Credentials.Password) != 16 {
		t.Error("the nodes derived different credentials")
	}
	if r.Volume != f.id || r.UID != f.fence.UID || r.Generation != 1 || r.To != f.nodeB || r.Initiator != initiatorB {
		t.Errorf("request %+v", r)
	}
	if lease.Source.Portals[0] != "192.0.2.1:3260" || !strings.HasSuffix(lease.Source.IQN, string(f.id)) || lease.Source.LUN != 0 ||
		lease.ChunkSectors != 512 || lease.MetaBytes != 8<<20 || lease.DataBytes != 1<<30 {
		t.Errorf("lease %+v", lease)
	}
	obj := f.load(m)
	if obj.Name != moves.Name(f.id, 2) || len(obj.OwnerReferences) != 1 || string(obj.OwnerReferences[0].UID) != f.fence.UID ||
		*obj.Spec.BandwidthBytesPerSecond != 100<<20 || obj.Spec.Deadline.IsZero() {
		t.Errorf("object %+v", obj)
	}
	f.wantState(m, v1alpha1.ExportStateExported)
	if n := f.lessor.calls(); n != 1 {
		t.Errorf("asked %d times to export", n)
	}
	must(t, f.b.Progress(t.Context(), m, volume.MoveProgress{TotalBytes: 10 << 20, HydratedBytes: 5 << 20, Rate: 1 << 20, From: volume.FromPeer}))
	if got := f.load(m).Status.Progress; got.Copied != "5Mi of 10Mi" || got.Rate != "1Mi/s" {
		t.Errorf("half of a move shows %q, %q", got.Copied, got.Rate)
	}
	must(t, f.b.Finish(t.Context(), m, volume.MoveCompleted, ""))
	f.wantState(m, v1alpha1.ExportStateReleased)
	if got := f.load(m).Status.Progress; got.HydratedBytes == nil || *got.HydratedBytes != 10<<20 || got.Copied != "10Mi of 10Mi" || got.Rate != "" {
		t.Errorf("a completed move shows %+v", got)
	}
	f.wantNoSecret(lease.Credentials.Password)
}

func testRefused(t *testing.T, f *fixture) {
	f.source()
	f.lessor.retainedCaches[f.id] = 7 // another generation
	m, lease, err := f.begin()
	if !errors.Is(err, volume.ErrUnavailable) || lease != nil || !strings.Contains(err.Error(), "no retained cache of generation 1") || !strings.Contains(err.Error(), f.nodeA) {
		t.Fatalf("got %v, %v", lease, err)
	}
	f.wantState(m, v1alpha1.ExportStateRefused)
	obj := f.load(m)
	if obj.Status.Outcome != v1alpha1.MigrationFailed || obj.Status.CompletionTime.IsZero() || !strings.Contains(obj.Status.OutcomeMessage, "no retained cache") {
		t.Errorf("status %+v", obj.Status)
	}
	if e := <-f.events.Events; !strings.HasPrefix(e, "Warning "+moves.EventFailed) {
		t.Errorf("event %q", e)
	}
	if f.lessor.has(m) {
		t.Error("released what was not exported")
	}
}

func testNoInitiator(t *testing.T, f *fixture) {
	f.source()
	must(t, f.api.Delete(t.Context(), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: f.nodeB}}))
	if _, _, err := f.begin(); !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), "CachePool "+f.nodeB) {
		t.Errorf("got %v", err)
	}
	if n := f.lessor.calls(); n != 0 {
		t.Error("exported to a node without a name")
	}
}

func testNobodyAnswers(t *testing.T, f *fixture) {
	start := time.Now()
	m, _, err := f.beginFor(3 * time.Second)
	if !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), f.nodeA) || time.Since(start) > 30*time.Second {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	if got := f.load(m).Status.Outcome; got != v1alpha1.MigrationFailed {
		t.Errorf("outcome %q", got)
	}
	// The node comes back later, and serves nobody.
	f.source()
	time.Sleep(2 * time.Second)
	if n := f.lessor.calls(); n != 0 {
		t.Error("exported to nobody")
	}
}

// testCancelled: kubelet gives a call up and repeats it; the lease must not be lost.
func testCancelled(t *testing.T, f *fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	m, _, err := f.b.Begin(ctx, f.request())
	if !errors.Is(err, volume.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	if got := f.load(m).Status.Outcome; got != "" {
		t.Errorf("outcome %q", got)
	}
	f.source()
	f.mustBegin()
}

func testBusy(t *testing.T, f *fixture) {
	f.lessor.busy = 3
	f.source()
	f.mustBegin()
	if n := f.lessor.calls(); n != 4 {
		t.Errorf("asked %d times", n)
	}
	passwords := map[string]bool{}
	for _, r := range f.lessor.exports {
		passwords[r.Credentials.Password] = true
	}
	if len(passwords) != 1 {
		t.Error("each try had another password")
	}
}

// testTakesLong: the destination is told that its lease is being prepared, or it would
// give up waiting for a sign.
func testTakesLong(t *testing.T, f *fixture) {
	asked, told := make(chan struct{}), make(chan struct{})
	f.lessor.atWork = func() { close(asked); <-told }
	f.source()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer close(told)
		<-asked
		began, obj := time.Now(), &v1alpha1.CacheMigration{}
		for obj.Status.Source.State != v1alpha1.ExportStatePreparing {
			if err := f.api.Get(t.Context(), types.NamespacedName{Name: moves.Name(f.id, 2)}, obj); err != nil || time.Since(began) > time.Minute {
				t.Errorf("the source says %q: %v", obj.Status.Source.State, err)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		if took := time.Since(began); took < 500*time.Millisecond {
			t.Errorf("told after %s, which is a write that most moves do not need", took)
		}
	})
	m, _ := f.mustBegin()
	f.wantState(m, v1alpha1.ExportStateExported)
}

// testBeginAgain: the process was killed after the answer, and its key is lost.
func testBeginAgain(t *testing.T, f *fixture) {
	f.source()
	first, before := f.mustBegin()
	for range 3 {
		m, lease := f.mustBegin()
		if m.UID == first.UID || m.Name != first.Name || lease.Credentials.Equal(before.Credentials) {
			t.Errorf("again: move %v, same password: %v", m, lease.Credentials.Equal(before.Credentials))
		}
		if r, _ := f.lessor.lease(f.id); !r.Credentials.Equal(lease.Credentials) {
			t.Error("the nodes derived different credentials")
		}
		if exported, err := f.b.Exported(t.Context(), first); exported || err != nil {
			t.Errorf("the first move is exported: %v, %v", exported, err)
		}
		must(t, f.b.Finish(t.Context(), first, volume.MoveFailed, "late")) // of a move that is gone
		first, before = m, lease
	}
	time.Sleep(3 * time.Second) // longer than the grace
	if f.lessor.has(first) {
		t.Error("the retained cache was destroyed")
	}
	f.wantState(first, v1alpha1.ExportStateExported)
}

func testDeletedWhileWaiting(t *testing.T, f *fixture) {
	name := moves.Name(f.id, 2)
	time.AfterFunc(time.Second, func() {
		_ = f.api.Delete(context.WithoutCancel(t.Context()), &v1alpha1.CacheMigration{ObjectMeta: metav1.ObjectMeta{Name: name}})
	})
	if _, _, err := f.begin(); !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("got %v", err)
	}
}

// testDrain: twenty volumes leave a node at the same moment.
func testDrain(t *testing.T, f *fixture) {
	const volumes = 20
	f.lessor.delay = 100 * time.Millisecond
	f.source()
	var wg sync.WaitGroup
	start := time.Now()
	for i := range volumes {
		id, fence := f.volume(fmt.Sprintf("drain-%d", i))
		wg.Go(func() {
			r := f.request()
			r.Volume, r.Fence = id, fence
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			m, lease, err := f.b.Begin(ctx, r)
			if err != nil {
				t.Errorf("%s: %v", id, err)
				return
			}
			if exported, _ := f.lessor.lease(id); exported.Move != m || !exported.Credentials.Equal(lease.Credentials) {
				t.Errorf("%s: lease of another move", id)
			}
		})
	}
	wg.Wait()
	t.Logf("%d leases in %v, at most %d at once", volumes, time.Since(start).Round(time.Millisecond), f.lessor.most)
	if f.lessor.most < 2 || f.lessor.most > 4 {
		t.Errorf("%d at once", f.lessor.most)
	}
	// What happens to one of them is no reason to look at all, which is done each second.
	f.lessor.mu.Lock()
	defer f.lessor.mu.Unlock()
	if most := int(time.Since(start)/time.Second) + 3; f.lessor.looks > most {
		t.Errorf("all leases were looked at %d times, want at most %d", f.lessor.looks, most)
	}
}

// testOtherNode: a node answers for itself alone.
func testOtherNode(t *testing.T, f *fixture) {
	f.source()
	r := f.request()
	r.Source.Node = "somebody-else"
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, _, err := f.b.Begin(ctx, r); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if f.lessor.calls() > 0 {
		t.Error("answered for another node")
	}
}

// testLeadsElsewhere: a node that knows the secret, and names the target of another volume.
func testLeadsElsewhere(t *testing.T, f *fixture) {
	f.lessor.iqn = "iqn.2026-11.io.nearflash:s1:other:g4"
	f.source()
	m, lease, err := f.begin()
	if !errors.Is(err, volume.ErrUnavailable) || lease != nil || !strings.Contains(err.Error(), f.lessor.iqn) {
		t.Errorf("got %+v, %v", lease, err)
	}
	if o := f.load(m).Status.Outcome; o != v1alpha1.MigrationFailed {
		t.Errorf("the move has the outcome %q", o)
	}
}

// testSenselessAnswer: whoever answers without a key has not agreed on a secret.
func testSenselessAnswer(t *testing.T, f *fixture) {
	f.answer(v1alpha1.MigrationSource{State: v1alpha1.ExportStateExported, Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.x"})
	if _, lease, err := f.begin(); !errors.Is(err, volume.ErrUnavailable) || lease != nil || !strings.Contains(err.Error(), "public key") {
		t.Errorf("got %v, %v", lease, err)
	}
}
