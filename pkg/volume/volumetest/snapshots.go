package volumetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

var _ volume.Snapshotter = (*Provisioner)(nil)

// CreateSnapshot implements volume.Snapshotter.
func (p *Provisioner) CreateSnapshot(_ context.Context, id volume.SnapshotID, of volume.ID, _ volume.SnapshotClass) (volume.Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := volume.SnapshotHandle{Backend: "iscsi", ID: id}
	if s, ok := p.snapshots[h]; ok {
		if s.Volume != of {
			return volume.Snapshot{}, fmt.Errorf("%w: snapshot %s is of volume %s", volume.ErrExists, id, s.Volume)
		}
		return s, nil
	}
	v, err := p.get(of)
	if err != nil {
		return volume.Snapshot{}, err
	}
	p.created++
	s := volume.Snapshot{Handle: h, Volume: of, SizeBytes: v.Spec.CapacityBytes, Created: time.Unix(int64(p.created), 0), Ready: true}
	p.snapshots[h] = s
	return s, nil
}

// DeleteSnapshot implements volume.Snapshotter.
func (p *Provisioner) DeleteSnapshot(_ context.Context, h volume.SnapshotHandle) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.snapshots[h]; there && h.ID.Group() != "" {
		return fmt.Errorf("%w: snapshot_id %q: it is of group %s", volume.ErrInvalid, h, h.ID.Group())
	}
	delete(p.snapshots, h)
	return nil
}

// Snapshot implements volume.Snapshotter.
func (p *Provisioner) Snapshot(_ context.Context, h volume.SnapshotHandle) (volume.Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.snapshots[h]
	if !ok {
		return volume.Snapshot{}, fmt.Errorf("%w: snapshot %s", volume.ErrNotFound, h)
	}
	return s, nil
}

// Snapshots implements volume.Snapshotter.
func (p *Provisioner) Snapshots(context.Context) ([]volume.Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []volume.Snapshot
	for _, s := range p.snapshots {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b volume.Snapshot) int { return cmp.Compare(a.Handle.String(), b.Handle.String()) })
	return out, nil
}

// begins says whether a volume can begin as its spec says.
func (p *Provisioner) begins(spec volume.Spec) error {
	if spec.Parent == nil {
		return nil
	}
	size := int64(0)
	if h := spec.Parent.Snapshot; h != nil {
		s, ok := p.snapshots[*h]
		if !ok {
			return fmt.Errorf("%w: snapshot %s", volume.ErrNotFound, h)
		}
		size = s.SizeBytes
	} else {
		v, err := p.get(spec.Parent.Volume)
		if err != nil {
			return err
		}
		size = v.Spec.CapacityBytes
	}
	if spec.CapacityBytes < size {
		return fmt.Errorf("%w: %d bytes: accepted are %d and more", volume.ErrOutOfRange, spec.CapacityBytes, size)
	}
	return nil
}
