// Package lvm drives LVM on the node's SSDs, and only there: every call carries
// the pool's devices (--devices), so that LVM never looks at an origin, whose
// content belongs to a user and may look like LVM itself.
//
// Reports are asked for as JSON with named columns in bytes. Exit codes and
// messages become the sentinel errors of this package in one function.
package lvm

import (
	"context"
	"errors"
	"fmt"
)

// Errors of a Client; test with errors.Is.
var (
	// ErrNotFound: no such volume group or logical volume.
	ErrNotFound = errors.New("not found in LVM")
	// ErrExists: the name is taken.
	ErrExists = errors.New("exists in LVM")
	// ErrNoSpace: too few free extents, or not on enough devices.
	ErrNoSpace = errors.New("not enough space in the volume group")
	// ErrBusy: a logical volume is open.
	ErrBusy = errors.New("logical volume is in use")
	// ErrNoDevices: the client has not been given any device.
	ErrNoDevices = errors.New("no devices are configured for LVM")
)

// PV is a physical volume.
type PV struct {
	// Device is the canonical path of the device.
	Device string
	UUID   string
	// VG is empty for a physical volume in no group.
	VG                   string
	SizeBytes, FreeBytes int64
	// Missing: the group knows it, the machine does not have it; Device is then
	// whatever LVM remembers.
	Missing bool
}

// VG is a volume group.
type VG struct {
	Name, UUID           string
	SizeBytes, FreeBytes int64
	ExtentBytes          int64
	PVCount, MissingPVs  int
	LVCount              int
	Partial, ReadOnly    bool
	Tags                 []string
}

// LV is a logical volume.
type LV struct {
	VG, Name, UUID string
	SizeBytes      int64
	Tags           []string
	// Active reports whether the kernel has it; Major and Minor are then set, and
	// -1 otherwise.
	Active       bool
	Major, Minor int
	// SegType is "linear", "striped", "raid1" and so on.
	SegType string
	// SyncPercent is how far the copies of a mirror agree; -1 for others.
	SyncPercent float64
	// SyncAction is what the kernel does with the copies of an active mirror: SyncIdle, SyncRepair,
	// or another of its words (lvmraid(7)); empty for others.
	SyncAction string
	// Health is LVM's word for what is wrong ("partial", "refresh needed",
	// "mismatches exist"), empty if nothing is.
	Health string
	// Open reports whether somebody has the device open.
	Open bool
	// Checked is true of one whose content has checksums (CreateSpec). RawBytes is its size with them.
	Checked  bool
	RawBytes int64
}

// CopyBytes is the space of the group that one copy takes.
func (v LV) CopyBytes() int64 { return max(v.SizeBytes, v.RawBytes) }

// PoolBytes is the space of the group that all copies take.
func (v LV) PoolBytes() int64 {
	if v.Mirrored() {
		return 2 * v.CopyBytes()
	}
	return v.CopyBytes()
}

// DevNo is "major:minor" of an active logical volume.
func (v LV) DevNo() string { return fmt.Sprintf("%d:%d", v.Major, v.Minor) }

// DevPath is the node that devtmpfs makes, without any help of udev.
func (v LV) DevPath() string { return fmt.Sprintf("/dev/dm-%d", v.Minor) }

// Mirrored reports whether there are two copies, in sync or not (lvmraid(7)).
func (v LV) Mirrored() bool { return v.SegType == "raid1" }

// The kernel's words for what it does with the copies of a mirror: nothing; it compares them, and
// has the second one be as the first; it only counts what differs.
const (
	SyncIdle   = "idle"
	SyncRepair = "repair"
	syncCheck  = "check"
)

// Comparing reports whether the kernel compares the two copies of a mirror. Both are whole then,
// whatever SyncPercent says, which is how far it has come.
func (v LV) Comparing() bool { return v.SyncAction == SyncRepair || v.SyncAction == syncCheck }

// OneCopy reports whether a mirror works on one copy: the other one is given up, or its device is
// missing.
func (v LV) OneCopy() bool {
	return v.Mirrored() && (v.Health == HealthRefresh || v.Health == HealthPartial)
}

// Copy is one of the copies of a mirrored logical volume.
type Copy struct {
	// LV is the name of the logical volume.
	LV string
	// PV is the UUID of the physical volume that the copy is on, and Device its canonical path;
	// that is empty if the machine does not have it.
	PV, Device string
	// Missing: the machine does not have the device. Failed: the kernel has given the copy up; of a
	// logical volume that is not active, nobody knows.
	Missing, Failed bool
}

// CreateSpec describes a new logical volume.
type CreateSpec struct {
	VG, Name string
	// SizeBytes is rounded up to whole extents.
	SizeBytes int64
	Tags      []string
	// Stripes over so many devices; 0 and 1 are none.
	Stripes int
	// Devices are where it may be; without any, LVM chooses among all.
	Devices []string
	// Mirror makes two copies on two devices (raid1). It excludes Stripes.
	Mirror bool
	// Checked asks for room for so many bytes that have checksums, of which SizeBytes must leave
	// enough; 0 for none. Flushes names a logical volume with checksums that a flush of this one has
	// to reach. LVM alone knows neither (package integrity).
	Checked int64
	Flushes string
}

// Client is LVM limited to a set of devices. It is safe for concurrent use: LVM
// has its own locks.
type Client interface {
	// SetDevices replaces the devices of all later calls.
	SetDevices(paths []string)
	// PVs returns those of the given devices that are physical volumes,
	// whatever group they are in.
	PVs(ctx context.Context, devices []string) ([]PV, error)
	// Blank reports whether a device may be taken: a whole block device without
	// any signature, partition, holder or mount. If not, why says what it has.
	// Errors: the device does not exist or cannot be read.
	Blank(ctx context.Context, device string) (blank bool, why string, err error)

	// CreateVG makes a volume group of blank devices. It never overwrites a
	// signature. Errors: ErrExists.
	CreateVG(ctx context.Context, name string, devices []string) error
	// ExtendVG adds blank devices. Errors: ErrNotFound.
	ExtendVG(ctx context.Context, name string, devices []string) error
	// ReduceVG takes a device out of a group. It stays a physical volume. Errors: ErrBusy if
	// anything lies on it, ErrNotFound.
	ReduceVG(ctx context.Context, name, device string) error
	// RemoveVG removes a group without logical volumes; it fails if there are any. Its
	// devices stay physical volumes. Errors: ErrNotFound.
	RemoveVG(ctx context.Context, name string) error
	// RemovePV makes a physical volume of no group blank; it fails if it is of a group.
	RemovePV(ctx context.Context, device string) error
	// VG returns one volume group. Errors: ErrNotFound, ErrNoDevices.
	VG(ctx context.Context, name string) (VG, error)

	// LVs returns all logical volumes of a group that are not internal parts of
	// others. Errors: ErrNotFound, ErrNoDevices.
	LVs(ctx context.Context, vg string) ([]LV, error)
	// OnDevices returns which logical volumes lie on each device of a group (its canonical path);
	// internal parts count as the volume that they are of. Errors: ErrNotFound, ErrNoDevices.
	OnDevices(ctx context.Context, vg string) (map[string][]string, error)
	// Copies returns the copies of all mirrored logical volumes of a group, also those on
	// devices that are missing. Errors: ErrNotFound, ErrNoDevices.
	Copies(ctx context.Context, vg string) ([]Copy, error)
	// CreateLV makes and activates a logical volume. Its content is undefined:
	// nothing is zeroed. Errors: ErrExists, ErrNoSpace, ErrNotFound.
	CreateLV(ctx context.Context, spec CreateSpec) error
	// Activate makes logical volumes appear in the kernel; active ones are
	// success. Errors: ErrNotFound.
	Activate(ctx context.Context, vg string, names ...string) error
	// ExtendLV grows a logical volume to at least size bytes, on the devices that it is
	// on; a larger one is success. Errors: ErrNotFound, ErrNoSpace.
	ExtendLV(ctx context.Context, vg, name string, sizeBytes int64) error
	// Refresh loads the tables of active logical volumes again; a mirror takes a
	// copy in again whose device is back. Errors: ErrNotFound.
	Refresh(ctx context.Context, vg string, names ...string) error
	// RepairCopies has the kernel compare both copies of an active mirror in the background, and
	// write to the second one what differs in the first. LV.SyncAction tells when that has ended.
	// Errors: ErrNotFound if there is none, ErrBusy if the kernel does such a
	// thing already.
	RepairCopies(ctx context.Context, vg, name string) error
	// ChangeTags adds and removes tags of several logical volumes in one
	// transaction. Errors: ErrNotFound.
	ChangeTags(ctx context.Context, vg string, add, remove []string, names ...string) error
	// Rest lets go what is kept in memory for logical volumes that nobody has open, beside what LVM
	// itself keeps. Whoever needs them activates them.
	Rest(ctx context.Context, vg string, names ...string) error
	// RemoveLVs deactivates and removes logical volumes; missing ones, or a
	// missing group, are success. Errors: ErrBusy.
	RemoveLVs(ctx context.Context, vg string, names ...string) error
}
