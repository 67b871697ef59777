package provision

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// two is a fixture with a second storage server, whose name is "second".
type two struct {
	*fixture
	second *backendtest.Server
	// takenSecond is the last takeover of the second one.
	takenSecond string
}

func withSecond(t *testing.T, f *fixture) *two {
	t.Helper()
	p := &two{fixture: f, second: backendtest.New(100 * gib)}
	servers := f.servers()
	servers["second"] = Server{Backend: p.second, TakenOver: func(context.Context) (string, error) { return p.takenSecond, nil }}
	f.svc = New(Config{Client: f.client, Servers: servers, Events: f.events})
	t.Cleanup(func() { dropNamed(t, f.client) })
	return p
}

// onSecond is spec on the second server.
func onSecond() volume.Spec {
	s := spec()
	s.Target = "second"
	return s
}

func (p *two) create(t *testing.T) {
	t.Helper()
	if _, err := p.svc.Create(t.Context(), p.id, onSecond()); err != nil {
		t.Fatal(err)
	}
}

// foreign makes a volume of the same ID on the default server, which admits node B.
func (p *two) foreign(t *testing.T) {
	t.Helper()
	err := p.storage.Create(t.Context(), p.id, backend.Request{SizeBytes: gib})
	if err == nil {
		_, err = p.storage.Export(t.Context(), p.id, backend.Grant{Initiator: iqnB, Generation: 7, Credentials: *chap})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wantForeign fails unless what foreign has made is as it was.
func (p *two) wantForeign(t *testing.T, what string) {
	t.Helper()
	v, ok := p.storage.Volume(p.id)
	if !ok || v.Size != gib || v.Access.Generation != 7 || !slices.Equal(p.storage.Exported(p.id), []string{iqnB}) {
		t.Fatalf("%s: the default server's volume of the ID: %+v", what, v)
	}
}

func (p *two) wantSecond(t *testing.T, there bool, want ...string) {
	t.Helper()
	if _, ok := p.second.Volume(p.id); ok != there || !slices.Equal(p.second.Exported(p.id), append([]string{}, want...)) {
		t.Fatalf("the second server has the volume: %v, and admits %q; want %v, %q", ok, p.second.Exported(p.id), there, want)
	}
}

// down has a server refuse every call.
func down(s *backendtest.Server) {
	s.Step = func(string, bool) error { return volume.ErrUnavailable }
}

// wantNamed fails unless the error is of a kind and has the words.
func wantNamed(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	wantError(t, err, kind)
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error lacks %q: %v", w, err)
		}
	}
}

// life is all that a volume of the second server goes through. look is called behind each step.
func (p *two) life(t *testing.T, look func(what string)) {
	t.Helper()
	p.create(t)
	p.wantSecond(t, true)
	look("create")
	p.publish(t, nodeA, 1)
	p.wantSecond(t, true, iqnA)
	look("publish")
	if n, err := p.svc.Expand(t.Context(), p.id, 2*gib); err != nil || n != 2*gib {
		t.Fatalf("expanded to %d, %v", n, err)
	}
	p.mark(t, true)
	p.unpublish(t, nodeA)
	p.wantSecond(t, true, iqnA)
	p.mark(t, false)
	if err := p.svc.Settle(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	p.wantSecond(t, true)
	look("settle")
	p.publish(t, nodeB, 2)
	p.unpublish(t, nodeB)
	p.wantSecond(t, true)

	cut := volume.SnapshotID(p.id + "-s")
	s, err := p.snapshot(t, cut)
	if want := (volume.SnapshotHandle{Backend: "iscsi", Target: "second", ID: cut}); err != nil || s.Handle != want {
		t.Fatalf("snapshot %v, %v", s.Handle, err)
	}
	look("snapshot")
	if got, err := p.svc.Snapshot(t.Context(), s.Handle); err != nil || got != s {
		t.Errorf("found %+v, %v", got, err)
	}
	p.children(t, s.Handle)
	look("restore and clone")
	if err := p.svc.DeleteSnapshot(t.Context(), s.Handle); err != nil {
		t.Fatal(err)
	}
	_, err = p.svc.Snapshot(t.Context(), s.Handle)
	wantError(t, err, volume.ErrNotFound)
	if err := p.svc.Delete(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	p.wantSecond(t, false)
	look("delete")
}

// children makes a volume of a snapshot, and a clone, and deletes them.
func (p *two) children(t *testing.T, h volume.SnapshotHandle) {
	t.Helper()
	for name, parent := range map[string]*volume.Parent{"-restored": {Snapshot: &h}, "-clone": {Volume: p.id}} {
		id, s := p.id+volume.ID(name), onSecond()
		s.CapacityBytes, s.Parent = 2*gib, parent
		if _, err := p.svc.Create(t.Context(), id, s); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		if _, ok := p.second.Volume(id); !ok {
			t.Errorf("%s is not on the second server", id)
		}
		if err := p.svc.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if cuts, err := p.second.Cuts(t.Context()); err != nil || len(cuts) != 1 {
		t.Errorf("left of snapshot and clone: %+v, %v", cuts, err)
	}
}

// testServers: a volume of a named server has nothing to do with the default one, on which another
// volume has its ID.
func testServers(t *testing.T, _ *rest.Config, f *fixture) {
	p := withSecond(t, f)
	p.foreign(t)
	p.life(t, func(what string) { p.wantForeign(t, what) })
}

// testServerDown: whatever is wrong with the default server keeps no volume of the other one from
// anything.
func testServerDown(t *testing.T, _ *rest.Config, f *fixture) {
	p := withSecond(t, f)
	down(p.storage)
	p.life(t, func(string) {})

	p.create(t)
	p.publish(t, nodeA, 1)
	if _, err := p.svc.Snapshots(t.Context()); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("a list of snapshots that may lack some: %v", err)
	}
	named, err := p.svc.NamedNodes(t.Context(), map[string]bool{nodeB: true})
	if err != nil {
		t.Fatal(err)
	}
	pool := func(iqn string) *v1alpha1.CachePool {
		return &v1alpha1.CachePool{Status: v1alpha1.CachePoolStatus{InitiatorIQN: iqn}}
	}
	if id, err := named.Admitted(pool(iqnA)); id != p.id || err != nil {
		t.Errorf("admitted to %q, %v", id, err)
	}
	if _, err := named.Admitted(pool("iqn.x")); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("whom one server has not denied: %v", err)
	}
	p.unpublish(t, nodeA)
	if _, err := p.second.Cut(t.Context(), "left", p.id, backend.CutRequest{Hold: "over"}); err != nil {
		t.Fatal(err)
	}
	err = p.svc.SweepCuts(t.Context(), func(string) (func(), bool) { return func() {}, true })
	if cuts, listErr := p.second.Cuts(t.Context()); !errors.Is(err, volume.ErrUnavailable) || len(cuts) > 0 || listErr != nil {
		t.Errorf("sweep: %v; left %+v, %v", err, cuts, listErr)
	}
}

// testServersUnrecorded: of a volume without a record all servers are asked, and nothing ends
// before all have answered.
func testServersUnrecorded(t *testing.T, _ *rest.Config, f *fixture) {
	p := withSecond(t, f)
	p.create(t)
	p.publish(t, nodeA, 1)
	p.loseRecord(t)
	p.foreign(t)
	wantNamed(t, p.svc.Delete(t.Context(), p.id), volume.ErrFenced, "the default storage server", "storage server second")
	p.wantForeign(t, "on both")
	p.wantSecond(t, true, iqnA)

	down(p.second)
	wantNamed(t, p.svc.Delete(t.Context(), p.id), volume.ErrUnavailable, "storage server second")
	p.second.Step = nil
	p.wantForeign(t, "the other one down")
	p.wantSecond(t, true, iqnA)

	p.storage.Evict(p.id)
	if err := p.storage.Delete(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	step := p.storage.Step
	down(p.storage)
	wantNamed(t, p.svc.Delete(t.Context(), p.id), volume.ErrUnavailable, "the default storage server")
	p.wantSecond(t, true, iqnA)
	p.storage.Step = step
	for range 2 {
		if err := p.svc.Delete(t.Context(), p.id); err != nil {
			t.Fatal(err)
		}
		p.wantSecond(t, false)
	}
}

// testServersRemade: a record that was made anew for another server, while the one before was being
// deleted, takes nothing with it.
func testServersRemade(t *testing.T, _ *rest.Config, f *fixture) {
	p := withSecond(t, f)
	p.create(t)
	p.foreign(t)
	p.read = func() { // behind the look at where it lies
		p.read = nil
		p.loseRecord(t)
		if err := p.client.Create(t.Context(), records.NewObject(p.id, spec())); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, p.svc.Delete(t.Context(), p.id), volume.ErrBusy)
	p.wantForeign(t, "made anew")
	p.wantSecond(t, true)
	if v := p.record(t); v.Deleting || v.Spec.Target != "" {
		t.Errorf("the record of the default server: %+v", v)
	}
}

// testServersAdopt: the record of a volume is made anew for the server that has it, once that is
// certain.
func testServersAdopt(t *testing.T, _ *rest.Config, f *fixture) {
	p := withSecond(t, f)
	p.create(t)
	p.loseRecord(t)
	publish := func(s *volume.Spec) error {
		_, err := p.svc.Publish(t.Context(), p.id, nodeA, s, chap)
		return err
	}
	nowhere := spec()
	wantNamed(t, publish(nil), volume.ErrNotFound, "storage server second", "recover-a-lost-cluster")
	step := p.storage.Step
	down(p.storage)
	wantNamed(t, publish(&nowhere), volume.ErrUnavailable, "the default storage server", "volumeAttribute target")
	p.storage.Step = step
	p.foreign(t)
	wantNamed(t, publish(&nowhere), volume.ErrFenced, "the default storage server", "storage server second")
	elsewhere := spec()
	elsewhere.Target = "third"
	wantNamed(t, publish(&elsewhere), volume.ErrUnavailable, `"third"`)
	if _, err := p.svc.Get(t.Context(), p.id); !errors.Is(err, volume.ErrNotFound) {
		t.Fatalf("a record before it is known where the volume is: %v", err)
	}
	named := onSecond()
	if err := publish(&named); err != nil {
		t.Fatal(err)
	}
	p.wantSecond(t, true, iqnA)
	p.wantForeign(t, "adopted")
	p.unpublish(t, nodeA)

	p.loseRecord(t)
	p.storage.Evict(p.id)
	if err := p.storage.Delete(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	if err := publish(&nowhere); err != nil {
		t.Fatal(err)
	}
	if v := p.record(t); v.Spec.Target != "second" || v.Fence.Generation != 2 {
		t.Errorf("found, and recorded as %+v", v)
	}
}

// testServersTakeover: a record is judged by the takeovers of its own server.
func testServersTakeover(t *testing.T, _ *rest.Config, f *fixture) {
	p := withSecond(t, f)
	p.create(t)
	p.publish(t, nodeA, 1)
	p.unpublish(t, nodeA)
	released := p.status(t)
	p.publish(t, nodeA, 1)
	p.taken = "first" // of the default server
	p.setBack(t, released)
	if err := p.svc.Settle(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	p.wantSecond(t, true)
	if v := p.record(t); v.PossiblyDirty || len(p.events.Events) > 0 {
		t.Fatalf("another server's takeover has made the record old: %+v", v)
	}

	p.publish(t, nodeA, 1)
	p.takenSecond = "its own"
	p.setBack(t, released)
	if err := p.svc.Settle(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	p.wantSecond(t, true, iqnA)
	if !p.record(t).PossiblyDirty {
		t.Error("a record of before its own server's takeover is trusted")
	}
	p.mark(t, false)
	if err := p.svc.Settle(t.Context(), p.id); err != nil {
		t.Fatal(err)
	}
	if obj := p.status(t); obj.Takeover != "its own" {
		t.Errorf("judged since %q", obj.Takeover)
	}
}

// testServerUnknown: a name that the controller has no server for is never taken for the answer
// that something is not there.
func testServerUnknown(t *testing.T, _ *rest.Config, f *fixture) {
	p := withSecond(t, f)
	p.create(t)
	p.publish(t, nodeA, 1)
	s := onSecond()
	s.Target = "third"
	_, err := p.svc.Create(t.Context(), "another", s)
	wantNamed(t, err, volume.ErrInvalid, `target "third"`, "no target (the default server), second")
	_, err = p.svc.Get(t.Context(), "another")
	wantError(t, err, volume.ErrNotFound)

	only := New(Config{Client: f.client, Servers: map[string]Server{"third": {Backend: p.storage}}, Events: f.events})
	_, err = only.Create(t.Context(), "another", spec())
	wantNamed(t, err, volume.ErrInvalid, "target is missing", "third")
	for what, svc := range map[string]*Service{
		"gone": New(Config{Client: f.client, Servers: one(p.storage), Events: f.events}), "no server": New(Config{Client: f.client, Events: f.events}), "no default": only,
	} {
		h := volume.SnapshotHandle{Backend: "iscsi", Target: "second", ID: "s"}
		_, publish := svc.Publish(t.Context(), p.id, nodeA, nil, chap)
		_, expand := svc.Expand(t.Context(), p.id, 2*gib)
		_, find := svc.Snapshot(t.Context(), h)
		named, err := svc.NamedNodes(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, admitted := named.Admitted(&v1alpha1.CachePool{}) // other tests have records too
		wantError(t, admitted, volume.ErrUnavailable)
		for call, err := range map[string]error{
			"publish": publish, "expand": expand, "find": find, "delete": svc.Delete(t.Context(), p.id), "settle": svc.Settle(t.Context(), p.id),
			"unpublish of another": svc.Unpublish(t.Context(), p.id, nodeB), "delete snapshot": svc.DeleteSnapshot(t.Context(), h),
		} {
			if !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), `"second"`) {
				t.Errorf("%s, %s: %v", what, call, err)
			}
		}
		_, err = svc.CreateSnapshot(t.Context(), "s", p.id, volume.SnapshotClass{})
		wantNamed(t, err, volume.ErrUnavailable, `"second"`)
		_, err = svc.Create(t.Context(), p.id, onSecond()) // as if the first answer was lost
		wantNamed(t, err, volume.ErrUnavailable, `"second"`)
		other := onSecond()
		other.CapacityBytes = 2 * gib
		_, err = svc.Create(t.Context(), p.id, other)
		wantError(t, err, volume.ErrExists)
		p.wantOwner(t, nodeA, 1, true)
		p.wantSecond(t, true, iqnA)
	}
	p.unpublish(t, nodeA)
	obj, err := records.Load(t.Context(), p.client, p.id)
	if err == nil {
		err = p.client.Delete(t.Context(), obj)
	}
	if err != nil {
		t.Fatal(err)
	}
	gone := New(Config{Client: f.client, Servers: one(p.storage), Events: f.events})
	wantNamed(t, gone.Retire(t.Context(), p.id), volume.ErrUnavailable, `"second"`)
	p.record(t) // it is still there
}

// testServersParent: what begins as another volume lies where that lies.
func testServersParent(t *testing.T, _ *rest.Config, f *fixture) {
	p := withSecond(t, f)
	p.create(t)
	s, err := p.snapshot(t, volume.SnapshotID(p.id+"-s"))
	if err != nil {
		t.Fatal(err)
	}
	for name, parent := range map[string]*volume.Parent{"snapshot": {Snapshot: &s.Handle}, "volume": {Volume: p.id}} {
		child := spec()
		child.Parent = parent
		_, err := p.svc.Create(t.Context(), p.id+"-child", child)
		wantNamed(t, err, volume.ErrInvalid, "storage server second", "the default storage server", "backend iscsi and target second")
		if _, err := p.svc.Get(t.Context(), p.id+"-child"); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("%s: a record is left: %v", name, err)
		}
	}
	// The default server may have a snapshot of the same ID.
	p.foreign(t)
	h := volume.SnapshotHandle{Backend: "iscsi", ID: s.Handle.ID}
	_, err = p.svc.Snapshot(t.Context(), h)
	wantError(t, err, volume.ErrNotFound)
	if err := p.svc.DeleteSnapshot(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if _, err := p.svc.Snapshot(t.Context(), s.Handle); err != nil {
		t.Errorf("the other server's was deleted: %v", err)
	}
	p.publish(t, nodeA, 1)
	h.ID += "2"
	_, err = p.snapshot(t, h.ID)
	wantError(t, err, volume.ErrBusy)
	if err := p.svc.DeleteSnapshot(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	p.wantHold(t, h.ID)
	h.Target = "second"
	if err := p.svc.DeleteSnapshot(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	p.wantHold(t, "")
}

// testServersAccount: a node with another key is admitted anew by the server that has the volume.
func testServersAccount(t *testing.T, _ *rest.Config, f *fixture) {
	k := withKeys(t, f)
	t.Cleanup(func() { dropNamed(t, f.client) })
	second := backendtest.New(100 * gib)
	k.svc.servers["second"] = Server{Backend: second}
	id, a := k.id+"-second", k.node("a")
	if _, err := k.svc.Create(t.Context(), id, onSecond()); err != nil {
		t.Fatal(err)
	}
	if _, err := k.svc.Publish(t.Context(), id, a, nil, nil); err != nil {
		t.Fatal(err)
	}
	before, _ := second.Volume(id)
	k.setKey(t, a, newKey(t))
	if wait, err := k.svc.RenewAccount(t.Context(), id, a); wait || err != nil {
		t.Fatalf("wait %v, %v", wait, err)
	}
	if after, _ := second.Volume(id); after.Access.Exports[0].Username == before.Access.Exports[0].Username {
		t.Error("the account is that of the key before")
	}
	delete(k.svc.servers, "second")
	_, err := k.svc.RenewAccount(t.Context(), id, a)
	wantNamed(t, err, volume.ErrUnavailable, `"second"`)
}
