package devmapper

import (
	"context"
	"errors"
	"fmt"
)

// Errors of a Client; test with errors.Is.
var (
	// ErrNotExist: there is no device of that name.
	ErrNotExist = errors.New("device-mapper device does not exist")
	// ErrExist: the name or the UUID is taken.
	ErrExist = errors.New("device-mapper device or UUID exists")
	// ErrBusy: the device, or one that its table names, is open elsewhere.
	ErrBusy = errors.New("device-mapper device is in use")
	// ErrInvalid: the kernel refused the table or the message.
	ErrInvalid = errors.New("refused by the device mapper")
	// ErrUnsupported: the kernel has no device mapper or no such target.
	ErrUnsupported = errors.New("not supported by this kernel")
)

// Info is what the kernel says of a device itself, not of its table.
type Info struct {
	Name, UUID   string
	Major, Minor int
	// OpenCount is the number of openers, mounts and devices above included.
	OpenCount int
	Suspended bool
	ReadOnly  bool
	// HasLive is false for a device that was created and never resumed.
	HasLive bool
	// HasInactive is true between a load and the resume that makes it live.
	HasInactive bool
}

// DevNo is "major:minor", the form tables take.
func (i Info) DevNo() string { return fmt.Sprintf("%d:%d", i.Major, i.Minor) }

// DevPath is the node that devtmpfs makes as soon as the device exists, without
// any help of udev.
func (i Info) DevPath() string { return fmt.Sprintf("/dev/dm-%d", i.Minor) }

// DevPath is [Info.DevPath] of a device by its number, the form tables have. Errors: ErrParse.
func DevPath(devno string) (string, error) {
	var i Info
	if _, err := fmt.Sscanf(devno, "%d:%d", &i.Major, &i.Minor); err != nil {
		return "", fmt.Errorf("%w: device number %q", ErrParse, devno)
	}
	return i.DevPath(), nil
}

// Version is a target's version, for example 2.4.0.
type Version struct {
	Major, Minor, Patch int
}

// AtLeast reports whether v is o or newer.
func (v Version) AtLeast(o Version) bool {
	if v.Major != o.Major {
		return v.Major > o.Major
	}
	if v.Minor != o.Minor {
		return v.Minor > o.Minor
	}
	return v.Patch >= o.Patch
}

// String returns the form 2.4.0.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// Client is the device mapper of one kernel. It is safe for concurrent use; the
// caller serialises changes of one device.
//
// A change goes on when its context ends (hostexec.ErrRuns); the next one of the same
// device waits for it.
type Client interface {
	// Await returns when nothing that was begun changes these devices any more, also by a
	// process before this one. Error: hostexec.ErrRuns, if ctx ended first.
	Await(ctx context.Context, names ...string) error
	// Create makes a device with a live table. On error nothing is left.
	// Errors: ErrExist (also for a UUID that is taken), ErrBusy, ErrInvalid,
	// ErrUnsupported.
	Create(ctx context.Context, name, uuid string, t Table) (Info, error)
	// CreateReadOnly is Create for a device that cannot be written to; so the
	// devices of its table need not be writable either.
	CreateReadOnly(ctx context.Context, name, uuid string, t Table) (Info, error)
	// Load puts a table into the inactive slot; Resume makes it live. A device stays
	// read-only only if every table is loaded with LoadReadOnly.
	// Errors: ErrNotExist, ErrBusy, ErrInvalid, ErrUnsupported.
	Load(ctx context.Context, name string, t Table) error
	LoadReadOnly(ctx context.Context, name string, t Table) error
	// Resume lets I/O run. If there is an inactive table, the kernel suspends the
	// device, swaps the tables and resumes in this one call; a cache writes its
	// mappings, hints and dirty bits. Errors: ErrNotExist, ErrInvalid.
	Resume(ctx context.Context, name string) error
	// ResumeUnfrozen is Resume for a table that only gives errors. Resume freezes a
	// filesystem on the device before it swaps, so that all is written by then, and fails
	// if the device refuses those writes (do_resume in dm-ioctl.c, freeze_bdev). Nothing
	// that the new table could show is left out of it here. Errors: those of Resume.
	ResumeUnfrozen(ctx context.Context, name string) error
	// Clear drops the inactive table, which holds its devices open. Errors:
	// ErrNotExist.
	Clear(ctx context.Context, name string) error
	// Remove removes the device; one that does not exist, and is not being made, is success. An open
	// device is tried again, because udev and blkid open devices for moments,
	// until ctx ends or a few seconds have passed. Errors: ErrBusy.
	Remove(ctx context.Context, name string) error
	// Rename gives a device another name, also one that is in use, and leaves its table and
	// its counts as they are. Errors: ErrNotExist; ErrExist, if the name is taken.
	Rename(ctx context.Context, name, to string) error
	// Message sends words to the target at a sector. Errors: ErrNotExist,
	// ErrInvalid.
	Message(ctx context.Context, name string, sector uint64, words ...string) error
	// Table returns the live table. Errors: ErrNotExist.
	Table(ctx context.Context, name string) (Table, error)
	// Deps returns the devices, each "major:minor", that a device's live table rests on,
	// at a price that does not grow with the table. Errors: ErrNotExist.
	Deps(ctx context.Context, name string) ([]string, error)
	// StatusAll returns the status of every active cache by device name, in one
	// call of dmsetup that commits nothing. A cache whose line cannot be parsed
	// has Unparsed set; it does not hide the others. Nor does one that does not answer: it
	// is Silent.
	StatusAll(ctx context.Context) (map[string]CacheStatus, error)
	// Status is StatusAll for one device, at a price that does not grow with the number
	// of others. found is false if the device's live table is no cache. Errors:
	// ErrNotExist.
	Status(ctx context.Context, name string) (s CacheStatus, found bool, err error)
	// CommitAll makes every active cache write its metadata, in one call of dmsetup.
	// What cannot be written shows in the status of its cache, and is no error.
	CommitAll(ctx context.Context) error
	// Commit is CommitAll for one cache. Errors: ErrNotExist.
	Commit(ctx context.Context, name string) error
	// CloneStatusAll is StatusAll for the clones, and CloneStatus is Status for one. That of a
	// clone whose device does not answer ends with ctx.
	CloneStatusAll(ctx context.Context) (map[string]CloneStatus, error)
	CloneStatus(ctx context.Context, name string) (s CloneStatus, found bool, err error)
	// IntegrityStatusAll returns the status of every device with checksums, by device name.
	IntegrityStatusAll(ctx context.Context) (map[string]IntegrityStatus, error)
	// MultipathStatus returns the status of one multipath device, which must be one:
	// that of another kind may wait for a disk, which ends no thread. Errors:
	// ErrNotExist; ErrParse, also for a device of another kind.
	MultipathStatus(ctx context.Context, name string) (MultipathStatus, error)
	// StatsCreate makes the kernel measure the I/O of a device, in one region over
	// all of it and over what it may grow to (see Stats). A device that is measured
	// already keeps its counts. They survive a swap of the table and are lost with
	// the device.
	// Errors: ErrNotExist, ErrUnsupported (no dm-stats in this kernel).
	StatsCreate(ctx context.Context, name string) error
	// StatsAll returns what StatsCreate's regions have counted, by device name, of
	// all devices whose names begin with prefix. Those that are not measured, or
	// vanish meanwhile, are missing. One that cannot be read is missing too and is
	// named in the error, beside the result of the others.
	StatsAll(ctx context.Context, prefix string) (map[string]Stats, error)
	// TrackWrites makes the kernel note which parts of a device are written to from
	// now on (statistics.rst), in place of what was noted before. The device is
	// suspended for a moment, so that no write is missed. What is noted survives a
	// swap of the table and is lost with the device; tag finds it again.
	// Errors: ErrNotExist, ErrUnsupported (no dm-stats in this kernel).
	TrackWrites(ctx context.Context, name, tag string, areaSectors uint64) error
	// WrittenAreas returns what TrackWrites has noted under a tag. Errors: ErrNotExist,
	// also if nothing is noted under it.
	WrittenAreas(ctx context.Context, name, tag string) (Written, error)
	// UntrackWrites ends all of that; absent is success. Errors: ErrNotExist.
	UntrackWrites(ctx context.Context, name string) error
	// TrackReads makes the kernel count the reads of a device by area (statistics.rst), in
	// areas of HeatAreaSectors. The same areas of a device that is as long as before go on
	// with their counts; others replace them, and begin at zero. Counts survive a swap of the
	// table and are lost with the device.
	// Errors: ErrNotExist, ErrUnsupported (no dm-stats in this kernel); another one if
	// dm-stats has a quarter of all memory already.
	TrackReads(ctx context.Context, name string, chunkSectors uint64) error
	// ReadAreas returns what TrackReads has counted. Errors: ErrNotExist, also if nothing is
	// counted.
	ReadAreas(ctx context.Context, name string) (Reads, error)
	// ClearReads begins at zero again. Errors: as those of ReadAreas.
	ClearReads(ctx context.Context, name string) error
	// Info returns all devices whose names begin with prefix, in one call.
	Info(ctx context.Context, prefix string) (map[string]Info, error)
	// Targets returns the targets that the kernel has loaded. A target in a
	// module that nobody has used yet is missing; see modprobe(8).
	Targets(ctx context.Context) (map[string]Version, error)
}
