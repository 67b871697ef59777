package lvol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

const (
	tagSnapshot   = "nearflash.snapshot="
	tagOf         = "nearflash.of="
	tagHold       = "nearflash.hold="
	tagFilesystem = "nearflash.filesystem="
	tagCreated    = "nearflash.created="
	tagCutting    = "nearflash.cutting"
	tagAccepted   = "nearflash.accepted"
	tagFrom       = "nearflash.from="

	// snapPrefix is no start of a volume's name (lvPrefix), whatever that is.
	snapPrefix = "nfsnap-"
)

// Snapshot is a thin snapshot of a volume. It is never active: nobody reads it but what is
// made of it.
type Snapshot struct {
	// Name is the snapshot's name; LV that of the logical volume.
	Name, LV string
	// Volume is what it was made of, which may be gone.
	Volume string
	// Hold and Filesystem are the caller's, and mean nothing here.
	Hold, Filesystem string
	SizeBytes        int64
	Created          time.Time
	// Done: the content is fixed. Without it the snapshot was never reported as made.
	Done bool
	// Accepted is what Accept has set.
	Accepted bool
	// UsedBytes is what is allocated for it, shared with the volume or not.
	UsedBytes int64
}

// SnapshotSpec says what a snapshot is made of, and what is kept with it: characters of LVM's
// tags only.
type SnapshotSpec struct {
	Name, Hold, Filesystem string
	Created                time.Time
}

// CheckSnapshotName says whether LVM can hold a snapshot of that name in this group.
func (m *Manager) CheckSnapshotName(name string) error { return m.checkLV(snapPrefix+name, name) }

// snapshot converts a row; ok is false for LVs that are not snapshots of ours.
func (r lvRow) snapshot() (s Snapshot, ok bool) {
	s = Snapshot{LV: r.LVName, SizeBytes: parseSize(r.Size), Done: true}
	s.UsedBytes = int64(float64(s.SizeBytes) * parsePercent(r.DataPercent) / 100)
	for _, tag := range strings.Split(r.Tags, ",") {
		key, value, _ := strings.Cut(tag, "=")
		switch key + "=" {
		case tagSnapshot:
			s.Name = value
		case tagOf:
			s.Volume = value
		case tagHold:
			s.Hold = value
		case tagFilesystem:
			s.Filesystem = value
		case tagCreated:
			s.Created, _ = time.Parse(time.RFC3339Nano, value) // zero if somebody has edited it
		case tagCutting + "=":
			s.Done = false
		case tagAccepted + "=":
			s.Accepted = true
		}
	}
	return s, s.Name != "" && r.LVName == snapPrefix+s.Name
}

// GetSnapshot returns one snapshot, done or not.
// Errors: ErrNotFound, ErrForeign.
func (m *Manager) GetSnapshot(ctx context.Context, name string) (Snapshot, error) {
	rows, err := m.lvs(ctx, m.full(snapPrefix+name))
	if err != nil {
		return Snapshot{}, err
	}
	if len(rows) == 0 {
		return Snapshot{}, fmt.Errorf("%w: snapshot %s", ErrNotFound, name)
	}
	s, ok := rows[0].snapshot()
	if !ok || s.Name != name {
		return Snapshot{}, fmt.Errorf("%w: %s", ErrForeign, m.full(rows[0].LVName))
	}
	return s, nil
}

// Snapshots returns all snapshots, done or not, in the order of their names.
func (m *Manager) Snapshots(ctx context.Context) ([]Snapshot, error) {
	rows, err := m.lvs(ctx, m.cfg.VolumeGroup)
	if err != nil {
		return nil, err
	}
	out := snapshotsOf(rows)
	slices.SortFunc(out, func(a, b Snapshot) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func snapshotsOf(rows []lvRow) (out []Snapshot) {
	for _, r := range rows {
		if s, ok := r.snapshot(); ok {
			out = append(out, s)
		}
	}
	return out
}

// Cut makes a snapshot of a thin volume, which may be in use, and returns it done. Its content
// is that of one moment between the call and the answer.
//
// lvcreate writes the group's metadata, and then tells the kernel's pool. Killed between the
// two, it leaves a snapshot that LVM makes with its next command on the pool, of the content
// of that moment. So a snapshot is not done before lvcreate has ended well, and one that is
// not done is deleted, never completed.
// Errors: ErrExists, ErrNoSpace, ErrThick, ErrNameTooLong.
func (m *Manager) Cut(ctx context.Context, v Volume, spec SnapshotSpec) (Snapshot, error) {
	if err := m.CheckSnapshotName(spec.Name); err != nil {
		return Snapshot{}, err
	}
	if !v.Thin {
		return Snapshot{}, fmt.Errorf("snapshot %s of volume %s: %w", spec.Name, v.Name, ErrThick)
	}
	args := []string{"--yes", "--snapshot", "--setactivationskip", "y", "--permission", "r", "--name", snapPrefix + spec.Name}
	for _, tag := range []string{
		tagSnapshot + spec.Name, tagOf + v.Name, tagHold + spec.Hold, tagFilesystem + spec.Filesystem,
		tagCreated + spec.Created.UTC().Format(time.RFC3339Nano), tagCutting,
	} {
		args = append(args, "--addtag", tag)
	}
	err := m.createInPool(ctx, v.SizeBytes, append(args, m.full(v.LV))...)
	if err == nil {
		err = m.lvm(ctx, "lvchange", "--deltag", tagCutting, m.full(snapPrefix+spec.Name))
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %s of volume %s: %w", spec.Name, v.Name, err)
	}
	return m.GetSnapshot(ctx, spec.Name)
}

// createInPool runs lvcreate for what may take so many bytes of the thin pool.
func (m *Manager) createInPool(ctx context.Context, size int64, args ...string) error {
	m.alloc.Lock()
	defer m.alloc.Unlock()
	if err := m.promise(ctx, size); err != nil {
		return err
	}
	return m.lvm(ctx, "lvcreate", args...)
}

// promise refuses what the thin pool cannot promise; m.alloc is held.
func (m *Manager) promise(ctx context.Context, size int64) error {
	c, err := m.Capacity(ctx, true)
	if err != nil {
		return err
	}
	if size > c.MaximumBytes {
		return fmt.Errorf("%w: %d bytes asked, %d can still be promised by the pool", ErrNoSpace, size, c.MaximumBytes)
	}
	return nil
}

// Accept marks a snapshot as accepted.
func (m *Manager) Accept(ctx context.Context, s Snapshot) error {
	if s.Accepted {
		return nil
	}
	if err := m.lvm(ctx, "lvchange", "--addtag", tagAccepted, m.full(s.LV)); err != nil {
		return fmt.Errorf("accept snapshot %s: %w", s.Name, err)
	}
	return nil
}

// DeleteSnapshot removes a snapshot; volumes that were made of it stay.
func (m *Manager) DeleteSnapshot(ctx context.Context, s Snapshot) error {
	if err := m.lvm(ctx, "lvremove", "--yes", m.full(s.LV)); err != nil {
		return ignoreNotFound(fmt.Errorf("delete snapshot %s: %w", s.Name, err))
	}
	return nil
}

// CreateFrom makes a volume of at least size bytes, and no less than the snapshot has, that
// begins as a snapshot, and returns it in state Ready. Until it has its size it is in state
// Unzeroed, and so it stays if this fails half way.
// Errors: ErrExists, ErrNoSpace, ErrNameTooLong.
func (m *Manager) CreateFrom(ctx context.Context, name string, size int64, from Snapshot) (Volume, error) {
	if err := m.CheckName(name); err != nil {
		return Volume{}, err
	}
	size, err := m.RoundUp(max(size, from.SizeBytes))
	if err != nil {
		return Volume{}, err
	}
	lv := m.full(lvPrefix + name)
	err = m.createInPool(ctx, size, "--yes", "--snapshot", "--setactivationskip", "n", "--permission", "rw", "--name", lvPrefix+name,
		"--addtag", tagVolume+name, "--addtag", tagFrom+from.Name, "--addtag", tagUnzeroed, m.full(from.LV))
	if err == nil && size > from.SizeBytes {
		err = m.lvm(ctx, "lvextend", "--yes", "--size", bytesArg(size), lv)
	}
	if err == nil {
		err = m.lvm(ctx, "lvchange", "--deltag", tagUnzeroed, lv)
	}
	if err != nil {
		return Volume{}, fmt.Errorf("create volume %s of snapshot %s: %w", name, from.Name, err)
	}
	v, err := m.Get(ctx, name)
	if err != nil {
		return Volume{}, err
	}
	return m.Activate(ctx, v)
}

// UnfinishedSnapshots names the snapshots that were never reported as made, because the work
// was interrupted, or is under way.
func (m *Manager) UnfinishedSnapshots(ctx context.Context) ([]string, error) {
	all, err := m.Snapshots(ctx)
	var out []string
	for _, s := range all {
		if !s.Done {
			out = append(out, s.Name)
		}
	}
	return out, err
}

// CleanUpSnapshot removes a snapshot that is not done.
func (m *Manager) CleanUpSnapshot(ctx context.Context, name string) error {
	s, err := m.GetSnapshot(ctx, name)
	switch {
	case errors.Is(err, ErrNotFound) || errors.Is(err, ErrForeign):
		return nil
	case err != nil || s.Done:
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("Removing an unfinished snapshot", "snapshot", name)
	return m.DeleteSnapshot(ctx, s)
}
