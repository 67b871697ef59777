// Package backendtest has an in-memory storage server for tests. It keeps the
// rules that nearflash-target keeps: it admits one initiator at a time, refuses
// outdated generations, and does not delete what is exported.
package backendtest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Extent is what sizes are rounded up to, in bytes, as LVM does.
const Extent = 4 << 20

const thick = "thick"

// Volume is a volume of the Server.
type Volume struct {
	Request backend.Request
	Size    int64
	Access  backend.Access
}

// Server is a backend.Backend in memory.
type Server struct {
	mu   sync.Mutex
	size int64
	// admissions counts the exports, which it names.
	admissions int
	volumes    map[volume.ID]*Volume
	cuts       map[volume.SnapshotID]*backend.Cut
	// made counts the cuts; it is the second at which the last one was made.
	made  int
	epoch string
	// calls are the mutating calls so far, oldest first.
	calls []string

	// Step, when set, is called before (done false) and after (done true) each
	// call took effect; an error becomes the call's.
	Step func(op string, done bool) error
	// Admitted, when set, sees each export before it takes effect.
	Admitted func(id volume.ID, g backend.Grant)
	// Progress, when set, sees each cut that is asked for, before it is shown, and may say how
	// far it is. A new one is done and ready.
	Progress func(c *backend.Cut)
}

var _ backend.Backend = (*Server)(nil)

// New returns a Server with room for size bytes.
func New(size int64) *Server {
	return &Server{size: size, volumes: map[volume.ID]*Volume{}, cuts: map[volume.SnapshotID]*backend.Cut{}}
}

// change is do for what only the cluster with the server's epoch may.
func (s *Server) change(ctx context.Context, op string, id volume.ID, f func() error) error {
	return s.do(op, id, func() error {
		if given := backend.EpochOf(ctx); s.epoch != "" && given != s.epoch {
			return &backend.EpochError{Server: s.epoch, Given: given}
		}
		return f()
	})
}

// do runs f under the lock and between the two steps.
func (s *Server) do(op string, id volume.ID, f func() error) error {
	if s.Step != nil {
		if err := s.Step(op, false); err != nil {
			return err
		}
	}
	s.mu.Lock()
	err := f()
	if err == nil {
		s.calls = append(s.calls, op+" "+string(id))
	}
	s.mu.Unlock()
	if err == nil && s.Step != nil {
		return s.Step(op, true)
	}
	return err
}

// Create implements backend.Backend.
func (s *Server) Create(ctx context.Context, id volume.ID, req backend.Request) error {
	return s.change(ctx, "create", id, func() error {
		size := roundUp(req.SizeBytes)
		if v, ok := s.volumes[id]; ok {
			if v.Size != size || (req.Provisioning != "" && v.Request.Provisioning != req.Provisioning) || v.Request.From != req.From {
				return fmt.Errorf("%w: %s", volume.ErrExists, id)
			}
			return nil
		}
		if err := s.begins(id, req); err != nil {
			return err
		}
		if size > s.free() {
			return fmt.Errorf("%w: %d bytes for %s", volume.ErrNoSpace, size, id)
		}
		s.volumes[id] = &Volume{Request: req, Size: size}
		return nil
	})
}

// Delete implements backend.Backend.
func (s *Server) Delete(ctx context.Context, id volume.ID) error {
	return s.change(ctx, "delete", id, func() error {
		if v, ok := s.volumes[id]; ok && len(v.Access.Exports) > 0 {
			return fmt.Errorf("%w: %s is exported to %s", volume.ErrInUse, id, v.Access.Exports[0].Initiator)
		}
		delete(s.volumes, id)
		return nil
	})
}

// Expand implements backend.Backend.
func (s *Server) Expand(ctx context.Context, id volume.ID, size int64) (int64, error) {
	var now int64
	err := s.change(ctx, "expand", id, func() error {
		v, ok := s.volumes[id]
		if !ok {
			return fmt.Errorf("%w: %s", volume.ErrNotFound, id)
		}
		if grow := roundUp(size) - v.Size; grow > 0 {
			if grow > s.free() {
				return fmt.Errorf("%w: %d bytes more for %s", volume.ErrNoSpace, grow, id)
			}
			v.Size += grow
		}
		now = v.Size
		return nil
	})
	return now, err
}

// Access implements backend.Backend.
func (s *Server) Access(_ context.Context, id volume.ID) (backend.Access, error) {
	var out backend.Access
	err := s.do("access", id, func() error {
		v, ok := s.volumes[id]
		if !ok {
			return fmt.Errorf("%w: %s", volume.ErrNotFound, id)
		}
		out = backend.Access{Generation: v.Access.Generation, SizeBytes: v.Size, Exports: slices.Clone(v.Access.Exports)}
		return nil
	})
	return out, err
}

// AdmittedHosts implements backend.Backend.
func (s *Server) AdmittedHosts(context.Context) (map[string]volume.ID, error) {
	out := map[string]volume.ID{}
	err := s.do("admitted", "", func() error {
		for id, v := range s.volumes {
			for _, e := range v.Access.Exports {
				out[e.Initiator] = id
			}
		}
		return nil
	})
	return out, err
}

// Export implements backend.Backend.
func (s *Server) Export(ctx context.Context, id volume.ID, g backend.Grant) (volume.Source, error) {
	initiator := strings.ToLower(g.Initiator)
	err := s.change(ctx, "export", id, func() error {
		v, ok := s.volumes[id]
		switch {
		case !ok:
			return fmt.Errorf("%w: %s", volume.ErrNotFound, id)
		case g.Generation <= 0 || g.Credentials.Username == "":
			return fmt.Errorf("%w: generation or credentials are missing", volume.ErrInvalid)
		case g.Generation < v.Access.Generation:
			return &backend.StaleGenerationError{ID: id, Stored: v.Access.Generation, Requested: g.Generation}
		}
		beside, err := admitsBeside(v.Access.Exports, initiator, g)
		if err != nil {
			return fmt.Errorf("%w: %s", err, id)
		}
		if s.Admitted != nil {
			s.Admitted(id, g)
		}
		s.admissions++
		next := backend.Export{Initiator: initiator, Generation: g.Generation, Admission: strconv.Itoa(s.admissions), Username: g.Credentials.Username, ReadOnly: g.ReadOnly}
		for _, e := range v.Access.Exports {
			if e.Initiator == initiator && e.LoggedIn && e.Generation == g.Generation {
				next.LoggedIn, next.Username = true, e.Username // a session at work keeps its account
			}
		}
		v.Access = backend.Access{Generation: g.Generation, Exports: append(beside, next)}
		return nil
	})
	if err != nil {
		return volume.Source{}, err
	}
	return volume.Source{ISCSI: volume.ISCSI{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.io.nearflash:test:" + string(id)}}, nil
}

// admitsBeside returns who stays admitted beside one who is to be.
func admitsBeside(have []backend.Export, initiator string, g backend.Grant) (stay []backend.Export, err error) {
	for _, e := range have {
		switch {
		case e.Initiator == initiator && e.Generation == g.Generation && e.ReadOnly != g.ReadOnly:
			return nil, fmt.Errorf("%w: %s has the other kind of access under generation %d", volume.ErrInvalid, initiator, g.Generation)
		case e.Initiator == initiator:
		case e.ReadOnly && g.ReadOnly && e.Generation == g.Generation:
			stay = append(stay, e)
		default:
			return nil, fmt.Errorf("%w: exported to %s", volume.ErrInUse, e.Initiator)
		}
	}
	return stay, nil
}

// Unexport implements backend.Backend.
func (s *Server) Unexport(ctx context.Context, id volume.ID, e backend.Export) error {
	return s.change(ctx, "unexport", id, func() error {
		v, ok := s.volumes[id]
		switch {
		case e.Initiator == "":
			return fmt.Errorf("%w: initiator is missing", volume.ErrInvalid)
		case !ok:
			return nil
		}
		v.Access.Exports = slices.DeleteFunc(v.Access.Exports, func(have backend.Export) bool {
			return have.Initiator == strings.ToLower(e.Initiator) && (e.Admission == "" || e.Admission == have.Admission)
		})
		return nil
	})
}

// Evict ends all access to a volume behind everybody's back.
func (s *Server) Evict(id volume.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.volumes[id]; ok {
		v.Access.Exports = nil
	}
}

// Epoch implements backend.Backend.
func (s *Server) Epoch(context.Context) (backend.Epoch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return backend.Epoch{Server: "test", Value: s.epoch}, nil
}

// SwapEpoch implements backend.Backend.
func (s *Server) SwapEpoch(_ context.Context, current, next string) error {
	return s.do("swap", "epoch", func() error {
		switch {
		case len(next) < 16:
			return fmt.Errorf("%w: epoch %q", volume.ErrInvalid, next)
		case s.epoch == next:
			return nil
		case s.epoch != current:
			return &backend.EpochError{Server: s.epoch, Given: current}
		}
		s.epoch = next
		return nil
	})
}

// Capacity implements backend.Backend.
func (s *Server) Capacity(context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free(), nil
}

// Check implements backend.Backend.
func (s *Server) Check(context.Context) error { return nil }

// Volume returns a copy of a volume and whether it exists.
func (s *Server) Volume(id volume.ID) (Volume, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.volumes[id]
	if !ok {
		return Volume{}, false
	}
	out := *v
	out.Access.Exports = slices.Clone(v.Access.Exports)
	return out, true
}

// Exported returns the initiators that are admitted to a volume.
func (s *Server) Exported(id volume.ID) []string {
	v, _ := s.Volume(id)
	out := []string{}
	for _, e := range v.Access.Exports {
		out = append(out, e.Initiator)
	}
	return out
}

// Login says whether an admitted initiator has a session now.
func (s *Server) Login(id volume.ID, initiator string, in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.volumes[id]
	if !ok {
		return
	}
	for i := range v.Access.Exports {
		if v.Access.Exports[i].Initiator == strings.ToLower(initiator) {
			v.Access.Exports[i].LoggedIn = in
		}
	}
}

// Calls returns the successful calls so far as "operation id".
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *Server) free() int64 {
	left := s.size
	for _, v := range s.volumes {
		left -= v.Size
	}
	for _, c := range s.cuts {
		left -= c.SizeBytes
	}
	return left
}

func roundUp(n int64) int64 { return (n + Extent - 1) / Extent * Extent }
