package pool

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/lvm"
)

// mirror looks at the copies of a mirrored pool. Those that the kernel has given up
// are taken in again when their device answers; until they are whole the pool is
// degraded. An answer that cannot be had counts as one.
func (m *Manager) mirror(ctx context.Context, vg string, missingPVs int) (degraded string) {
	lvs, err := m.lvm.LVs(ctx, vg)
	if err != nil {
		return fmt.Sprintf("the state of the mirror is not known: %v", err)
	}
	stale, degraded := judgeMirror(lvs, missingPVs)
	if len(stale) == 0 {
		return degraded
	}
	klog.FromContext(ctx).Info("Taking copies of the mirror in again", "volumeGroup", vg, "logicalVolumes", stale)
	if err := m.lvm.Refresh(ctx, vg, stale...); err != nil {
		klog.FromContext(ctx).Error(err, "Copies of the mirror are still given up", "volumeGroup", vg)
	}
	return degraded
}

// judgeMirror tells what is missing of a mirror, and which logical volumes have a
// copy that may be taken in again: all devices are there.
func judgeMirror(lvs []lvm.LV, missingPVs int) (stale []string, degraded string) {
	behind := 0
	for _, lv := range lvs {
		switch {
		case lv.SegType != "raid1":
		case lv.Health == healthRefresh && missingPVs == 0:
			stale = append(stale, lv.Name)
			behind++
		case lv.Health == healthRefresh, lv.Health == healthPartial, lv.SyncPercent >= 0 && lv.SyncPercent < 100:
			behind++
		}
	}
	switch {
	case missingPVs > 0:
		return nil, fmt.Sprintf("%d device(s) of the mirror are missing", missingPVs)
	case behind > 0:
		return stale, fmt.Sprintf("one copy of %d logical volume(s) is out of date", behind)
	}
	return nil, ""
}

// LVM's words for a mirror that has lost a copy: its device is there, or is not.
const (
	healthRefresh = "refresh needed"
	healthPartial = "partial"
)
