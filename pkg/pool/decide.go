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
	// InPool is true for a physical volume of the pool's own volume group.
	InPool bool
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
	// Ready reports whether the pool can hold caches once that is done.
	Ready           bool
	Reason, Message string
}

// decide chooses the devices of the pool. A device that carries anything is
// refused and left as it is; the pool works with the others.
func decide(spec v1alpha1.CachePoolSpec, f facts) plan {
	var blank, used, refused []string
	for _, d := range f.Devices {
		switch {
		case d.InPool:
			used = append(used, d.Path)
		case d.Problem != "":
			refused = append(refused, d.Path+": "+d.Problem)
		default:
			blank = append(blank, d.Path)
		}
	}
	if f.MissingPVs > 0 {
		return plan{Reason: v1alpha1.ReasonDeviceMissing, Message: fmt.Sprintf(
			"%d device(s) of the pool's volume group are missing: bring them back, or make the pool anew (docs/how-to/prepare-ssds.md)", f.MissingPVs)}
	}
	if p, ok := tooFew(spec, len(used)+len(blank), refused); ok {
		return p
	}
	p := plan{Ready: true, Reason: v1alpha1.ReasonPoolReady, Message: withRefused(fmt.Sprintf("%d device(s) in use", len(used)+len(blank)), refused)}
	if f.VGExists {
		p.Extend = blank
	} else {
		p.Create = blank
	}
	return p
}

// withoutTaking is the plan for a time when it is not known which devices are for the pool.
func withoutTaking(p plan, vgExists bool) plan {
	p.Create, p.Extend = nil, nil
	if p.Ready && !vgExists {
		return plan{Reason: v1alpha1.ReasonPoolError, Message: "the pool is not made while the node's CachePool, or the labels that choose its devices, cannot be read"}
	}
	return p
}

// tooFew reports a pool that has not enough usable devices.
func tooFew(spec v1alpha1.CachePoolSpec, usable int, refused []string) (plan, bool) {
	switch {
	case usable == 0 && len(refused) > 0:
		return plan{Reason: v1alpha1.ReasonDeviceNotBlank, Message: withRefused("no device can be used", refused)}, true
	case usable == 0 && len(spec.Devices) == 0:
		return plan{Reason: v1alpha1.ReasonNoDevices, Message: "no devices are configured: set node.pool.devices in the chart or spec.devices of this CachePool"}, true
	case usable == 0:
		return plan{Reason: v1alpha1.ReasonNoDevices, Message: fmt.Sprintf("no device matches %s", strings.Join(spec.Devices, ", "))}, true
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
