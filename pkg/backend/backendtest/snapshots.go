package backendtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ backend.Snapshots = (*Server)(nil)

// cutOf makes a cut that is done and ready.
func (s *Server) cutOf(id volume.SnapshotID, of volume.ID, req backend.CutRequest) (*backend.Cut, error) {
	if _, err := volume.ParseID(string(id)); err != nil {
		return nil, err
	}
	if c, ok := s.cuts[id]; ok {
		if c.Volume != of {
			return nil, fmt.Errorf("%w: snapshot %s is of volume %s", volume.ErrExists, id, c.Volume)
		}
		return c, nil
	}
	v, ok := s.volumes[of]
	switch {
	case req.Hold == "":
		return nil, noHold(id)
	case !ok:
		return nil, fmt.Errorf("%w: %s", volume.ErrNotFound, of)
	case v.Request.Provisioning == thick:
		return nil, fmt.Errorf("%w: volume %s is thick: only a thin volume has snapshots", volume.ErrInvalid, of)
	case v.Size > s.free():
		return nil, fmt.Errorf("%w: %d bytes for a snapshot of %s", volume.ErrNoSpace, v.Size, of)
	}
	s.made++
	return &backend.Cut{
		ID: id, Volume: of, SizeBytes: v.Size, Hold: req.Hold, Filesystem: req.Filesystem,
		Created: time.Unix(int64(s.made), 0).UTC(), Done: true, Ready: true,
	}, nil
}

// CanCut implements backend.Snapshots.
func (s *Server) CanCut(_ context.Context, of volume.ID, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.volumes[of]
	switch {
	case !ok:
		return fmt.Errorf("%w: %s", volume.ErrNotFound, of)
	case v.Request.Provisioning == thick:
		return fmt.Errorf("%w: volume %s is thick: only a thin volume has snapshots", volume.ErrInvalid, of)
	}
	return nil
}

// CanBegin implements backend.Snapshots.
func (s *Server) CanBegin(_ context.Context, id, _ volume.ID, req backend.Request) error {
	if req.Provisioning == thick {
		return thickCopy(id)
	}
	return nil
}

func thickCopy(id volume.ID) error {
	return fmt.Errorf("%w: provisioning thick: volume %s is to begin as a snapshot, and is thin", volume.ErrInvalid, id)
}

// Cut implements backend.Snapshots.
func (s *Server) Cut(ctx context.Context, id volume.SnapshotID, of volume.ID, req backend.CutRequest) (backend.Cut, error) {
	var out backend.Cut
	err := s.change(ctx, "cut", volume.ID(id), func() error {
		c, err := s.cutOf(id, of, req)
		if err != nil {
			return err
		}
		s.cuts[id] = c
		out = s.look(c)
		return nil
	})
	return out, err
}

// look is a cut as it is at this moment.
func (s *Server) look(c *backend.Cut) backend.Cut {
	if s.Progress != nil {
		s.Progress(c)
	}
	return *c
}

// Find implements backend.Snapshots.
func (s *Server) Find(_ context.Context, id volume.SnapshotID) (backend.Cut, error) {
	var out backend.Cut
	err := s.do("find", volume.ID(id), func() error {
		c, ok := s.cuts[id]
		if !ok {
			return noCut(id)
		}
		out = s.look(c)
		return nil
	})
	return out, err
}

func noCut(id volume.SnapshotID) error {
	return fmt.Errorf("%w: snapshot %s", volume.ErrNotFound, id)
}

// Accept implements backend.Snapshots.
func (s *Server) Accept(ctx context.Context, id volume.SnapshotID, hold string) error {
	return s.change(ctx, "accept", volume.ID(id), func() error {
		c, ok := s.cuts[id]
		switch {
		case hold == "":
			return noHold(id)
		case !ok || c.Hold != hold || !c.Done:
			return noCut(id)
		}
		c.Accepted = true
		return nil
	})
}

// DropCut implements backend.Snapshots.
func (s *Server) DropCut(ctx context.Context, id volume.SnapshotID, hold string) error {
	return s.change(ctx, "drop-cut", volume.ID(id), func() error {
		if hold == "" {
			return noHold(id)
		}
		if c, ok := s.cuts[id]; ok && !c.Accepted && c.Hold == hold {
			delete(s.cuts, id)
		}
		return nil
	})
}

func noHold(id volume.SnapshotID) error {
	return fmt.Errorf("%w: hold of snapshot %s is missing", volume.ErrInvalid, id)
}

// DeleteCut implements backend.Snapshots.
func (s *Server) DeleteCut(ctx context.Context, id volume.SnapshotID) error {
	return s.change(ctx, "delete-cut", volume.ID(id), func() error {
		delete(s.cuts, id)
		return nil
	})
}

// Cuts implements backend.Snapshots.
func (s *Server) Cuts(context.Context) ([]backend.Cut, error) {
	var out []backend.Cut
	err := s.do("cuts", "", func() error {
		for _, id := range slices.Sorted(maps.Keys(s.cuts)) {
			out = append(out, s.look(s.cuts[id]))
		}
		return nil
	})
	return out, err
}

// begins says whether a new volume can begin as its request says.
func (s *Server) begins(id volume.ID, req backend.Request) error {
	if req.From == "" {
		return nil
	}
	c, ok := s.cuts[req.From]
	switch {
	case !ok || !c.Accepted:
		return noCut(req.From)
	case req.Provisioning == thick:
		return thickCopy(id)
	case req.SizeBytes < c.SizeBytes:
		return fmt.Errorf("%w: size %d of volume %s: accepted are %d bytes, the size of snapshot %s, and more", volume.ErrInvalid, req.SizeBytes, id, c.SizeBytes, c.ID)
	case !s.look(c).Ready:
		return fmt.Errorf("%w: snapshot %s is not ready yet", volume.ErrBusy, c.ID)
	}
	return nil
}
