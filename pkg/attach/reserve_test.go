package attach

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/reservation/reservationtest"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// onePath is a connected LUN with one path.
type onePath struct{ transport.Transport }

func (onePath) Lookup(context.Context, transport.Target) (transport.Origin, bool, error) {
	return transport.Origin{Paths: []string{"/dev/sda"}}, true, nil
}

// onLUN is a Reserver of one path.
type onLUN struct{ path reservation.LUN }

func (u onLUN) LUN(string) reservation.LUN { return u.path }

// oneTop has one device, and remembers its table.
type oneTop struct {
	devmapper.Client
	table devmapper.Table
}

func (d *oneTop) Info(context.Context, string) (map[string]devmapper.Info, error) {
	return map[string]devmapper.Info{"nf-v": {Name: "nf-v", UUID: "NEARFLASH-u-top", HasLive: true}}, nil
}
func (d *oneTop) Table(context.Context, string) (devmapper.Table, error) { return d.table, nil }
func (d *oneTop) ResumeUnfrozen(context.Context, string) error           { return nil }
func (d *oneTop) Await(context.Context, ...string) error                 { return nil }
func (d *oneTop) Load(_ context.Context, _ string, t devmapper.Table) error {
	d.table = t
	return nil
}

// ownerRecords is a record that names an owner, and what was reported of it.
type ownerRecords struct {
	volume.Records
	fence   volume.Fence
	now     volume.Activation
	pending volume.Activation
	err     error
	reports []volume.CacheReport
}

func (r *ownerRecords) Get(context.Context, volume.ID) (volume.Volume, error) {
	return volume.Volume{ID: "v", Fence: r.fence, Activation: r.now, Pending: r.pending}, r.err
}

func (r *ownerRecords) Report(_ context.Context, _ volume.ID, rep volume.CacheReport) error {
	r.reports = append(r.reports, rep)
	return nil
}

// fencedNode is a node with a static volume, of which it holds the reservation.
type fencedNode struct {
	*Attacher
	t           *testing.T
	target      reservationtest.Target
	own, other  *reservationtest.Nexus
	top         *oneTop
	rec         *ownerRecords
	first, next volume.Fence
}

func newFencedNode(t *testing.T) *fencedNode {
	t.Helper()
	n := &fencedNode{
		t: t, first: volume.Fence{UID: "u", Generation: 1, Node: "a"}, next: volume.Fence{UID: "u", Generation: 2, Node: "b"},
		top: &oneTop{table: devmapper.LinearTable(8, "8:0")},
	}
	n.own, n.other, n.rec = n.target.Nexus("a"), n.target.Nexus("b"), &ownerRecords{fence: n.first}
	entries := newJournal(t)
	n.Attacher = New(Config{Node: "a", Boot: "boot"}, Deps{
		DM: n.top, Transport: onePath{}, Journal: entries, Records: n.rec, Reserver: onLUN{n.own}, Locks: &keylock.Set{},
	})
	return n
}

func (n *fencedNode) reserveAs(as state.State, mode volume.CacheMode) *state.Entry {
	n.t.Helper()
	e := &state.Entry{ID: "v", Fence: n.first, State: as, Mode: mode, Activated: mode == volume.ModeWriteback, Static: true}
	o := transport.Origin{Paths: []string{"/dev/sda"}}
	if err := n.reserve(n.t.Context(), stagingOf(e, false), o); err != nil {
		n.t.Fatal(err)
	}
	return e
}

func (n *fencedNode) take(f volume.Fence) {
	n.t.Helper()
	if _, err := reservation.Take(n.t.Context(), []reservation.Path{{LUN: n.other}}, keyOf(f)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *fencedNode) watch() *state.Entry {
	n.t.Helper()
	if err := n.WatchReservations(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	e, err := n.load("v")
	if err != nil || e == nil {
		n.t.Fatalf("entry %v, %v", e, err)
	}
	return e
}

// TestReserveUnsupported: a LUN without reservations needs the volume's consent, and the
// error says which.
func TestReserveUnsupported(t *testing.T) {
	n := newFencedNode(t)
	n.target.Unsupported = true
	e := &state.Entry{ID: "v", Fence: n.first, State: state.Staging, Static: true}
	err := n.reserve(t.Context(), stagingOf(e, false), transport.Origin{Paths: []string{"/dev/sda"}})
	if !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), "withoutReservations") || !strings.Contains(err.Error(), "AcceptTwoWriters") {
		t.Errorf("%v, want ErrInvalid that names the attribute and its value", err)
	}
	if err := n.reserve(t.Context(), stagingOf(e, true), transport.Origin{Paths: []string{"/dev/sda"}}); err != nil || e.Reserved || !e.Unfenced {
		t.Errorf("with consent: %v, %+v", err, e)
	}
	if err := n.reserve(t.Context(), stagingOf(&state.Entry{ID: "w"}, false), transport.Origin{}); err != nil {
		t.Errorf("a volume of the storage server: %v", err)
	}
}

// TestReservationLost: a node that sees a later owner fails the pod's I/O, says it once
// as an event, and stages no more under that ownership.
func TestReservationLost(t *testing.T) {
	n := newFencedNode(t)
	n.reserveAs(state.Staged, volume.ModeNone)
	if e := n.watch(); e.Lost != nil || n.top.table[0].Target.Type() != "linear" {
		t.Fatalf("lost without a reason: %+v, %v", e, n.top.table)
	}
	n.rec.fence = n.next
	n.take(n.next)
	for range 2 {
		e := n.watch()
		if e.Lost == nil || e.Lost.To != keyOf(n.next) || n.top.table[0].Target.Type() != "error" || n.top.table.Sectors() != 8 {
			t.Fatalf("entry %+v, table %v", e.Lost, n.top.table)
		}
	}
	if len(n.rec.reports) != 1 || !n.rec.reports[0].EventOnly || !n.rec.reports[0].Warning {
		t.Errorf("reports %+v", n.rec.reports)
	}
	e := n.watch()
	plan := decideStage(stageFacts{Entry: e, SameBoot: true, TopActive: true, TopOurs: true, Fence: n.first, Node: "a",
		Record: volume.Volume{Fence: n.first, Published: true}})
	if !errors.Is(plan.Refuse, volume.ErrFenced) {
		t.Errorf("stage of the lost ownership: %+v", plan)
	}
}

// TestReservationForgotten: a target that forgot is told again only if the record can be
// read and names this ownership.
func TestReservationForgotten(t *testing.T) {
	n := newFencedNode(t)
	n.reserveAs(state.Staged, volume.ModeNone)
	n.target.Restart()
	n.rec.err = volume.ErrUnavailable
	n.watch()
	if err := n.other.Write(t.Context()); err != nil {
		t.Errorf("reserved without a record: %v", err)
	}
	n.rec.err = nil
	n.watch()
	if n.other.Write(t.Context()) == nil {
		t.Error("not reserved again")
	}
	n.target.Restart()
	n.rec.fence = n.next
	if e := n.watch(); e.Lost == nil || e.Lost.To != 0 {
		t.Errorf("the record names a later owner: %+v", e.Lost)
	}
}

// TestReservationOfASpare: another machine under this node's name, which has taken the LUN
// with the same key, is not joined by paths of this one.
func TestReservationOfASpare(t *testing.T) {
	ours := volume.Activation{ID: "ours", Generation: 1, Count: 3}
	for name, c := range map[string]struct {
		now, pending volume.Activation
		err          error
		joins        bool
	}{
		"a target that forgot a path": {now: ours, joins: true},
		"the record is silent":        {now: ours, err: volume.ErrUnavailable},
		"the spare stages":            {now: ours, pending: volume.Activation{ID: "spare", Generation: 1, Count: 4}},
		"the spare has staged":        {now: volume.Activation{ID: "spare", Generation: 1, Count: 4}},
		"of an earlier owner":         {now: ours, pending: volume.Activation{ID: "old", Generation: 0, Count: 2}, joins: true},
	} {
		n := newFencedNode(t)
		e := n.reserveAs(state.Staged, volume.ModeNone)
		e.ActivationID, e.ActivationCount = ours.ID, ours.Count
		if err := n.save(t.Context(), e, e.State); err != nil {
			t.Fatal(err)
		}
		n.take(n.first) // the same key, from another machine
		n.rec.now, n.rec.pending, n.rec.err = c.now, c.pending, c.err
		second := n.target.Nexus("a-2")
		n.Transport, n.Reserver = twoPaths{}, onLUNs{"/dev/sda": n.own, "/dev/sdb": second}
		n.watch()
		if joined := n.own.Write(t.Context()) == nil; joined != c.joins {
			t.Errorf("%s: this machine writes beside the spare: %t, want %t", name, joined, c.joins)
		}
	}
}

// twoPaths is a connected LUN with two paths.
type twoPaths struct{ transport.Transport }

func (twoPaths) Lookup(context.Context, transport.Target) (transport.Origin, bool, error) {
	return transport.Origin{Paths: []string{"/dev/sda", "/dev/sdb"}}, true, nil
}

// onLUNs is a Reserver of several paths.
type onLUNs map[string]reservation.LUN

func (u onLUNs) LUN(path string) reservation.LUN { return u[path] }

// TestReservationNeverHad: a volume that an earlier version attached, and one that accepts
// two writers, are left alone.
func TestReservationNeverHad(t *testing.T) {
	n := newFencedNode(t)
	for _, e := range []state.Entry{
		{ID: "v", Fence: n.first, State: state.Staged, Mode: volume.ModeNone, Static: true},
		{ID: "v", Fence: n.first, State: state.Staged, Mode: volume.ModeNone, Static: true, Unfenced: true},
	} {
		if err := n.Journal.Save("v", e); err != nil {
			t.Fatal(err)
		}
		n.take(n.next)
		if got := n.watch(); got.Lost != nil || n.top.table[0].Target.Type() != "linear" {
			t.Errorf("%+v", got)
		}
	}
}

// TestReserveAgain: what repair may flush after a restart of the node.
func TestReserveAgain(t *testing.T) {
	o := transport.Origin{Paths: []string{"/dev/sda"}}
	for name, c := range map[string]struct {
		prestage func(*fencedNode)
		want     error
		lost     bool
	}{
		"ours":                           {func(*fencedNode) {}, nil, false},
		"forgotten, the record names us": {func(n *fencedNode) { n.target.Restart() }, nil, false},
		"forgotten, no record": {func(n *fencedNode) {
			n.target.Restart()
			n.rec.err = volume.ErrNotFound
		}, volume.ErrUnavailable, false},
		"no record, but our key": {func(n *fencedNode) { n.rec.err = volume.ErrNotFound }, nil, false},
		"another record":         {func(n *fencedNode) { n.target.Restart(); n.rec.fence.UID = "restored" }, volume.ErrUnavailable, false},
		"a later owner":          {func(n *fencedNode) { n.take(n.next) }, volume.ErrFenced, true},
		"a later owner that left": {func(n *fencedNode) {
			n.target.Restart()
			n.rec.fence = n.next
		}, volume.ErrFenced, true},
		"no path": {func(n *fencedNode) { n.target.Down(n.own, true) }, volume.ErrUnavailable, false},
	} {
		n := newFencedNode(t)
		e := n.reserveAs(state.Staged, volume.ModeWriteback)
		c.prestage(n)
		err := n.reserveAgain(t.Context(), e, o)
		if !errors.Is(err, c.want) || c.want == nil && err != nil || (e.Lost != nil) != c.lost {
			t.Errorf("%s: %v, lost %+v", name, err, e.Lost)
		}
	}
}

// TestReserveAgainUnfenced: repair flushes a volume whose LUN has no reservations if the volume
// accepts that, also after a stage that could not ask the LUN; not one that was reserved.
func TestReserveAgainUnfenced(t *testing.T) {
	o := transport.Origin{Paths: []string{"/dev/sda"}}
	for name, c := range map[string]struct {
		entry state.Entry
		want  error
	}{
		"accepted":                    {state.Entry{Unfenced: true}, nil},
		"of a version that did not":   {state.Entry{}, nil},
		"reserved until now":          {state.Entry{Reserved: true, Inherited: true}, volume.ErrUnavailable},
		"accepted, a stage has ended": {state.Entry{Reserved: true, Inherited: true, Unfenced: true}, nil},
	} {
		n := newFencedNode(t)
		n.target.Unsupported = true
		e := c.entry
		e.ID, e.Fence, e.State, e.Mode, e.Static = "v", n.first, state.Staged, volume.ModeWriteback, true
		again := e
		if err := n.reserveAgain(t.Context(), &e, o); !errors.Is(err, c.want) || c.want == nil && (err != nil || e.Reserved) {
			t.Errorf("%s: %v, %+v", name, err, e)
		}
		// One that knows reservations, but not those of several paths, counts as one without.
		n.target.Unsupported, n.target.OnePathPerHost = false, true
		n.Reserver = onLUNs{"/dev/sda": n.own, "/dev/sdb": n.target.Nexus("a")}
		two := transport.Origin{Paths: []string{"/dev/sda", "/dev/sdb"}}
		if err := n.reserveAgain(t.Context(), &again, two); !errors.Is(err, c.want) || c.want == nil && (err != nil || again.Reserved) {
			t.Errorf("%s, of several paths: %v, %+v", name, err, again)
		}
	}

	// The stage that could not ask, and repair after it.
	n := newFencedNode(t)
	n.target.Unsupported = true
	before := &state.Entry{ID: "v", Fence: n.first, State: state.Staged, Mode: volume.ModeWriteback, Activated: true, Static: true, Unfenced: true}
	s := &staging{req: volume.StageRequest{ID: "v", Publication: volume.Publication{Fence: n.first}}, entry: before, rec: volume.Volume{Spec: volume.Spec{Static: &volume.ISCSI{}}}, plan: stagePlan{Cache: planRecover, Mode: volume.ModeWriteback}}
	if err := n.saveIntent(t.Context(), s); err != nil || !s.entry.Unfenced {
		t.Fatalf("the intent: %v, %+v", err, s.entry)
	}
	n.target.Down(n.own, true)
	if err := n.reserve(t.Context(), stagingOf(s.entry, true), o); !errors.Is(err, volume.ErrUnavailable) {
		t.Fatalf("a path that does not answer: %v", err)
	}
	n.target.Down(n.own, false)
	e, err := n.load("v")
	if err == nil {
		err = n.reserveAgain(t.Context(), e, o)
	}
	if err != nil || e.Reserved || e.Inherited {
		t.Errorf("repair after a stage that could not ask: %v, %+v", err, e)
	}

	// A LUN that can be reserved after all is no unfenced one from then on.
	n.target.Unsupported = false
	if err := n.reserve(t.Context(), stagingOf(e, true), o); err != nil || !e.Reserved || e.Unfenced {
		t.Errorf("reserved after all: %v, %+v", err, e)
	}
	n.target.Unsupported = true
	if err := n.reserveAgain(t.Context(), e, o); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("a LUN that had a reservation: %v, want ErrUnavailable", err)
	}
}

// TestLostForeign: unflushed writes are not abandoned because a host outside of nearflash
// has reserved the LUN, but for a later owner they are.
func TestLostForeign(t *testing.T) {
	for name, c := range map[string]struct {
		to     reservation.Key
		given  bool
		action downAction
	}{
		"a later owner":  {keyOf(volume.Fence{UID: "u", Generation: 2}), false, downWipe},
		"a host outside": {0x1234, false, ""},
		"a host outside, and the writes are abandoned": {0x1234, true, downWipe},
	} {
		n := newFencedNode(t)
		e := n.reserveAs(state.Staged, volume.ModeWriteback)
		e.Lost = &state.Lost{To: c.to}
		if err := n.save(t.Context(), e, e.State); err != nil {
			t.Fatal(err)
		}
		n.Records = dirtyRecords{n.rec, !c.given}
		f, _, err := n.gatherDown(t.Context(), "v")
		if c.action == "" {
			if !errors.Is(err, volume.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", name, err)
			}
			continue
		}
		if err != nil || decideDown(f) != c.action {
			t.Errorf("%s: %s, %v, want %s", name, decideDown(f), err, c.action)
		}
	}
}

type dirtyRecords struct {
	*ownerRecords
	dirty bool
}

func (r dirtyRecords) Get(context.Context, volume.ID) (volume.Volume, error) {
	return volume.Volume{ID: "v", Fence: r.fence, PossiblyDirty: r.dirty, GivenUp: !r.dirty}, nil
}

// TestKnownReservation: whose reservation it is that the own key holds, by the journal.
func TestKnownReservation(t *testing.T) {
	n := newFencedNode(t)
	now := volume.Activation{ID: "now", Generation: 1, Count: 2}
	entry := func(change func(*state.Entry)) *state.Entry {
		e := &state.Entry{ID: "v", Fence: n.first, Boot: "boot", Static: true, Reserved: true, ActivationID: "now", ActivationCount: 2}
		if change != nil {
			change(e)
		}
		return e
	}
	for name, c := range map[string]struct {
		e       *state.Entry
		pending volume.Activation
		fence   volume.Fence
		want    bool
	}{
		"this boot's":                {e: entry(nil), want: true},
		"no journal":                 {},
		"another fence's":            {e: entry(nil), fence: n.next},
		"given back":                 {e: entry(func(e *state.Entry) { e.Reserved = false })},
		"inherited":                  {e: entry(func(e *state.Entry) { e.Inherited = true })},
		"of before the node started": {e: entry(func(e *state.Entry) { e.Boot = "before" })},
		"of an image":                {e: entry(func(e *state.Entry) { e.ActivationID, e.ActivationCount = "then", 1 })},
		"another machine stages":     {e: entry(nil), pending: volume.Activation{ID: "spare", Generation: 1, Count: 3}},
	} {
		fence := n.first
		if c.fence != (volume.Fence{}) {
			fence = c.fence
		}
		s := &staging{req: volume.StageRequest{ID: "v", Publication: volume.Publication{Fence: fence}}, entry: c.e, rec: volume.Volume{Fence: n.first, Spec: volume.Spec{Static: &volume.ISCSI{}}, Activation: now, Pending: c.pending}}
		if s.reserved, s.inherited = n.knownReservation(s.entry, s.rec, fence); (s.reserved && !s.inherited) != c.want {
			t.Errorf("%s: reserved %t, inherited %t, want it to be this machine's: %t", name, s.reserved, s.inherited, c.want)
		}
		// What the intent of the stage keeps of it, should it end before it reserves anew.
		if err := n.saveIntent(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		reserved := c.e != nil && c.e.Reserved && c.e.Fence == fence
		if got := s.entry; got.Reserved != reserved || got.Inherited != (reserved && !c.want) {
			t.Errorf("%s: the intent says reserved %t, inherited %t", name, got.Reserved, got.Inherited)
		}
	}
}

// TestInheritedByRepair: repair, which reserves the LUN again, does not forget that it was
// inherited, nor does it end what it does not know who made.
func TestInheritedByRepair(t *testing.T) {
	o := transport.Origin{Paths: []string{"/dev/sda"}}
	for name, c := range map[string]struct {
		reserved, inherited, want bool
	}{
		"made by this node": {reserved: true},
		"inherited":         {reserved: true, inherited: true, want: true},
		"nobody knows":      {want: true},
	} {
		n := newFencedNode(t)
		e := n.reserveAs(state.Staged, volume.ModeWriteback)
		e.Reserved, e.Inherited = c.reserved, c.inherited
		if err := n.reserveAgain(t.Context(), e, o); err != nil || e.Inherited != c.want {
			t.Errorf("%s: %v, inherited %t", name, err, e.Inherited)
		}
		n.giveReservation(t.Context(), e)
		if free := n.other.Write(t.Context()) == nil; free == c.want {
			t.Errorf("%s: the LUN is free afterwards: %t", name, free)
		}
	}
}

// TestGiveReservation: unstage leaves no key, unless an earlier owner had the LUN, who may
// be writing still and has not seen that it lost it.
func TestGiveReservation(t *testing.T) {
	before := volume.Fence{UID: "u", Generation: 0, Node: "b"}
	for name, c := range map[string]struct {
		prestage func(*fencedNode)
		own      bool
		writes   bool
	}{
		"nobody had it":               {prestage: func(*fencedNode) {}, writes: true},
		"an owner before had it":      {prestage: func(n *fencedNode) { n.take(before) }},
		"another record's had it":     {prestage: func(n *fencedNode) { n.take(volume.Fence{UID: "restored", Generation: 4}) }},
		"made by a stage of before":   {prestage: func(n *fencedNode) { n.reserveAs(state.Staged, volume.ModeNone) }, own: true, writes: true},
		"the own key, of an unknown":  {prestage: func(n *fencedNode) { n.take(n.first) }},
		"inherited by a stage before": {prestage: func(n *fencedNode) { n.take(before); n.reserveAs(state.Staged, volume.ModeNone) }},
	} {
		n := newFencedNode(t)
		c.prestage(n)
		e := &state.Entry{ID: "v", Fence: n.first, State: state.Staging, Static: true, Reserved: c.own}
		if err := n.reserve(t.Context(), stagingOf(e, false), transport.Origin{Paths: []string{"/dev/sda"}}); err != nil {
			t.Fatal(err)
		}
		if err := n.own.Write(t.Context()); err != nil {
			t.Errorf("%s: the owner's write: %v", name, err)
		}
		saved, err := n.load("v")
		if err != nil || saved.Inherited == c.writes {
			t.Errorf("%s: the journal says inherited %t, %v", name, saved.Inherited, err)
		}
		n.giveReservation(t.Context(), e)
		if writes := n.other.Write(t.Context()) == nil; writes != c.writes {
			t.Errorf("%s: the other node writes when the owner has left: %t, want %t", name, writes, c.writes)
		}
		keys, err := n.other.Keys(t.Context())
		if err != nil || c.writes && len(keys) > 0 {
			t.Errorf("%s: keys %v, %v", name, keys, err)
		}
		// Whoever comes next takes it.
		n.take(n.next)
		if err := n.other.Write(t.Context()); err != nil {
			t.Errorf("%s: the next owner's write: %v", name, err)
		}
	}
}
