package pool

import (
	"fmt"
	"strings"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// DeviceFacts is what the node sees of one device that the spec matched.
type DeviceFacts struct {
	// Path is the device's canonical path.
	Path      string
	SizeBytes int64
	// LogicalBlock is the size of its logical blocks in bytes, 0 if it is not known.
	LogicalBlock int
	// InPool is true for a physical volume of the pool's own volume group, UUID is its UUID
	// and UsedBytes what logical volumes take of it.
	InPool    bool
	UUID      string
	UsedBytes int64
	// Evacuate is true of a device that is to be out of the pool. Announced is true if that was
	// known before this look, so that nobody is about to put anything on it.
	Evacuate, Announced bool
	// Noted is true of a physical volume of no group that was taken out of the pool by the plugin.
	Noted bool
	// Problem says why a device outside the pool must not be taken: a
	// signature, a holder, a mount. It is empty for a blank device.
	Problem string
}

// facts are everything that decide rests on.
type facts struct {
	// VGExists is true when the pool's volume group was found, and MissingPVs
	// is how many of its devices were not.
	VGExists   bool
	MissingPVs int
	Devices    []DeviceFacts
}

// plan is what reconciling a pool does.
type plan struct {
	// Create or Extend list the blank devices that make or join the volume
	// group.
	Create, Extend []string
	// Leaving are the devices that caches are to leave, and Reduce those of them on which
	// nothing lies any more. Dissolve is true if with these the group goes.
	Leaving, Reduce []string
	Dissolve        bool
	// Wipe are devices that were taken out, and have their label yet.
	Wipe []string
	// Ready reports whether the pool can hold caches once that is done.
	Ready           bool
	Reason, Message string
}

// decide chooses the devices of the pool. A device that carries anything is
// refused and left as it is; the pool works with the others.
func decide(spec v1alpha1.CachePoolSpec, f facts) plan {
	var blank, used, refused []string
	out, evacuated := evacuate(f)
	for _, d := range f.Devices {
		switch {
		case d.Evacuate, d.Noted:
		case d.InPool:
			used = append(used, d.Path)
		case d.Problem != "":
			refused = append(refused, d.Path+": "+d.Problem)
		default:
			blank = append(blank, d.Path)
		}
	}
	if f.MissingPVs > 0 {
		return plan{Wipe: out.Wipe, Reason: v1alpha1.ReasonDeviceMissing, Message: fmt.Sprintf(
			"%d device(s) of the pool's volume group are missing: bring them back, or make the pool anew (docs/how-to/prepare-ssds.md)", f.MissingPVs)}
	}
	p, never := impossible(spec, len(used)+len(blank), refused, evacuated)
	p.Leaving, p.Reduce, p.Wipe = out.Leaving, out.Reduce, out.Wipe
	// What is blank joins no group of a pool that cannot be.
	joins := !never && len(blank) > 0
	p.Dissolve = len(used) == 0 && !joins && len(out.Reduce) > 0 && len(out.Reduce) == len(out.Leaving)
	if never {
		return p
	}
	p.Ready, p.Reason, p.Message = true, v1alpha1.ReasonPoolReady, withRefused(fmt.Sprintf("%d device(s) in use", len(used)+len(blank)), refused)
	if f.VGExists {
		p.Extend = blank
	} else {
		p.Create = blank
	}
	return p
}

// withoutTaking is the plan for a time when it is not known which devices are for the pool.
func withoutTaking(p plan, vgExists bool) plan {
	p.Create, p.Extend, p.Reduce, p.Dissolve, p.Wipe = nil, nil, nil, false, nil
	if p.Ready && !vgExists {
		return plan{Reason: v1alpha1.ReasonPoolError, Message: "the pool is not made while the node's CachePool, or the labels that choose its devices, cannot be read"}
	}
	return p
}

// impossible reports a pool that has not enough usable devices, or of which things are asked that exclude
// each other.
func impossible(spec v1alpha1.CachePoolSpec, usable int, refused []string, evacuated int) (plan, bool) {
	switch {
	case usable == 0 && evacuated > 0:
		return plan{Reason: v1alpha1.ReasonEvacuated, Message: withRefused("every device of the pool is to be out of it (spec.evacuate)", refused)}, true
	case usable == 0 && len(refused) > 0:
		return plan{Reason: v1alpha1.ReasonDeviceNotBlank, Message: withRefused("no device can be used", refused)}, true
	case usable == 0 && len(spec.Devices) == 0:
		return plan{Reason: v1alpha1.ReasonNoDevices, Message: "no devices are configured: set node.pool.devices in the chart or spec.devices of this CachePool"}, true
	case usable == 0:
		return plan{Reason: v1alpha1.ReasonNoDevices, Message: fmt.Sprintf("no device matches %s", strings.Join(spec.Devices, ", "))}, true
	case spec.Redundancy == v1alpha1.RedundancyMirror && spec.Integrity:
		return plan{Reason: v1alpha1.ReasonPoolError, Message: "integrity does not go with redundancy mirror: ask for one of them"}, true
	case spec.Redundancy == v1alpha1.RedundancyMirror && usable < 2:
		return plan{Reason: v1alpha1.ReasonTooFewDevices, Message: withRefused("redundancy mirror needs at least two devices, found 1", refused)}, true
	}
	return plan{}, false
}

func withRefused(msg string, refused []string) string {
	if len(refused) == 0 {
		return msg
	}
	return msg + "; refused, not wiped: " + strings.Join(refused, "; ")
}
