package lvol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
)

// Create makes a volume of at least size bytes that reads as zeros and returns it
// in state Ready. The name must be free. If it fails half way, the rest is in
// state Unzeroed: see FinishCreate and Delete.
// Errors: ErrExists, ErrNoSpace, ErrNoPool, ErrNameTooLong.
func (m *Manager) Create(ctx context.Context, name string, size int64, thin bool) (Volume, error) {
	if err := m.CheckName(name); err != nil {
		return Volume{}, err
	}
	size, err := m.RoundUp(size)
	if err != nil {
		return Volume{}, err
	}
	if thin {
		return m.createThin(ctx, name, size)
	}
	if err := m.allocateThick(ctx, lvPrefix+name, size, tagVolume+name, tagUnzeroed); err != nil {
		return Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	v, err := m.Get(ctx, name)
	if err != nil {
		return Volume{}, err
	}
	return m.FinishCreate(ctx, v)
}

func (m *Manager) createThin(ctx context.Context, name string, size int64) (Volume, error) {
	err := m.createInPool(ctx, size, "--yes", "--type", "thin", "--virtualsize", bytesArg(size), "--thinpool", m.cfg.ThinPool,
		"--name", lvPrefix+name, "--addtag", tagVolume+name, m.cfg.VolumeGroup)
	if err != nil {
		return Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	return m.Get(ctx, name)
}

// allocateThick makes a linear LV with tags. LVM must not wipe it: wiping touches
// only the first sectors, and the whole device is zeroed by us.
func (m *Manager) allocateThick(ctx context.Context, lv string, size int64, tags ...string) error {
	args := []string{"--yes", "--type", "linear", "--size", bytesArg(size), "--wipesignatures", "n", "--zero", "n", "--name", lv}
	for _, t := range tags {
		args = append(args, "--addtag", t)
	}
	m.alloc.Lock()
	defer m.alloc.Unlock()
	return m.lvm(ctx, "lvcreate", append(args, m.cfg.VolumeGroup)...)
}

// FinishCreate zeroes a volume in state Unzeroed and makes it Ready.
func (m *Manager) FinishCreate(ctx context.Context, v Volume) (Volume, error) {
	if v.State != Unzeroed {
		return v, nil
	}
	v, err := m.Activate(ctx, v)
	if err != nil {
		return Volume{}, err
	}
	if err := m.dev.Zero(ctx, v.Path, v.SizeBytes); err != nil {
		return Volume{}, fmt.Errorf("zero volume %s: %w", v.Name, err)
	}
	if err := m.lvm(ctx, "lvchange", "--deltag", tagUnzeroed, m.full(v.LV)); err != nil {
		return Volume{}, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	v.State = Ready
	return v, nil
}

// Activate makes the block device appear.
func (m *Manager) Activate(ctx context.Context, v Volume) (Volume, error) {
	if v.Active {
		return v, nil
	}
	if err := m.lvm(ctx, "lvchange", "--yes", "--activate", "y", m.full(v.LV)); err != nil {
		return Volume{}, fmt.Errorf("activate volume %s: %w", v.Name, err)
	}
	return m.Get(ctx, v.Name)
}

// Delete removes a volume in any state; it must not be exported. Its blocks are
// discarded first where the device can do that. After a failure it is in state
// Deleting (unless the failure came first) and Delete has to be called again.
// Errors: ErrBusy.
func (m *Manager) Delete(ctx context.Context, v Volume) error {
	if v.State != Deleting {
		if err := m.lvm(ctx, "lvchange", "--addtag", tagDeleting, m.full(v.LV)); err != nil {
			return ignoreNotFound(fmt.Errorf("delete volume %s: %w", v.Name, err))
		}
	}
	if v.Active {
		// Only to give the room back to what is below. That nobody reads the old
		// data does not depend on it: see the package comment.
		if err := m.dev.Discard(ctx, v.Path, v.SizeBytes); err != nil {
			logr.FromContextOrDiscard(ctx).V(1).Info("Not discarded before removal", "volume", v.Name, "reason", err.Error())
		}
	}
	if err := m.lvm(ctx, "lvremove", "--yes", m.full(v.LV)); err != nil {
		return ignoreNotFound(fmt.Errorf("delete volume %s: %w", v.Name, err))
	}
	return nil
}

func ignoreNotFound(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// SetGeneration stores a generation durably; it never lowers it.
func (m *Manager) SetGeneration(ctx context.Context, v Volume, generation int64) (Volume, error) {
	if generation <= v.Generation {
		return v, nil
	}
	tag := tagGen + strconv.FormatInt(generation, 10)
	args := []string{"--addtag", tag}
	for _, old := range v.generations {
		args = append(args, "--deltag", old)
	}
	// One command, hence one commit of the group's metadata. Should a kernel or
	// tool split it, two tags remain and the higher one counts.
	if err := m.lvm(ctx, "lvchange", append(args, m.full(v.LV))...); err != nil {
		return Volume{}, fmt.Errorf("store generation of volume %s: %w", v.Name, err)
	}
	v.Generation, v.generations = generation, []string{tag}
	return v, nil
}

// Expand grows a volume to at least size bytes and returns it; a size up to the
// present one changes nothing. New space reads as zeros from the first moment.
// Errors: ErrNoSpace.
func (m *Manager) Expand(ctx context.Context, v Volume, size int64) (Volume, error) {
	size, err := m.RoundUp(size)
	if err != nil {
		return Volume{}, err
	}
	if size <= v.SizeBytes {
		return v, nil
	}
	if v.Thin {
		err = m.expandThin(ctx, v, size)
	} else {
		err = m.expandThick(ctx, v, size)
	}
	if err != nil {
		return Volume{}, fmt.Errorf("expand volume %s: %w", v.Name, err)
	}
	return m.Get(ctx, v.Name)
}

func (m *Manager) expandThin(ctx context.Context, v Volume, size int64) error {
	m.alloc.Lock()
	defer m.alloc.Unlock()
	if err := m.promise(ctx, size-v.SizeBytes); err != nil {
		return err
	}
	return m.lvm(ctx, "lvextend", "--yes", "--size", bytesArg(size), m.full(v.LV))
}

// expandThick zeroes the room in an LV of its own, frees exactly those extents and
// gives exactly those to the volume. LVM cannot move extents between LVs in one
// step; the allocation lock keeps this server from taking them in between, and if
// some other tool takes them the extension fails and nothing is lost.
func (m *Manager) expandThick(ctx context.Context, v Volume, size int64) error {
	room := growPrefix + v.Name
	if err := m.removeRoom(ctx, room); err != nil {
		return err
	}
	more := size - v.SizeBytes
	if err := m.allocateThick(ctx, room, more, tagGrow+v.Name); err != nil {
		return err
	}
	rows, err := m.lvs(ctx, m.full(room))
	if err != nil {
		return err
	}
	if len(rows) != 1 {
		return fmt.Errorf("%d rows for %s", len(rows), m.full(room))
	}
	if err := m.dev.Zero(ctx, rows[0].Path, more); err != nil {
		return fmt.Errorf("zero the new room: %w", err)
	}
	extents, err := m.extents(ctx, room)
	if err != nil {
		return err
	}
	m.alloc.Lock()
	defer m.alloc.Unlock()
	if err := m.removeRoom(ctx, room); err != nil {
		return err
	}
	args := []string{"--yes", "--size", bytesArg(size), m.full(v.LV)}
	return m.lvm(ctx, "lvextend", append(args, extents...)...)
}

// removeRoom frees extents without discarding them: what a device returns for
// discarded blocks is its own choice, and these were zeroed on purpose.
func (m *Manager) removeRoom(ctx context.Context, room string) error {
	return ignoreNotFound(m.lvm(ctx, "lvremove", "--yes", "--config", "devices/issue_discards=0", m.full(room)))
}

// extents returns where an LV lies, as PV:FIRST-LAST.
func (m *Manager) extents(ctx context.Context, lv string) ([]string, error) {
	r, err := m.report(ctx, "lvs", "seg_pe_ranges", "--segments", m.full(lv))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, part := range r.Report {
		for _, s := range part.Seg {
			out = append(out, strings.Fields(s.PERanges)...)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("lvs: no extents of %s", m.full(lv))
	}
	return out, nil
}

// Unfinished names the volumes of which interrupted work has left something: those that
// were never reported as created, those whose deletion had begun, and those with room for
// growth. Work that is under way looks the same.
func (m *Manager) Unfinished(ctx context.Context) ([]string, error) {
	rows, err := m.lvs(ctx, m.cfg.VolumeGroup)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range rows {
		if v, ok := r.volume(); ok && v.State != Ready {
			out = append(out, v.Name)
		}
		if name, ok := r.room(); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// CleanUp removes what interrupted work has left of a volume; it must not be exported
// unless it is Ready.
func (m *Manager) CleanUp(ctx context.Context, name string) error {
	rows, err := m.lvs(ctx, m.cfg.VolumeGroup)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range rows {
		if of, ok := r.room(); ok && of == name {
			errs = append(errs, m.removeRoom(ctx, r.LVName))
		}
		if v, ok := r.volume(); ok && v.Name == name && v.State != Ready {
			logr.FromContextOrDiscard(ctx).Info("Removing an unfinished volume", "volume", name)
			errs = append(errs, m.Delete(ctx, v))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) full(lv string) string {
	return m.cfg.VolumeGroup + "/" + lv
}

func bytesArg(n int64) string {
	return strconv.FormatInt(n, 10) + "b"
}
