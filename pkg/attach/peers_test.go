package attach_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// peers is what nodes have of each other: exports, the objects of moves, and a clock.
type peers struct {
	mu      sync.Mutex
	hosts   map[string]*host
	exports map[string]*exportedDevice
	// objects are by name, of which each ownership has one: a Begin that is repeated
	// replaces it.
	objects map[string]*move
	begun   int
	passed  time.Duration
	// asking is held while a node is asked for its cache.
	asking sync.Mutex
	// died is told of a process that ended while another node waited for it.
	died func(h *host, at string)
}

// move is the object of one: what was asked, and whether the source serves it.
type move struct {
	volume.MoveRequest
	id            volume.MoveID
	served, ended bool
}

func (w *world) join(h *host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hosts == nil {
		w.hosts, w.exports, w.objects = map[string]*host{}, map[string]*exportedDevice{}, map[string]*move{}
	}
	w.hosts[h.name] = h
}

// lose ends what a node exports: only its kernel knew of it.
func (w *world) lose(h *host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for iqn, l := range w.exports {
		if l.from == h {
			delete(w.exports, iqn)
		}
	}
}

// now is the time in this world, which passes when somebody says so.
func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Unix(1_800_000_000, 0).Add(w.passed)
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passed += d
}

// exportedPrefix begins the names of targets that nodes make.
const exportedPrefix = "iqn.exported:"

// exportedDevice is a device of a node as another one sees it, for as long as the export lasts.
type exportedDevice struct {
	blockdevtest.Device
	w         *world
	from      *host
	iqn       string
	initiator string
	closed    func()
}

func (l *exportedDevice) ReadAt(p []byte, off int64) (int, error) {
	l.w.mu.Lock()
	there := l.w.exports[l.iqn] == l
	l.w.mu.Unlock()
	if !there {
		return 0, unix.EIO
	}
	return l.Device.ReadAt(p, off)
}

// WriteAt implements blockdevtest.Device: the export is read-only.
func (l *exportedDevice) WriteAt([]byte, int64) (int, error) { return 0, unix.EROFS }

// Discard implements blockdevtest.Device.
func (l *exportedDevice) Discard(int64, int64) error { return unix.EROFS }

// exported returns what a target shows to a node.
func (w *world) exported(iqn, node string) *exportedDevice {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.exports[iqn]; l != nil && l.initiator == iqnOf(node) {
		return l
	}
	return nil
}

// exporter is what a node exports, which outlives its plugin.
type exporter struct {
	h    *host
	step blockdevtest.Step
}

// Export implements attach.Exporter.
func (x exporter) Export(ctx context.Context, name, device, initiator string, _ volume.Credentials) (volume.ISCSI, error) {
	iqn := exportedPrefix + x.h.name + ":" + name
	err := x.step.Change(ctx, "export of "+name, func() error {
		x.h.w.mu.Lock()
		defer x.h.w.mu.Unlock()
		d, err := x.h.machine.Device(device)
		if err != nil {
			return err
		}
		if l := x.h.w.exports[iqn]; l != nil {
			if l.Device == d && l.initiator == initiator {
				return nil
			}
			l.closed()
		}
		l := &exportedDevice{w: x.h.w, from: x.h, iqn: iqn, initiator: initiator}
		l.Device, l.closed, err = x.h.machine.Open(device)
		x.h.w.exports[iqn] = l
		return err
	})
	return volume.ISCSI{Portals: []string{"192.0.2.2:3260"}, IQN: iqn}, err
}

// Unexport implements attach.Exporter.
func (x exporter) Unexport(ctx context.Context, name string) error {
	return x.step.Change(ctx, "end of the export of "+name, func() error {
		x.h.w.mu.Lock()
		defer x.h.w.mu.Unlock()
		iqn := exportedPrefix + x.h.name + ":" + name
		if l := x.h.w.exports[iqn]; l != nil {
			l.closed()
			delete(x.h.w.exports, iqn)
		}
		return nil
	})
}

// InUse implements attach.Exporter.
func (x exporter) InUse(context.Context, string) (bool, error) { return false, nil }

// moves are the objects of moves. The node that is asked for its cache answers at once.
type moves struct {
	h    *host
	step blockdevtest.Step
}

// Begin implements volume.Moves.
func (m moves) Begin(ctx context.Context, r volume.MoveRequest) (id volume.MoveID, lease *volume.Lease, err error) {
	w := m.h.w
	err = m.step.Change(ctx, "begin of a move", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.begun++
		id = moveID(r, w.begun)
		w.objects[id.Name] = &move{MoveRequest: r, id: id}
		return nil
	})
	if err != nil || r.Source == nil {
		return id, nil, err
	}
	got, err := w.exportTo(ctx, id, r)
	if err != nil {
		return id, nil, fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	if err := m.step.Query(ctx, "the lease"); err != nil {
		return id, nil, err
	}
	return id, &got, nil
}

// moveID is that of a new object.
func moveID(r volume.MoveRequest, n int) volume.MoveID {
	name := fmt.Sprintf("move-%d", r.Fence.Generation)
	switch r.Purpose {
	case volume.PurposePrewarm:
		name += "-prewarm"
	case volume.PurposeRead:
		name += "-read-" + r.Fence.Node
	case volume.PurposeMove:
	}
	return volume.MoveID{Name: name, UID: fmt.Sprint(n)}
}

// exportTo has the other node answer, by its next process if one ends. What a process asked that has
// ended since, and whose successor has asked anew, is not there any more to be answered.
func (w *world) exportTo(ctx context.Context, id volume.MoveID, r volume.MoveRequest) (lease volume.Lease, err error) {
	w.asking.Lock()
	defer w.asking.Unlock()
	w.mu.Lock()
	from, anew := w.hosts[r.Source.Node], w.objects[id.Name].id != id
	w.mu.Unlock()
	if anew {
		return lease, errors.New("the move was begun anew")
	}
	ask := volume.LeaseRequest{
		Move: id, Volume: r.Volume, UID: r.Fence.UID, Generation: r.Source.Generation, Purpose: r.Purpose, Request: r.Request,
		Method: r.Method, To: r.Fence.Node, Initiator: iqnOf(r.Fence.Node), Credentials: account,
	}
	for {
		p := from.plugin
		ended, err := p.run(func() (err error) {
			lease, err = p.Lessor().Export(ctx, ask)
			return err
		})
		if ended == "" {
			w.mu.Lock()
			w.object(id).served = err == nil
			w.mu.Unlock()
			if r.Method == volume.MethodStream {
				lease.Stream = &volume.StreamSource{Addresses: []string{r.Source.Node}}
			}
			return lease, err
		}
		if ended == replaced {
			return lease, fmt.Errorf("node %s does not answer", r.Source.Node)
		}
		w.died(from, ended)
	}
}

// Refuse implements volume.Moves.
func (m moves) Refuse(ctx context.Context, r volume.MoveRequest, _ string) error {
	return m.step.Change(ctx, "a move that cannot be", func() error {
		m.h.w.mu.Lock()
		defer m.h.w.mu.Unlock()
		m.h.w.begun++
		id := moveID(r, m.h.w.begun)
		m.h.w.objects[id.Name] = &move{MoveRequest: r, id: id, ended: true}
		return nil
	})
}

// Progress implements volume.Moves.
func (m moves) Progress(ctx context.Context, _ volume.MoveID, _ volume.MoveProgress) error {
	return m.step.Query(ctx, "the move") // nothing rests on what is shown
}

// Finish implements volume.Moves.
func (m moves) Finish(ctx context.Context, id volume.MoveID, _ volume.MoveOutcome, _ string) error {
	return m.step.Change(ctx, "end of a move", func() error {
		m.h.w.mu.Lock()
		defer m.h.w.mu.Unlock()
		m.h.w.object(id).ended = true
		return nil
	})
}

// object is that of a move, and one that nobody sees if there is none. It is called with
// the lock held.
func (p *peers) object(id volume.MoveID) *move {
	if obj := p.objects[id.Name]; obj != nil && obj.id == id {
		return obj
	}
	return &move{ended: true}
}

// Exported implements volume.Moves.
func (m moves) Exported(_ context.Context, id volume.MoveID) (bool, error) {
	m.h.w.mu.Lock()
	defer m.h.w.mu.Unlock()
	return m.h.w.object(id).served, nil
}

// Ended implements volume.Moves.
func (m moves) Ended(_ context.Context, r volume.MoveRequest) (bool, error) {
	m.h.w.mu.Lock()
	defer m.h.w.mu.Unlock()
	obj := m.h.w.objects[moveID(r, 0).Name]
	return obj != nil && obj.ended && obj.Fence.UID == r.Fence.UID && obj.Request == r.Request, nil
}

// serve is what the source does about what it exports: it takes back what is not needed any
// more, and says so of what it has lost.
func (w *world) serve(ctx context.Context, h *host, p *plugin) error {
	leases, err := p.Lessor().Leases(ctx)
	if err != nil {
		return err
	}
	now := w.now()
	w.mu.Lock()
	id, serves := leases[volumeID]
	for _, obj := range w.objects {
		if obj.Source != nil && obj.Source.Node == h.name && obj.id != id {
			obj.served = false
		}
	}
	obj := w.object(id)
	due := serves && (obj.ended || now.After(obj.Deadline))
	w.mu.Unlock()
	if !due {
		return nil
	}
	return p.Lessor().Release(ctx, volumeID, id)
}
