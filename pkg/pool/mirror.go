package pool

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/lvm"
)

// For is the pool as a volume sees it that asks for two copies of its cache, or does not:
// one of two devices or more is a mirror for the volumes that ask (states.md, A mirror
// that is asked for).
func (v View) For(mirror bool) View {
	if !mirror || v.Mirror || v.Integrity || len(v.Staying()) < 2 {
		return v
	}
	return v.of(true)
}

// Holding is the pool as a logical volume sees it that is there, with two copies or one.
func (v View) Holding(mirrored bool) View {
	if v.Mirror == mirrored {
		return v
	}
	return v.of(mirrored)
}

func (v View) of(mirror bool) View {
	if v.Mirror, v.Copies, v.Stripes = mirror, 1, len(v.Staying()); mirror {
		v.Copies, v.Stripes = 2, 1
	}
	return v
}

// mirror looks at the copies of a pool's logical volumes. Those that the kernel has given
// up are taken in again when their device answers; until they are whole the pool is
// degraded. An answer that cannot be had counts as one. whole is true if the pool is a mirror, and not
// single volumes of it.
func (m *Manager) mirror(ctx context.Context, vg string, missingPVs int, whole bool) (degraded string) {
	stale, degraded, err := m.look(ctx, vg, missingPVs, whole)
	if err != nil {
		return fmt.Sprintf("the state of the mirror is not known: %v", err)
	}
	if len(stale) == 0 {
		return degraded
	}
	klog.FromContext(ctx).Info("Taking copies of the mirror in again", "volumeGroup", vg, "logicalVolumes", stale)
	if err := m.lvm.Refresh(ctx, vg, stale...); err != nil {
		klog.FromContext(ctx).Error(err, "Copies of the mirror are still given up", "volumeGroup", vg)
	}
	return degraded
}

// look notes which copies are behind before anybody acts on what it returns (states.md, A copy that is
// behind). Without the note the volumes had better be flushed all the same.
func (m *Manager) look(ctx context.Context, vg string, missingPVs int, whole bool) (stale []string, degraded string, err error) {
	unlock, err := m.lockBehind(ctx)
	if err != nil {
		return nil, "", err
	}
	defer unlock()
	lvs, err := m.lvm.LVs(ctx, vg)
	if err != nil {
		return nil, "", err
	}
	stale, degraded = judgeMirror(lvs, missingPVs, whole)
	if err := m.noteBehind(ctx, vg, lvs, missingPVs, degraded != ""); err != nil {
		klog.FromContext(ctx).Error(err, "After a restart nobody may know which copies of mirrors are behind", "volumeGroup", vg)
	}
	return stale, degraded, nil
}

// judgeMirror tells what is missing of a mirror, and which logical volumes have a
// copy that may be taken in again: all devices are there.
func judgeMirror(lvs []lvm.LV, missingPVs int, whole bool) (stale []string, degraded string) {
	behind := 0
	for _, lv := range lvs {
		whole = whole || lv.Mirrored()
		switch {
		case !lv.Mirrored():
		case lv.Health == lvm.HealthRefresh && missingPVs == 0:
			stale = append(stale, lv.Name)
			behind++
		case lv.Health == lvm.HealthRefresh, lv.Health == lvm.HealthPartial, lv.SyncPercent >= 0 && lv.SyncPercent < 100 && !lv.Comparing():
			behind++
		}
	}
	switch {
	case !whole:
		return nil, ""
	case missingPVs > 0:
		return nil, fmt.Sprintf("%d device(s) of the mirror are missing", missingPVs)
	case behind > 0:
		return stale, fmt.Sprintf("one copy of %d logical volume(s) is out of date", behind)
	}
	return nil, ""
}
