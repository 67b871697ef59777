package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// party is a group of the fixture's volume and another one, on two nodes.
type party struct {
	*fixture
	group   volume.GroupID
	volumes []volume.ID
	cfg     *rest.Config

	mu sync.Mutex
	// still is under what token a volume stands still, "" if it does not.
	still map[volume.ID]string
}

func newParty(t *testing.T, cfg *rest.Config, f *fixture) *party {
	t.Helper()
	p := &party{fixture: f, cfg: cfg, group: volume.GroupNamed(string(f.id)), volumes: []volume.ID{f.id, f.id + "-2"}, still: map[volume.ID]string{}}
	f.svc.freezePoll = 5 * time.Millisecond
	for _, id := range p.volumes {
		if _, err := f.svc.Create(t.Context(), id, spec()); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// attach publishes the volumes, each to its node.
func (p *party) attach(t *testing.T) {
	t.Helper()
	for i, node := range []string{nodeA, nodeB} {
		if _, err := p.svc.Publish(t.Context(), p.volumes[i], node, nil, chap); err != nil {
			t.Fatal(err)
		}
	}
}

// node is the node of a volume: it flushes, and stands still while that is asked of it. say
// may change what it reports. It writes past the fixture's steps, and ends with ctx.
func (p *party) node(ctx context.Context, t *testing.T, id volume.ID, say func(volume.FreezeState) volume.FreezeState) {
	t.Helper()
	c := apiserver.Client(t, p.cfg)
	node, rec := New(Config{Client: c, Events: p.events}), records.New(c, p.events, time.Now)
	go follow(ctx, c, id, func() {
		v, err := node.Get(ctx, id)
		if err != nil || !v.Published {
			return
		}
		if v.PossiblyDirty {
			_ = rec.MarkClean(ctx, id, v.Fence) // again, if it fails
		}
		if v.FlushRequest != v.FlushDone {
			_ = rec.ReportFlushed(ctx, id, v.Fence, v.FlushRequest)
		}
		p.stand(v, func(token string, s volume.FreezeState) {
			_ = rec.ReportFreeze(ctx, id, v.Fence, volume.FreezeReport{Token: token, State: say(s), Message: "because"})
		})
	})
}

// stand begins or ends a stop of a volume, as its record asks for.
func (p *party) stand(v volume.Volume, report func(token string, s volume.FreezeState)) {
	p.mu.Lock()
	token := p.still[v.ID]
	asked := v.Hold != nil && v.Hold.Freeze == volume.FreezeAsked
	switch {
	case token == "" && asked && v.Freeze.Token != v.Hold.Token:
		p.still[v.ID] = v.Hold.Token
		p.mu.Unlock()
		report(v.Hold.Token, volume.FreezeFrozen)
	case token != "" && (!asked || v.Hold.Token != token):
		p.still[v.ID] = ""
		p.mu.Unlock()
		report(token, volume.FreezeHeld)
	default:
		p.mu.Unlock()
	}
}

// stands is the token under which all stand still, "" if they do not.
func (p *party) stands() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, b := p.still[p.volumes[0]], p.still[p.volumes[1]]; a == b {
		return a
	}
	return ""
}

// judge fails the test when something is cut while not everything stands still.
func (p *party) judge(t *testing.T) {
	t.Helper()
	p.storage.Step = func(op string, done bool) error {
		if op == "cut" && p.stands() == "" {
			t.Error("cut while not all volumes stood still")
		}
		return p.recordStep(op, done)
	}
}

func (p *party) ask(t *testing.T) ([]volume.Snapshot, error) {
	t.Helper()
	return p.svc.CreateGroup(t.Context(), p.group, p.volumes, volume.SnapshotClass{})
}

// persist asks until it is answered, and restarts the controller when it is killed.
func (p *party) persist(t *testing.T, killed func()) ([]volume.Snapshot, error) {
	t.Helper()
	var err error
	for range 500 {
		var got []volume.Snapshot
		got, err = p.ask(t)
		switch {
		case err == nil:
			return got, nil
		case errors.Is(err, errInjected):
			killed()
		case !errors.Is(err, volume.ErrBusy):
			return nil, err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, err
}

func honest(s volume.FreezeState) volume.FreezeState { return s }

// wantWhole fails unless the group is there, under one token, and nothing is held or left.
func (p *party) wantWhole(t *testing.T, got []volume.Snapshot) {
	t.Helper()
	cuts, err := p.storage.Cuts(t.Context())
	if err != nil || len(cuts) != 2 || len(got) != 2 {
		t.Fatalf("cuts %+v, answer %+v, %v", cuts, got, err)
	}
	for i, c := range cuts {
		if !c.Accepted || c.Hold != cuts[0].Hold || got[i].Handle.ID != c.ID || c.ID.Group() != p.group {
			t.Errorf("cut %+v, answer %+v", c, got[i])
		}
	}
	if again, err := p.svc.Group(t.Context(), p.group); err != nil || len(again) != 2 || again[0] != got[0] {
		t.Errorf("the group is %+v, %v", again, err)
	}
	p.wantFree(t)
}

func (p *party) wantFree(t *testing.T) {
	t.Helper()
	for _, id := range p.volumes {
		if v, err := p.svc.Get(t.Context(), id); err != nil || v.Hold != nil {
			t.Errorf("volume %s is held by %+v, %v", id, v.Hold, err)
		}
	}
}

// testGroup: two volumes of two nodes are cut while both stand still; the group is found again,
// and deleted as a whole.
func testGroup(t *testing.T, cfg *rest.Config, f *fixture) {
	p := newParty(t, cfg, f)
	p.attach(t)
	p.judge(t)
	for _, id := range p.volumes {
		p.node(t.Context(), t, id, honest)
	}
	got, err := p.persist(t, func() {})
	if err != nil {
		t.Fatal(err)
	}
	p.wantWhole(t, got)
	if again, err := p.ask(t); err != nil || again[0] != got[0] || again[1] != got[1] {
		t.Errorf("again: %+v, %v", again, err)
	}
	_, err = p.svc.CreateGroup(t.Context(), p.group, p.volumes[:1], volume.SnapshotClass{})
	wantError(t, err, volume.ErrExists)
	wantError(t, p.svc.DeleteSnapshot(t.Context(), got[0].Handle), volume.ErrInvalid)
	wantError(t, p.svc.DeleteGroup(t.Context(), p.group, []volume.SnapshotHandle{got[0].Handle}), volume.ErrInvalid)
	wantError(t, p.svc.DeleteGroup(t.Context(), "group-0", []volume.SnapshotHandle{got[0].Handle}), volume.ErrInvalid)
	all := []volume.SnapshotHandle{got[1].Handle, got[0].Handle}
	f.failOnce("delete-cut", true)
	wantError(t, p.svc.DeleteGroup(t.Context(), p.group, all), errInjected)
	if _, err := p.svc.Group(t.Context(), p.group); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("half of a group is one: %v", err)
	}
	_, err = p.ask(t)
	wantError(t, err, volume.ErrExists)
	for range 2 {
		if err := p.svc.DeleteGroup(t.Context(), p.group, all); err != nil {
			t.Fatal(err)
		}
	}
	if cuts, err := p.storage.Cuts(t.Context()); err != nil || len(cuts) > 0 {
		t.Errorf("left: %+v, %v", cuts, err)
	}
	if err := p.svc.DeleteSnapshot(t.Context(), got[0].Handle); err != nil {
		t.Errorf("deletion of a member that is gone: %v", err)
	}
}

// testGroupKilled: the controller is killed behind each thing that it changes, and before the first.
func testGroupKilled(t *testing.T, cfg *rest.Config, _ *fixture) {
	for n := 1; ; n++ {
		if redundant(n) {
			continue
		}
		over := false
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p := newParty(t, cfg, newFixture(t, cfg, volume.ID(fmt.Sprint("group-killed-", n))))
			p.attach(t)
			p.judge(t)
			for _, id := range p.volumes {
				p.node(t.Context(), t, id, honest)
			}
			left, dead := n, false
			p.fail = func(string, bool) error { // has its lock
				if left--; left == 0 {
					dead = true
				}
				if dead {
					return errInjected
				}
				return nil
			}
			got, err := p.persist(t, func() {
				p.fixture.mu.Lock()
				defer p.fixture.mu.Unlock()
				dead = false
				p.restart()
				p.svc.freezePoll = 5 * time.Millisecond
			})
			p.fixture.mu.Lock()
			p.fail, over = nil, left > 0
			p.fixture.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			p.wantWhole(t, got)
		})
		if over || t.Failed() {
			t.Logf("killed at %d steps", n-1)
			return
		}
	}
}

// testGroupMoves: a group of which one member did not stand still until the end is none, and
// keeps nobody; it is said why.
func testGroupMoves(t *testing.T, cfg *rest.Config, f *fixture) {
	p := newParty(t, cfg, f)
	p.attach(t)
	for name, tc := range map[string]struct {
		say  func(volume.FreezeState) volume.FreezeState
		want error
		word string
	}{
		"never": {func(volume.FreezeState) volume.FreezeState { return volume.FreezeFailed }, volume.ErrBusy, "because"},
		"not until": {func(s volume.FreezeState) volume.FreezeState {
			if s == volume.FreezeHeld {
				return volume.FreezeFailed
			}
			return s
		}, volume.ErrBusy, "because"},
		"raw": {func(volume.FreezeState) volume.FreezeState { return volume.FreezeNoFilesystem }, volume.ErrFenced, "raw block"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p.mu.Lock()
			p.still = map[volume.ID]string{}
			p.mu.Unlock()
			p.restart() // what was refused before
			p.node(ctx, t, p.volumes[0], honest)
			p.node(ctx, t, p.volumes[1], tc.say)
			var err error
			for range 200 {
				if _, err = p.ask(t); err == nil || strings.Contains(err.Error(), tc.word) {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			if !errors.Is(err, tc.want) || !strings.Contains(fmt.Sprint(err), tc.word) {
				t.Errorf("got %v, want %v with %q", err, tc.want, tc.word)
			}
			if cuts, err := p.storage.Cuts(ctx); err != nil || len(cuts) > 0 {
				t.Errorf("left: %+v, %v", cuts, err)
			}
			p.wantFree(t)
		})
	}
}

// testGroupDetached: what nobody has is cut without a stop, and not if it was attached meanwhile.
func testGroupDetached(t *testing.T, cfg *rest.Config, f *fixture) {
	p := newParty(t, cfg, f)
	cuts := 0
	p.storage.Step = func(op string, done bool) error {
		if op == "cut" && done {
			if cuts++; cuts == 1 { // another process has a pod write in between
				if _, err := p.svc.Publish(t.Context(), p.volumes[0], nodeA, nil, chap); err != nil {
					t.Error(err)
				}
				if err := p.svc.Unpublish(t.Context(), p.volumes[0], nodeA); err != nil {
					t.Error(err)
				}
			}
		}
		return nil
	}
	got, err := p.ask(t)
	if err != nil {
		t.Fatal(err)
	}
	if cuts != 4 {
		t.Errorf("%d cuts, want 4: all again", cuts)
	}
	p.wantWhole(t, got)
}

// testGroupSwept: what was cut for a group and never accepted goes in order, and not once the
// first is accepted.
func testGroupSwept(t *testing.T, cfg *rest.Config, f *fixture) {
	p := newParty(t, cfg, f)
	f.failOnce("accept", true)
	_, err := p.ask(t)
	wantError(t, err, errInjected)
	late := time.Now().Add(24 * time.Hour)
	f.svc.now = func() time.Time { return late }
	unlocked := func(string) (func(), bool) { return func() {}, true }
	for _, id := range p.volumes {
		if err := f.svc.ExpireHold(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.svc.SweepCuts(t.Context(), unlocked); err != nil {
		t.Fatal(err)
	}
	f.restart()
	got, err := p.ask(t)
	if err != nil {
		t.Fatal(err)
	}
	p.wantWhole(t, got)
}

// testGroupRefused: what cannot be in a group is said before anything is held.
func testGroupRefused(t *testing.T, cfg *rest.Config, f *fixture) {
	p := newParty(t, cfg, f)
	thick := spec()
	thick.Provisioning = "thick"
	if _, err := f.svc.Create(t.Context(), f.id+"-thick", thick); err != nil {
		t.Fatal(err)
	}
	for other, want := range map[volume.ID]error{f.id + "-thick": volume.ErrInvalid, "nobody": volume.ErrNotFound} {
		_, err := f.svc.CreateGroup(t.Context(), "group-1", []volume.ID{f.id, other}, volume.SnapshotClass{})
		wantError(t, err, want)
		p.wantFree(t)
	}
	_, err := f.svc.CreateSnapshot(t.Context(), p.group.Member(f.id), f.id, volume.SnapshotClass{})
	wantError(t, err, volume.ErrInvalid)
}
