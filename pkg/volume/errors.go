package volume

import "errors"

// The errors of the domain. pkg/driver maps each to one gRPC code.
var (
	// ErrInvalid means the request can never succeed as it is.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotFound means the volume does not exist.
	ErrNotFound = errors.New("volume not found")
	// ErrNodeNotFound means no nearflash node of that name has reported.
	ErrNodeNotFound = errors.New("node not found")
	// ErrExists means a volume of the name exists with another spec.
	ErrExists = errors.New("volume exists with different properties")
	// ErrFenced means another owner may hold newer data (I1, I2, I3).
	ErrFenced = errors.New("volume is fenced")
	// ErrInUse means the volume is attached or mounted.
	ErrInUse = errors.New("volume is in use")
	// ErrBusy means an operation on the volume is under way; call again.
	ErrBusy = errors.New("operation in progress")
	// ErrOutOfRange means that no volume can be made of what it is to begin as with the size
	// that was asked for.
	ErrOutOfRange = errors.New("capacity out of range")
	// ErrNoSpace means the storage server cannot hold the volume.
	ErrNoSpace = errors.New("not enough space")
	// ErrBackend means the storage server refused or failed.
	ErrBackend = errors.New("storage server error")
	// ErrUnavailable means something needed cannot be reached now.
	ErrUnavailable = errors.New("temporarily unavailable")
	// ErrAuth means the storage server refused the credentials.
	ErrAuth = errors.New("credentials refused")
	// ErrNotStaged means the volume is not attached to this node.
	ErrNotStaged = errors.New("volume is not staged on this node")
)
