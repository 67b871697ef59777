// Package backend is what the controller asks of a storage server. Each kind of
// server is a subpackage.
//
// A backend knows volumes by their ID and hosts by their initiator name. It
// stores the highest generation a volume was ever exported with and refuses a
// lower one, so that a stale caller cannot admit a second writer (I1 of
// docs/design/states.md).
package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Request says what volume to make.
type Request struct {
	// SizeBytes is the least size in bytes.
	SizeBytes int64
	// Provisioning is "thin", "thick" or "" for the server's default.
	Provisioning string
	// Origin says which volume of another CSI driver it is to be. A server of LUNs ignores it,
	// and so Node and UID.
	Origin volume.Origin
	// Node is the node that the scheduler has chosen for the first pod, "" if it has not.
	Node string
	// UID is that of the volume's record.
	UID string
	// From is the accepted cut that the volume begins as, "" for one that reads as zeros. It is
	// at least as large as the cut. Only a backend that has Snapshots is asked for it.
	From volume.SnapshotID
}

// Grant says whom to admit to a volume.
type Grant struct {
	// Initiator is the iSCSI initiator name of the host. Of a volume of another CSI driver it
	// is not used.
	Initiator string
	// Node is the host's name as a node of Kubernetes; a server of LUNs ignores it.
	Node string
	// Credentials are the CHAP account that the host will log in with.
	Credentials volume.Credentials
	// Generation is the ownership generation; it is positive.
	Generation int64
	// ReadOnly admits the host to read and not to write, beside others that read under the same
	// generation.
	ReadOnly bool
}

// Export is one admission: an initiator that is let in.
type Export struct {
	// Initiator is the host: its initiator name, or, of a volume of another CSI driver, the
	// name of its node.
	Initiator  string
	Generation int64
	// Admission names it among all that the initiator has ever had; each call of
	// Backend.Export makes a new one. It is empty if the server does not tell them
	// apart (a nearflash-target of an earlier version).
	Admission string
	// LoggedIn is true while the initiator has a session.
	LoggedIn bool
	// Username is the name of the account that it logs in with, which is no secret; empty if
	// there is none, or the server does not tell it (a nearflash-target of an earlier version).
	Username string
	// ReadOnly is true of a host that the server does not let write.
	ReadOnly bool
}

// Access says who is admitted to a volume.
type Access struct {
	// Generation is the highest one that the volume was ever exported with.
	Generation int64
	// SizeBytes is the volume's size.
	SizeBytes int64
	Exports   []Export
	// Topologies are the places that the volume can be reached from, each by labels of nodes;
	// nil is everywhere.
	Topologies []map[string]string
}

// Epoch is what a server says of the cluster that uses it.
type Epoch struct {
	// Server is the server's own name.
	Server string
	// Value is the epoch, "" until a cluster has set one.
	Value string
}

// ErrNoEpochs says that a server knows no epochs: it is of an earlier version.
var ErrNoEpochs = errors.New("the storage server knows no epochs")

// EpochError is returned by whatever changes something, if the server has another epoch
// than the call: another cluster uses it. It matches volume.ErrFenced.
type EpochError struct {
	// Server is the server's epoch, Given the call's.
	Server, Given string
}

// Error implements error.
func (e *EpochError) Error() string {
	return fmt.Sprintf("%v: the storage server is used under another epoch than that of this cluster (%q)", volume.ErrFenced, e.Given)
}

// Unwrap makes errors.Is(err, volume.ErrFenced) true.
func (e *EpochError) Unwrap() error { return volume.ErrFenced }

type epochKey struct{}

// WithEpoch returns a context whose calls of a Backend have an epoch.
func WithEpoch(ctx context.Context, epoch string) context.Context {
	return context.WithValue(ctx, epochKey{}, epoch)
}

// EpochOf returns the epoch of a call, "" for none.
func EpochOf(ctx context.Context) string {
	epoch, _ := ctx.Value(epochKey{}).(string)
	return epoch
}

type takeoverKey struct{}

// WithTakeover returns a context whose calls of a Backend were decided by records that were
// read after the takeover last, "" for none. A keeper of epochs refuses them when there was
// another one since.
func WithTakeover(ctx context.Context, last string) context.Context {
	return context.WithValue(ctx, takeoverKey{}, last)
}

// TakeoverOf returns what WithTakeover has put there.
func TakeoverOf(ctx context.Context) (last string, decided bool) {
	last, decided = ctx.Value(takeoverKey{}).(string)
	return last, decided
}

// Backend is a storage server.
//
// Create, Delete, Expand, Export and Unexport fail with *EpochError if the server has an
// epoch and the context has not the same (WithEpoch).
//
// All methods are idempotent. Their errors match the sentinels of package
// volume: ErrInvalid, ErrNotFound, ErrExists, ErrInUse, ErrNoSpace, ErrBusy,
// ErrUnavailable when the server cannot be reached, ErrAuth when it refuses the
// controller's certificate, ErrBackend for anything else.
type Backend interface {
	// Create makes a volume that reads as zeros, or as Request.From, or finds the one that
	// was made with the same request. Errors: ErrExists, ErrNoSpace, ErrInvalid, and
	// ErrNotFound without the cut.
	Create(ctx context.Context, id volume.ID, req Request) error
	// Delete removes a volume; a missing one is success. ErrInUse while it is
	// exported.
	Delete(ctx context.Context, id volume.ID) error
	// Expand grows a volume to at least size bytes, also while it is exported,
	// and returns its size; it never shrinks one. Errors: ErrNotFound,
	// ErrNoSpace.
	Expand(ctx context.Context, id volume.ID, size int64) (int64, error)
	// Access tells who is admitted. Errors: ErrNotFound.
	Access(ctx context.Context, id volume.ID) (Access, error)
	// AdmittedHosts are all hosts that are admitted to anything, with one such volume each: of all
	// volumes that the server has, and not only of those that have a record. A host is as in
	// Export.Initiator, in lower case.
	AdmittedHosts(ctx context.Context) (map[string]volume.ID, error)
	// Export admits one initiator and tells the address. Errors:
	// *StaleGenerationError, ErrInUse while another initiator is admitted, unless both read
	// alone and under one generation; ErrNotFound; ErrInvalid also for a Grant that is
	// ReadOnly, of a server that cannot see to that, and for an initiator that is to write under
	// the generation under which it reads, or the other way round.
	Export(ctx context.Context, id volume.ID, g Grant) (volume.Source, error)
	// Unexport ends an admission that Access has told of, and its sessions. It never
	// ends another one of the same initiator: if that was admitted anew since, nothing
	// happens. What is not admitted any more or does not exist is success.
	Unexport(ctx context.Context, id volume.ID, e Export) error
	// Epoch returns the epoch. Errors: ErrNoEpochs.
	Epoch(ctx context.Context) (Epoch, error)
	// SwapEpoch replaces the epoch current, "" for none, by next, or finds that done.
	// Errors: *EpochError, ErrNoEpochs.
	SwapEpoch(ctx context.Context, current, next string) error
	// Capacity returns the bytes that new volumes may have.
	Capacity(ctx context.Context) (int64, error)
	// Check reports whether the server answers and accepts the controller's
	// certificate. Errors: ErrUnavailable, ErrAuth, ErrBackend when the server
	// says that it is not healthy.
	Check(ctx context.Context) error
}

// StaleGenerationError is returned by Export when the server has admitted a
// higher generation before: the caller works from outdated knowledge. It
// matches volume.ErrFenced.
type StaleGenerationError struct {
	ID                volume.ID
	Stored, Requested int64
}

// Error implements error.
func (e *StaleGenerationError) Error() string {
	return fmt.Sprintf("%v: the storage server has admitted generation %d of volume %s before, generation %d is outdated", volume.ErrFenced, e.Stored, e.ID, e.Requested)
}

// Unwrap makes errors.Is(err, volume.ErrFenced) true.
func (e *StaleGenerationError) Unwrap() error { return volume.ErrFenced }

// Report is what a storage server says of itself.
type Report struct {
	// Problems are one line each; none is a server that is well.
	Problems []string
	// CapacityBytes and UsedBytes are those of the thin pool, or of the volume group where
	// volumes are thick by default.
	CapacityBytes, UsedBytes int64
	// MetadataRatio is how much of the thin pool's metadata is used, from 0 to 1.
	MetadataRatio float64
	// ServerNotAfter and ClientNotAfter are when the certificates end of the last connection;
	// zero while there was none. They are set although the server could not be asked.
	ServerNotAfter, ClientNotAfter time.Time
}

// Reporter is a Backend over a server that can be asked how it is.
type Reporter interface {
	// Report fails as Check does, and not because the server has problems.
	Report(ctx context.Context) (Report, error)
}
