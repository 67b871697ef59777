// Package transport attaches remote block devices. Each protocol is a
// subpackage; iscsi is the first.
package transport

import (
	"context"
	"errors"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Errors of a Transport; test with errors.Is.
var (
	// ErrAuth: the target refused the initiator or its credentials.
	ErrAuth = errors.New("authentication refused by the storage target")
	// ErrUnreachable: no portal answers.
	ErrUnreachable = errors.New("storage target is unreachable")
	// ErrNoTarget: the portal answers and has no such target.
	ErrNoTarget = errors.New("storage target does not exist")
	// ErrNoLUN: the session works, but the LUN is missing, empty or no disk.
	ErrNoLUN = errors.New("LUN does not exist")
	// ErrNoDaemon: a helper of the protocol does not run on this node. The
	// error names the remedy.
	ErrNoDaemon = errors.New("storage protocol daemon is not running")
	// ErrMismatch: paths that should show one device show several.
	ErrMismatch = errors.New("paths lead to different devices")
	// ErrInvalid: the target's description makes no sense.
	ErrInvalid = errors.New("invalid storage target")
)

// Target is one remote block device, and how it is attached.
type Target struct {
	volume.Source
	// FailFast is for a device that something else can replace: I/O fails some two
	// seconds after its portal has died, and nothing waits for longer.
	FailFast bool
}

// Origin is an attached device. Paths, DevNos and Products have the same order and
// at least one element.
type Origin struct {
	// Paths are device nodes such as /dev/sda; DevNos are "major:minor".
	Paths, DevNos []string
	// Products are the product identifications that the paths showed when they
	// appeared.
	Products  []string
	SizeBytes int64
	// LogicalBlock is the logical block size in bytes.
	LogicalBlock int
	// WWID identifies the device; all paths have the same. It may be empty for
	// a single path whose target has none.
	WWID string
}

// Transport attaches and detaches devices of one protocol. It is safe for
// concurrent use with different targets; the caller serialises one target.
type Transport interface {
	// Connect attaches the device and waits, until ctx ends, for its nodes. It
	// is idempotent. cred may be nil: then what an earlier Connect of the same
	// target stored is used, if anything. With several portals it is enough
	// that one answers; the paths found are returned.
	// Errors: ErrAuth, ErrUnreachable, ErrNoTarget, ErrNoLUN, ErrNoDaemon,
	// ErrMismatch, ErrInvalid.
	Connect(ctx context.Context, t Target, cred *volume.Credentials) (Origin, error)
	// Disconnect detaches the device and forgets the credentials. What was
	// never attached is success. The caller has flushed the device.
	// Errors: ErrNoDaemon.
	Disconnect(ctx context.Context, t Target) error
	// Lookup finds an attached device and changes nothing.
	// Errors: ErrMismatch.
	Lookup(ctx context.Context, t Target) (o Origin, found bool, err error)
	// Rescan makes the kernel read the device's size again, on every path. cred is what the
	// caller was given for it; nil leaves those of the last Connect of this process, if any.
	// Errors: ErrNoLUN if it is not attached.
	Rescan(ctx context.Context, t Target, cred *volume.Credentials) error
	// Marks are those of the paths now; none if it is not attached.
	// Errors: whatever keeps it from knowing.
	Marks(ctx context.Context, t Target) (Marks, error)
}
