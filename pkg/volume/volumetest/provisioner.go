// Package volumetest has in-memory implementations of the interfaces between
// the layers, with the rules that the real ones keep.
package volumetest

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Provisioner is volume.Provisioner in memory.
type Provisioner struct {
	mu      sync.Mutex
	nodes   []string
	free    int64
	created int
	volumes map[volume.ID]*volume.Volume

	snapshots map[volume.SnapshotHandle]volume.Snapshot
}

var _ volume.Provisioner = (*Provisioner)(nil)

// NewProvisioner returns a Provisioner that knows the named nodes and has free
// bytes.
func NewProvisioner(free int64, nodes ...string) *Provisioner {
	return &Provisioner{nodes: nodes, free: free, volumes: map[volume.ID]*volume.Volume{}, snapshots: map[volume.SnapshotHandle]volume.Snapshot{}}
}

// Create implements volume.Provisioner.
func (p *Provisioner) Create(_ context.Context, id volume.ID, spec volume.Spec) (volume.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v, ok := p.volumes[id]; ok {
		if !reflect.DeepEqual(v.Spec, spec) {
			return volume.Volume{}, fmt.Errorf("%w: %s", volume.ErrExists, id)
		}
		return *v, nil
	}
	if err := p.begins(spec); err != nil {
		return volume.Volume{}, err
	}
	if spec.CapacityBytes > p.free {
		return volume.Volume{}, fmt.Errorf("%w: %d bytes are free", volume.ErrNoSpace, p.free)
	}
	p.free -= spec.CapacityBytes
	p.created++
	v := &volume.Volume{ID: id, Spec: spec, Fence: volume.Fence{UID: fmt.Sprintf("uid-%d", p.created)}}
	p.volumes[id] = v
	return *v, nil
}

// Delete implements volume.Provisioner.
func (p *Provisioner) Delete(_ context.Context, id volume.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.volumes[id]
	if !ok {
		return nil
	}
	if v.Published {
		return fmt.Errorf("%w: %s is published to %s", volume.ErrInUse, id, v.Fence.Node)
	}
	p.free += v.Spec.CapacityBytes
	delete(p.volumes, id)
	return nil
}

// Get implements volume.Provisioner.
func (p *Provisioner) Get(_ context.Context, id volume.ID) (volume.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.get(id)
}

func (p *Provisioner) get(id volume.ID) (volume.Volume, error) {
	v, ok := p.volumes[id]
	if !ok {
		return volume.Volume{}, fmt.Errorf("%w: %s", volume.ErrNotFound, id)
	}
	return *v, nil
}

// List implements volume.Provisioner.
func (p *Provisioner) List(context.Context) ([]volume.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]volume.Volume, 0, len(p.volumes))
	for _, v := range p.volumes {
		out = append(out, *v)
	}
	slices.SortFunc(out, func(a, b volume.Volume) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Publish implements volume.Provisioner.
func (p *Provisioner) Publish(_ context.Context, id volume.ID, node string, static *volume.Spec, _ *volume.Credentials) (volume.Publication, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.volumes[id]
	if !ok && static != nil {
		p.created++
		v = &volume.Volume{ID: id, Spec: *static, Fence: volume.Fence{UID: fmt.Sprintf("uid-%d", p.created)}}
		p.volumes[id], ok = v, true
	}
	switch {
	case !ok:
		return volume.Publication{}, fmt.Errorf("%w: %s", volume.ErrNotFound, id)
	case !slices.Contains(p.nodes, node):
		return volume.Publication{}, fmt.Errorf("%w: %s", volume.ErrNodeNotFound, node)
	case v.Published && v.Fence.Node == volume.Readers:
		return volume.Publication{}, fmt.Errorf("%w: %s is read by %v", volume.ErrInUse, id, v.Readers)
	case v.Published && v.Fence.Node != node:
		return volume.Publication{}, fmt.Errorf("%w: %s is published to %s", volume.ErrFenced, id, v.Fence.Node)
	}
	if v.Fence.Node != node {
		v.Fence.Node = node
		v.Fence.Generation++
	}
	v.Published = true
	return volume.Publication{Fence: v.Fence, Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.test:" + string(id)}}}, nil
}

// PublishReader implements volume.Provisioner.
func (p *Provisioner) PublishReader(_ context.Context, id volume.ID, node string, _ *volume.Spec, _ *volume.Credentials) (volume.Publication, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.volumes[id]
	switch {
	case !ok:
		return volume.Publication{}, fmt.Errorf("%w: %s", volume.ErrNotFound, id)
	case !slices.Contains(p.nodes, node):
		return volume.Publication{}, fmt.Errorf("%w: %s", volume.ErrNodeNotFound, node)
	case v.Published && v.Fence.Node != volume.Readers:
		return volume.Publication{}, fmt.Errorf("%w: %s is published to %s", volume.ErrInUse, id, v.Fence.Node)
	}
	if v.Fence.Node != volume.Readers {
		v.Fence.Node, v.Readers = volume.Readers, nil
		v.Fence.Generation++
	}
	if !slices.Contains(v.Readers, node) {
		v.Readers = append(v.Readers, node)
	}
	v.Published = true
	f := v.Fence
	f.Node = node
	return volume.Publication{Fence: f, Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.test:" + string(id)}}}, nil
}

// Unpublish implements volume.Provisioner.
func (p *Provisioner) Unpublish(_ context.Context, id volume.ID, node string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.volumes[id]
	if !ok {
		return fmt.Errorf("%w: %s", volume.ErrNotFound, id)
	}
	if v.Fence.Node == volume.Readers {
		v.Readers = slices.DeleteFunc(v.Readers, func(n string) bool { return n == node || node == volume.Readers })
		v.Published = len(v.Readers) > 0
	}
	if v.Fence.Node == node {
		v.Published = false
	}
	return nil
}

// Expand implements volume.Provisioner.
func (p *Provisioner) Expand(_ context.Context, id volume.ID, size int64) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.volumes[id]
	if !ok {
		return 0, fmt.Errorf("%w: %s", volume.ErrNotFound, id)
	}
	v.Spec.CapacityBytes = max(v.Spec.CapacityBytes, size)
	return v.Spec.CapacityBytes, nil
}

// Modify implements volume.Provisioner. Every node is done at once.
func (p *Provisioner) Modify(_ context.Context, id volume.ID, decide func(volume.Spec) (volume.Spec, error)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.volumes[id]
	if !ok {
		return fmt.Errorf("%w: %s", volume.ErrNotFound, id)
	}
	spec, err := decide(v.Spec)
	if err != nil {
		return err
	}
	v.Spec = spec
	return nil
}
