package pool

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/volume"
)

var (
	faultLeaveNoted   = faultpoint.New("leave.noted")
	faultLeaveReduced = faultpoint.New("leave.reduced")
	faultLeaveBlank   = faultpoint.New("leave.blank")
)

// Readable reports whether what is in the group can be looked at: also in a pool that takes no caches any
// more, because its devices are to be out of it.
func (v View) Readable() bool { return v.Ready || len(v.Leaving) > 0 }

// Staying are the devices on which caches may be made.
func (v View) Staying() []string {
	return slices.DeleteFunc(slices.Clone(v.Devices), func(d string) bool { return slices.Contains(v.Leaving, d) })
}

// evacuate is the part of decide that concerns devices which are to be out of the pool (states.md, A
// device leaves the pool). evacuated counts them.
func evacuate(f facts) (p plan, evacuated int) {
	for _, d := range f.Devices {
		if d.Evacuate {
			evacuated++
		}
		switch {
		case d.Noted:
			p.Wipe = append(p.Wipe, d.Path)
		case !d.Evacuate || !d.InPool:
		case d.UsedBytes == 0 && d.Announced:
			p.Reduce = append(p.Reduce, d.Path)
			fallthrough
		default:
			p.Leaving = append(p.Leaving, d.Path)
		}
	}
	return p, evacuated
}

// takeOut takes devices out of the group on which nothing lies, and makes blank what was taken out. It
// returns what has left. LVM itself refuses a device that is in use.
func (m *Manager) takeOut(ctx context.Context, vg string, p plan, devs []DeviceFacts) (out []string, err error) {
	uuids := map[string]string{}
	for _, d := range devs {
		uuids[d.Path] = d.UUID
	}
	if len(p.Reduce) > 0 {
		var note []string
		for _, path := range slices.Concat(p.Wipe, p.Reduce) {
			note = append(note, uuids[path])
		}
		if err := m.note(note); err != nil {
			return nil, err
		}
		faultLeaveNoted.Hit()
		klog.FromContext(ctx).Info("Taking devices out of the pool", "volumeGroup", vg, "devices", p.Reduce)
		if err := m.reduce(ctx, vg, p); err != nil {
			return nil, err
		}
		faultLeaveReduced.Hit()
	}
	for _, path := range slices.Concat(p.Wipe, p.Reduce) {
		if err := m.lvm.RemovePV(ctx, path); err != nil {
			return out, err
		}
		faultLeaveBlank.Hit()
		out = append(out, path)
	}
	return out, nil
}

func (m *Manager) reduce(ctx context.Context, vg string, p plan) error {
	if p.Dissolve {
		return m.lvm.RemoveVG(ctx, vg)
	}
	for _, path := range p.Reduce {
		if err := m.lvm.ReduceVG(ctx, vg, path); err != nil {
			return err
		}
	}
	return nil
}

// leavingFile names, by their UUIDs, the physical volumes that the plugin takes out, or has taken out:
// alone a label without a group may be anybody's.
func (m *Manager) leavingFile() string { return filepath.Join(m.StateDir, "pool", "leaving") }

// note replaces the UUIDs that are noted.
func (m *Manager) note(uuids []string) error {
	if err := writeNotes(m.leavingFile(), uuids); err != nil {
		return fmt.Errorf("note which devices leave the pool: %w", err)
	}
	return nil
}

// noted reports whether a physical volume is noted.
func (m *Manager) noted(uuid string) (bool, error) {
	var uuids []string
	if err := readNotes(m.leavingFile(), &uuids); err != nil {
		return false, fmt.Errorf("which devices leave the pool: %w", err)
	}
	return slices.Contains(uuids, uuid), nil
}

// leave acts on what is to be out of the pool. What cannot be taken out now is no harm to the rest.
func (m *Manager) leave(ctx context.Context, vg string, p plan, devs []DeviceFacts) (left []string) {
	left, err := m.takeOut(ctx, vg, p, devs)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Device could not be taken out of the pool and will be tried again", "volumeGroup", vg)
	}
	for i := range devs {
		if d := &devs[i]; slices.Contains(left, d.Path) {
			d.InPool, d.Noted, d.Problem = false, false, ""
		}
	}
	return left
}

// room is the size of devices of the group, and what is free of it.
func (m *Manager) room(ctx context.Context, vg string, devices []string) (size, free int64, err error) {
	pvs, err := m.lvm.PVs(ctx, devices)
	for _, pv := range pvs {
		if pv.VG == vg && !pv.Missing {
			size, free = size+pv.SizeBytes, free+pv.FreeBytes
		}
	}
	return size, free, err
}

// evacuations says of each device that is to be out of the pool how far it is.
func (m *Manager) evacuations(ctx context.Context, o outcome) map[string]*v1alpha1.DeviceEvacuation {
	out := map[string]*v1alpha1.DeviceEvacuation{}
	var on map[string][]string
	if len(o.view.Leaving) > 0 {
		var err error
		if on, err = m.lvm.OnDevices(ctx, o.view.VG); err != nil {
			klog.FromContext(ctx).Error(err, "What lies on devices that leave the pool is not known", "volumeGroup", o.view.VG)
		}
	}
	for _, d := range o.devices {
		switch {
		case !d.Evacuate:
		case d.Noted:
			out[d.Path] = &v1alpha1.DeviceEvacuation{State: v1alpha1.EvacuationEvacuating, Message: "its label is about to be removed"}
		case !d.InPool:
			out[d.Path] = &v1alpha1.DeviceEvacuation{State: v1alpha1.EvacuationEvacuated}
		case !slices.Contains(o.view.Leaving, d.Path):
			out[d.Path] = &v1alpha1.DeviceEvacuation{
				State: v1alpha1.EvacuationWaiting, BytesLeft: ptr.To(d.UsedBytes), Message: "nothing leaves while a device of the pool is missing, or the pool's spec is not known",
			}
		default:
			e := &v1alpha1.DeviceEvacuation{BytesLeft: ptr.To(d.UsedBytes)}
			e.State, e.Message = m.progress(ctx, on[d.Path])
			out[d.Path] = e
		}
	}
	return out
}

// progress says what becomes of the logical volumes that are left on a device.
func (m *Manager) progress(ctx context.Context, lvs []string) (v1alpha1.EvacuationState, string) {
	c := m.caches.Load()
	if c == nil || len(lvs) == 0 {
		return v1alpha1.EvacuationEvacuating, "it is about to be taken out"
	}
	return evacuationOf((*c).Left(ctx, lvs))
}

// evacuationOf is the state of a device with these caches, and names those that wait first.
func evacuationOf(left []volume.LeftCache) (v1alpha1.EvacuationState, string) {
	state := v1alpha1.EvacuationWaiting
	var waiting, going []string
	for _, l := range left {
		words := l.Name + ": " + l.Why
		if l.Waits {
			waiting = append(waiting, words)
			continue
		}
		state, going = v1alpha1.EvacuationEvacuating, append(going, words)
	}
	message := strings.Join(append(waiting, going...), "; ")
	if len(message) > maxMessage {
		more := fmt.Sprintf(" ... (%d in all)", len(left))
		message = message[:maxMessage-len(more)] + more
	}
	return state, message
}

// notifyEvacuated tells by an event that devices have left.
func (m *Manager) notifyEvacuated(obj *v1alpha1.CachePool, left []string) {
	for _, path := range left {
		if m.Events != nil {
			m.Events.Eventf(obj, nil, corev1.EventTypeNormal, v1alpha1.ReasonEvacuated, "TakeOut", "Device %s is out of the pool, and blank", path)
		}
	}
}
