// Package targetclient talks to nearflash-target, the storage server.
//
// All calls are idempotent: after [ErrInProgress] or [ErrUnavailable] call again
// with the same arguments. Deadlines come from the context; there is no other one.
package targetclient

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

// Provisioning says how a volume gets its room.
type Provisioning = targetpb.Provisioning

// Kinds of provisioning.
const (
	ServerDefault = targetpb.Provisioning_PROVISIONING_UNSPECIFIED
	Thin          = targetpb.Provisioning_PROVISIONING_THIN
	Thick         = targetpb.Provisioning_PROVISIONING_THICK
)

// Config says where the server is and who we are. Both sides show certificates.
type Config struct {
	// Address is host:port of the service.
	Address string
	// CertFile and KeyFile are our certificate, CAFile what signs the server's;
	// PEM files, read again for every new connection.
	CertFile, KeyFile, CAFile string
	// ServerName is the name expected in the server's certificate; the host of
	// Address if empty.
	ServerName string
}

// Volume is a volume on the server.
type Volume struct {
	Name string
	// SizeBytes is the real size: at least what was asked for.
	SizeBytes    int64
	Provisioning Provisioning
	// Ready is false while the volume is being created or deleted.
	Ready bool
	// Generation is the highest it was exported with, 0 for never.
	Generation int64
	Exports    []Export
	// UsedBytes is what is allocated for it.
	UsedBytes int64
	// WWID is what an initiator's sysfs shows in `wwid`.
	WWID string
}

// Export is an initiator that may use a volume.
type Export struct {
	InitiatorIQN string
	Generation   int64
	// LoggedIn says that it has a session now.
	LoggedIn bool
	// Admission names this export; "" from a server of an earlier version.
	Admission string
	// CHAPUsername is the name of its account; "" from a server of an earlier version.
	CHAPUsername string
	// ReadOnly is true of one that may not write.
	ReadOnly bool
}

// ExportRequest asks for an export.
type ExportRequest struct {
	Name         string
	InitiatorIQN string
	// CHAPUsername is 1 to 255 letters, digits and ._:@-; CHAPPassword 12 to 255
	// printable ASCII characters without blanks.
	CHAPUsername, CHAPPassword string
	// Generation is positive and never smaller than one used for the volume before.
	Generation int64
}

// Connection is where an initiator finds its LUN.
type Connection struct {
	// Portals are ip:port, IPv6 in brackets.
	Portals   []string
	TargetIQN string
	LUN       int32
	// WWID is what the initiator's sysfs shows in `wwid` of the right LUN.
	WWID string
}

// Capacity is the room on the server, in bytes.
type Capacity struct {
	AvailableBytes, MaximumVolumeBytes int64
	TotalBytes, UsedBytes              int64
	// MetadataPercent is the fill level of the thin pool's metadata.
	MetadataPercent float64
}

// Health says who the server is and what is wrong with it.
type Health struct {
	Healthy           bool
	Version, ServerID string
	Problems          []string
}

// Client is a connection to one storage server. It is safe for concurrent use and
// connects when it is needed.
type Client struct {
	conn *grpc.ClientConn
	api  targetpb.TargetClient
	ends *ends
}

// New returns a client. It fails if the certificates cannot be read; whether the
// server answers shows with the first call.
func New(c Config) (*Client, error) {
	if _, err := loadTLS(c); err != nil {
		return nil, err
	}
	return NewUnread(c)
}

// NewUnread is New for certificates that need not be there yet: until they can be read, each call
// answers ErrUnavailable.
func NewUnread(c Config) (*Client, error) {
	creds := newCredentials(c)
	conn, err := grpc.NewClient(c.Address, grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}))
	if err != nil {
		return nil, fmt.Errorf("storage server %s: %w", c.Address, err)
	}
	return &Client{conn: conn, api: targetpb.NewTargetClient(conn), ends: creds.ends}, nil
}

// CertificatesEnd returns when the certificates end of the last connection, the server's and
// ours; zero for none yet. They are read anew for each connection.
func (c *Client) CertificatesEnd() (server, client time.Time) {
	at := func(n int64) (t time.Time) {
		if n != 0 {
			t = time.Unix(n, 0)
		}
		return t
	}
	return at(c.ends.server.Load()), at(c.ends.client.Load())
}

// Close closes the connection.
func (c *Client) Close() error {
	return c.conn.Close()
}

// CreateVolume makes a volume of at least sizeBytes that reads as zeros, or finds
// the one that an earlier call has made.
// Errors: ErrAlreadyExists (other size or provisioning), ErrNoSpace,
// *InvalidFieldError, ErrInProgress.
func (c *Client) CreateVolume(ctx context.Context, name string, sizeBytes int64, p Provisioning) (Volume, error) {
	res, err := c.api.CreateVolume(ctx, &targetpb.CreateVolumeRequest{Name: name, SizeBytes: sizeBytes, Provisioning: p})
	if err != nil {
		return Volume{}, wrap("create volume", name, err)
	}
	return volume(res.GetVolume()), nil
}

// DeleteVolume deletes a volume; one that does not exist is not an error.
// Errors: *ExportedError, ErrInUse, ErrInProgress.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	_, err := c.api.DeleteVolume(ctx, &targetpb.DeleteVolumeRequest{Name: name})
	return wrap("delete volume", name, err)
}

// ExpandVolume grows a volume to at least sizeBytes and returns its size; it never
// shrinks one. An initiator has to rescan to see it.
// Errors: ErrNotFound, ErrNoSpace, *InvalidFieldError, ErrInProgress.
func (c *Client) ExpandVolume(ctx context.Context, name string, sizeBytes int64) (int64, error) {
	res, err := c.api.ExpandVolume(ctx, &targetpb.ExpandVolumeRequest{Name: name, SizeBytes: sizeBytes})
	if err != nil {
		return 0, wrap("expand volume", name, err)
	}
	return res.GetSizeBytes(), nil
}

// GetVolume returns one volume.
// Errors: ErrNotFound.
func (c *Client) GetVolume(ctx context.Context, name string) (Volume, error) {
	res, err := c.api.GetVolume(ctx, &targetpb.GetVolumeRequest{Name: name})
	if err != nil {
		return Volume{}, wrap("get volume", name, err)
	}
	return volume(res.GetVolume()), nil
}

// ListVolumes returns one page of volumes, sorted by name: at most limit (0: all),
// beginning after token (the next of the page before). next is empty at the end.
func (c *Client) ListVolumes(ctx context.Context, limit int32, token string) (volumes []Volume, next string, err error) {
	res, err := c.api.ListVolumes(ctx, &targetpb.ListVolumesRequest{MaxEntries: limit, StartingToken: token})
	if err != nil {
		return nil, "", wrap("list volumes", "", err)
	}
	for _, v := range res.GetVolumes() {
		volumes = append(volumes, volume(v))
	}
	return volumes, res.GetNextToken(), nil
}

// ExportVolume lets one initiator log in and says where.
// Errors: ErrNotFound, *StaleGenerationError, *ExportedError (to another
// initiator), *InvalidFieldError, ErrInProgress.
func (c *Client) ExportVolume(ctx context.Context, req ExportRequest) (Connection, error) {
	res, err := c.api.ExportVolume(ctx, &targetpb.ExportVolumeRequest{
		Name: req.Name, InitiatorIqn: req.InitiatorIQN, ChapUsername: req.CHAPUsername, ChapPassword: req.CHAPPassword, Generation: req.Generation,
	})
	if err != nil {
		return Connection{}, wrap("export volume", req.Name, err)
	}
	return Connection{Portals: res.GetPortals(), TargetIQN: res.GetTargetIqn(), LUN: res.GetLun(), WWID: res.GetWwid()}, nil
}

// ExportVolumeReadOnly lets one initiator more log in, which may not write, and says where.
// Errors: those of ExportVolume; ErrUnknownCall from a server of an earlier version.
func (c *Client) ExportVolumeReadOnly(ctx context.Context, req ExportRequest) (Connection, error) {
	res, err := c.api.ExportVolumeReadOnly(ctx, &targetpb.ExportVolumeReadOnlyRequest{
		Name: req.Name, InitiatorIqn: req.InitiatorIQN, ChapUsername: req.CHAPUsername, ChapPassword: req.CHAPPassword, Generation: req.Generation,
	})
	if err != nil {
		return Connection{}, wrap("export volume read-only", req.Name, err)
	}
	return Connection{Portals: res.GetPortals(), TargetIQN: res.GetTargetIqn(), LUN: res.GetLun(), WWID: res.GetWwid()}, nil
}

// UnexportVolume ends an admission of an initiator, whichever it has if admission is
// empty, or everybody's if initiatorIQN is empty, and cuts the sessions. What is not
// exported, was exported anew since, or does not exist is not an error.
// Errors: *InvalidFieldError, ErrInProgress.
func (c *Client) UnexportVolume(ctx context.Context, name, initiatorIQN, admission string) error {
	_, err := c.api.UnexportVolume(ctx, &targetpb.UnexportVolumeRequest{Name: name, InitiatorIqn: initiatorIQN, Admission: admission})
	return wrap("unexport volume", name, err)
}

// WithEpoch returns a context whose calls have an epoch.
func WithEpoch(ctx context.Context, epoch string) context.Context {
	if epoch == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, targetpb.EpochKey, epoch)
}

// Epoch returns the server's ID, and the epoch of the cluster that uses it, "" if none
// has set one.
// Errors: ErrUnknownCall.
func (c *Client) Epoch(ctx context.Context) (server, epoch string, err error) {
	res, err := c.api.GetEpoch(ctx, &targetpb.GetEpochRequest{})
	if err != nil {
		return "", "", wrap("get epoch", "", err)
	}
	return res.GetServerId(), res.GetEpoch(), nil
}

// SwapEpoch replaces the epoch current by next, or finds that done.
// Errors: *EpochError, *InvalidFieldError, ErrUnknownCall.
func (c *Client) SwapEpoch(ctx context.Context, current, next string) error {
	_, err := c.api.SwapEpoch(ctx, &targetpb.SwapEpochRequest{Current: current, Next: next})
	return wrap("swap epoch", "", err)
}

// GetCapacity returns the room for volumes of a provisioning.
func (c *Client) GetCapacity(ctx context.Context, p Provisioning) (Capacity, error) {
	res, err := c.api.GetCapacity(ctx, &targetpb.GetCapacityRequest{Provisioning: p})
	if err != nil {
		return Capacity{}, wrap("get capacity", "", err)
	}
	return Capacity{
		AvailableBytes: res.GetAvailableBytes(), MaximumVolumeBytes: res.GetMaximumVolumeBytes(),
		TotalBytes: res.GetTotalBytes(), UsedBytes: res.GetUsedBytes(), MetadataPercent: res.GetMetadataPercent(),
	}, nil
}

// Health asks the server how it is.
func (c *Client) Health(ctx context.Context) (Health, error) {
	res, err := c.api.Health(ctx, &targetpb.HealthRequest{})
	if err != nil {
		return Health{}, wrap("health", "", err)
	}
	return Health{Healthy: res.GetHealthy(), Version: res.GetVersion(), ServerID: res.GetServerId(), Problems: res.GetProblems()}, nil
}

func volume(v *targetpb.Volume) Volume {
	out := Volume{
		Name: v.GetName(), SizeBytes: v.GetSizeBytes(), Provisioning: v.GetProvisioning(),
		Ready:      v.GetState() == targetpb.VolumeState_VOLUME_STATE_READY,
		Generation: v.GetGeneration(), UsedBytes: v.GetUsedBytes(), WWID: v.GetWwid(),
	}
	for _, e := range v.GetExports() {
		out.Exports = append(out.Exports, Export{
			InitiatorIQN: e.GetInitiatorIqn(), Generation: e.GetGeneration(), LoggedIn: e.GetLoggedIn(), Admission: e.GetAdmission(),
			CHAPUsername: e.GetChapUsername(), ReadOnly: e.GetReadOnly(),
		})
	}
	return out
}
