package lvol

import (
	"context"
	"errors"
	"fmt"
)

// poolFull is the fill level from which a thin pool takes no new volumes: writes
// of the existing ones need the rest.
const poolFull = 95.0

// Capacity is the room for volumes of one kind, in bytes.
type Capacity struct {
	// AvailableBytes can be promised to new volumes, MaximumBytes to one.
	AvailableBytes, MaximumBytes int64
	// TotalBytes and UsedBytes describe the group, or the pool's fill level.
	TotalBytes, UsedBytes int64
	// MetadataPercent is the fill level of the pool's metadata.
	MetadataPercent float64
}

// Capacity reports the room for thin or thick volumes. A thin pool may be promised
// MaxOvercommit times, but nothing more once it is nearly full.
// Errors: ErrNoPool.
func (m *Manager) Capacity(ctx context.Context, thin bool) (Capacity, error) {
	if !thin {
		vg, err := m.readVG(ctx)
		if err != nil {
			return Capacity{}, err
		}
		return Capacity{AvailableBytes: vg.free, MaximumBytes: vg.free, TotalBytes: vg.size, UsedBytes: vg.size - vg.free}, nil
	}
	if m.cfg.ThinPool == "" {
		return Capacity{}, ErrNoPool
	}
	rows, err := m.lvs(ctx, m.cfg.VolumeGroup)
	if err != nil {
		return Capacity{}, err
	}
	pool, err := m.readPool(rows)
	if err != nil {
		return Capacity{}, err
	}
	c := Capacity{
		TotalBytes:      pool.size,
		UsedBytes:       int64(float64(pool.size) * pool.dataPercent / 100),
		MetadataPercent: pool.metadataPercent,
	}
	if pool.dataPercent < poolFull && pool.metadataPercent < poolFull {
		free := int64(float64(pool.size)*m.cfg.MaxOvercommit) - m.promised(rows)
		c.AvailableBytes = max(0, free/m.extent*m.extent)
		c.MaximumBytes = c.AvailableBytes
	}
	return c, nil
}

// promised is the sum of the sizes of all thin volumes of the pool, ours or not.
func (m *Manager) promised(rows []lvRow) int64 {
	var sum int64
	for _, r := range rows {
		if r.SegType == "thin" && r.Pool == m.cfg.ThinPool {
			sum += parseSize(r.Size)
		}
	}
	return sum
}

// Problems lists what will hurt soon; empty if nothing.
func (m *Manager) Problems(ctx context.Context) ([]string, error) {
	if m.cfg.ThinPool == "" {
		_, err := m.readVG(ctx)
		return nil, err
	}
	rows, err := m.lvs(ctx, m.cfg.VolumeGroup)
	if err != nil {
		return nil, err
	}
	pool, err := m.readPool(rows)
	if err != nil {
		return nil, err
	}
	return m.poolProblems(pool), nil
}

func (m *Manager) poolProblems(pool poolInfo) []string {
	var out []string
	for _, f := range []struct {
		what    string
		percent float64
	}{{"data", pool.dataPercent}, {"metadata", pool.metadataPercent}} {
		if f.percent >= poolFull {
			out = append(out, fmt.Sprintf("thin pool %s/%s: %s is %.1f %% full: extend it, or writes will fail", m.cfg.VolumeGroup, m.cfg.ThinPool, f.what, f.percent))
		}
	}
	return out
}

// Pool is the room of the thin pool.
type Pool struct {
	SizeBytes, MetadataBytes int64
	// PromisedBytes is the sum of the sizes of its thin volumes.
	PromisedBytes                int64
	DataPercent, MetadataPercent float64
}

// Status is what one look at the group shows.
type Status struct {
	// GroupBytes and FreeBytes are the group's size, and what nothing occupies of it; 0 and 0
	// if it could not be read.
	GroupBytes, FreeBytes int64
	// Listed says that Volumes and Snapshots could be read. They are in no order, and in
	// whatever state.
	Listed    bool
	Volumes   []Volume
	Snapshots []Snapshot
	// Pool is nil without a thin pool, and if it could not be read.
	Pool *Pool
	// Problems are those of Problems.
	Problems []string
}

// Status looks once at the group. It returns what it could read, and errors for the rest.
func (m *Manager) Status(ctx context.Context) (st Status, err error) {
	vg, vgErr := m.readVG(ctx)
	if vgErr == nil {
		st.GroupBytes, st.FreeBytes = vg.size, vg.free
	}
	rows, err := m.lvs(ctx, m.cfg.VolumeGroup)
	if err != nil {
		return st, errors.Join(vgErr, err)
	}
	st.Listed, st.Volumes, st.Snapshots = true, volumesOf(rows), snapshotsOf(rows)
	if m.cfg.ThinPool == "" {
		return st, vgErr
	}
	pool, err := m.readPool(rows)
	if err != nil {
		return st, errors.Join(vgErr, err)
	}
	st.Problems = m.poolProblems(pool)
	st.Pool = &Pool{
		SizeBytes: pool.size, MetadataBytes: pool.metadata, PromisedBytes: m.promised(rows),
		DataPercent: pool.dataPercent, MetadataPercent: pool.metadataPercent,
	}
	return st, vgErr
}
