package pool

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// notedCopy is one of the copies of a mirrored logical volume of which one is behind (states.md, A copy
// that is behind).
type notedCopy struct {
	// PV is the UUID of the physical volume that it is on, and Device where that was last seen.
	PV     string `json:"pv"`
	Device string `json:"device,omitempty"`
	// Behind is true of a copy that may lack writes which the others have.
	Behind bool `json:"behind,omitempty"`
}

// behindNotes are by the UUID of the logical volume. What is whole has none.
type behindNotes map[string][]notedCopy

// noted is what is to be noted of a logical volume after a look at it and its copies. What is not active
// says nothing of them; whoever activates it notes what is missing then.
func noted(before []notedCopy, lv lvm.LV, copies []lvm.Copy) []notedCopy {
	var lost, failed []lvm.Copy
	for _, c := range copies {
		if c.Failed {
			failed = append(failed, c)
		}
		if c.Failed || c.Missing {
			lost = append(lost, c)
		}
	}
	switch {
	case !lv.Active || len(copies) == 0:
		return before
	case len(lost) == 0 && lv.Health != lvm.HealthRefresh && lv.Health != lvm.HealthPartial && lv.SyncPercent >= 100:
		return nil // LVM has every device, and the kernel every copy in sync
	case len(lost) == 0, len(before) > 0 && lv.SyncPercent >= 0 && lv.SyncPercent < 100:
		return before // what is behind is catching up, and the other one alone has everything
	case len(lost) == len(copies):
		lost = failed // it is active without them: the kernel goes on with the one that it has not given up
	}
	return marked(before, copies, lost)
}

// marked is what is noted when copies are lost, beside what was before: a note goes only when all are
// seen in sync.
func marked(before []notedCopy, copies, lost []lvm.Copy) []notedCopy {
	var out []notedCopy
	for _, c := range copies {
		n := notedCopy{PV: c.PV, Device: c.Device}
		if i := slices.IndexFunc(before, func(b notedCopy) bool { return b.PV == c.PV }); i >= 0 {
			n.Behind = before[i].Behind
			if n.Device == "" {
				n.Device = before[i].Device
			}
		}
		n.Behind = n.Behind || slices.Contains(lost, c)
		out = append(out, n)
	}
	if !slices.ContainsFunc(out, func(n notedCopy) bool { return n.Behind }) {
		return before
	}
	return out
}

// admit decides whether a logical volume may be used by the copies that are there, and what is to be
// noted before it is activated: by less than all, it leaves the others behind. wanted are the copies of
// which one has to be back if it may not.
func admit(before []notedCopy, lv lvm.LV, copies []lvm.Copy) (after, wanted []notedCopy) {
	var lost []lvm.Copy
	serves, behind := 0, 0
	for _, c := range copies {
		if c.Missing || c.Failed {
			lost = append(lost, c)
			continue
		}
		serves++
		if slices.ContainsFunc(before, func(b notedCopy) bool { return b.PV == c.PV && b.Behind }) {
			behind++
		}
	}
	switch {
	case len(lost) == 0 || serves == 0:
		return before, nil // by its counts of events the kernel knows the right one; or there is none
	case behind == serves:
		for _, n := range marked(before, copies, nil) {
			if slices.ContainsFunc(lost, func(c lvm.Copy) bool { return c.PV == n.PV }) {
				wanted = append(wanted, n)
			}
		}
		return before, wanted
	case lv.Active:
		return before, nil // the next pass over the pool sees to it
	}
	return marked(before, copies, lost), nil
}

// behindFile has the notes. Only what is there and behind is dangerous, so that a lost file is no more
// than what a version before had.
func (m *Manager) behindFile() string { return filepath.Join(m.StateDir, "mirrors", "behind") }

func (m *Manager) behind() (behindNotes, error) {
	notes := behindNotes{}
	if err := readNotes(m.behindFile(), &notes); err != nil {
		return nil, fmt.Errorf("which copies of mirrors are behind, by %s: %w", m.behindFile(), err)
	}
	return notes, nil
}

func (m *Manager) writeBehind(notes behindNotes) error {
	if err := writeNotes(m.behindFile(), notes); err != nil {
		return fmt.Errorf("note which copies of mirrors are behind: %w", err)
	}
	return nil
}

// lockBehind gives one at a time the notes, from its look at the copies on.
func (m *Manager) lockBehind(ctx context.Context) (unlock func(), err error) {
	select {
	case m.behindLock <- struct{}{}:
		return func() { <-m.behindLock }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: the copies of mirrors are being looked at: %w", volume.ErrBusy, ctx.Err())
	}
}

// noteBehind notes which copies are behind after a look at the logical volumes. The caller has the lock.
// Without a note, a pass over mirrors that are whole asks for nothing more.
func (m *Manager) noteBehind(ctx context.Context, vg string, lvs []lvm.LV, missingPVs int, degraded bool) error {
	before, err := m.behind()
	if err != nil || len(before) == 0 && !degraded {
		return err
	}
	copies, err := m.lvm.Copies(ctx, vg)
	if err != nil {
		return err
	}
	after := behindNotes{}
	if missingPVs > 0 {
		maps.Copy(after, before) // what LVM does not list may be on what is missing
	}
	for _, lv := range lvs {
		if !lv.Mirrored() {
			continue
		}
		delete(after, lv.UUID)
		if note := noted(before[lv.UUID], lv, copiesOf(copies, lv.Name)); len(note) > 0 {
			after[lv.UUID] = note
		}
	}
	if reflect.DeepEqual(before, after) {
		return nil
	}
	klog.FromContext(ctx).Info("Noting which copies of mirrors are behind", "volumeGroup", vg, "before", before, "now", after)
	return m.writeBehind(after)
}

// Admit implements ssd.Copies.
func (m *Manager) Admit(ctx context.Context, vg string, lvs ...lvm.LV) error {
	lvs = slices.DeleteFunc(slices.Clone(lvs), func(lv lvm.LV) bool { return !lv.Mirrored() })
	if len(lvs) == 0 {
		return nil // whatever is wrong with the notes
	}
	unlock, err := m.lockBehind(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	before, err := m.behind()
	if err != nil {
		return fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	lvs = slices.DeleteFunc(lvs, func(lv lvm.LV) bool { return lv.Active && len(before[lv.UUID]) == 0 })
	if len(lvs) == 0 {
		return nil
	}
	copies, err := m.lvm.Copies(ctx, vg)
	if err != nil {
		return err
	}
	after := maps.Clone(before)
	for _, lv := range lvs {
		note, wanted := admit(before[lv.UUID], lv, copiesOf(copies, lv.Name))
		if len(wanted) > 0 {
			return fmt.Errorf("%w: the only copy of logical volume %s/%s that is here is out of date, and what was written since is on the SSD that is missing (%s): bring that SSD back; docs/troubleshooting.md says how to give the writes up",
				volume.ErrUnavailable, vg, lv.Name, list(wanted))
		}
		if len(note) > 0 {
			after[lv.UUID] = note
		}
	}
	if reflect.DeepEqual(before, after) {
		return nil
	}
	if err := m.writeBehind(after); err != nil {
		return fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	return nil
}

func copiesOf(copies []lvm.Copy, lv string) []lvm.Copy {
	return slices.DeleteFunc(slices.Clone(copies), func(c lvm.Copy) bool { return c.LV != lv })
}

// list names physical volumes.
func list(copies []notedCopy) string {
	var out []string
	for _, c := range copies {
		words := "physical volume " + c.PV
		if c.Device != "" {
			words += ", last seen as " + c.Device
		}
		out = append(out, words)
	}
	return strings.Join(out, "; ")
}
