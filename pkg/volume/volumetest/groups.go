package volumetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nearflash/nearflash/pkg/volume"
)

var _ volume.GroupSnapshotter = (*Provisioner)(nil)

// CreateGroup implements volume.GroupSnapshotter.
func (p *Provisioner) CreateGroup(ctx context.Context, id volume.GroupID, of []volume.ID, class volume.SnapshotClass) ([]volume.Snapshot, error) {
	if have, err := p.Group(ctx, id); err == nil {
		var volumes []volume.ID
		for _, s := range have {
			volumes = append(volumes, s.Volume)
		}
		if !slices.Equal(slices.Sorted(slices.Values(volumes)), slices.Sorted(slices.Values(of))) {
			return nil, fmt.Errorf("%w: group %s is of volumes %v", volume.ErrExists, id, volumes)
		}
		return have, nil
	}
	for _, v := range of {
		if _, err := p.Get(ctx, v); err != nil {
			return nil, err
		}
	}
	for _, v := range of {
		if _, err := p.CreateSnapshot(ctx, id.Member(v), v, class); err != nil {
			return nil, err
		}
	}
	return p.Group(ctx, id)
}

// DeleteGroup implements volume.GroupSnapshotter.
func (p *Provisioner) DeleteGroup(ctx context.Context, id volume.GroupID, snapshots []volume.SnapshotHandle) error {
	have, _ := p.Group(ctx, id) // none is nothing to delete
	for _, s := range have {
		if !slices.Contains(snapshots, s.Handle) {
			return fmt.Errorf("%w: %s is missing", volume.ErrInvalid, s.Handle)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range have {
		delete(p.snapshots, s.Handle)
	}
	return nil
}

// Group implements volume.GroupSnapshotter.
func (p *Provisioner) Group(_ context.Context, id volume.GroupID) ([]volume.Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []volume.Snapshot
	for h, s := range p.snapshots {
		if h.ID.Group() == id {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: group %s", volume.ErrNotFound, id)
	}
	slices.SortFunc(out, func(a, b volume.Snapshot) int { return cmp.Compare(a.Handle.ID, b.Handle.ID) })
	return out, nil
}
