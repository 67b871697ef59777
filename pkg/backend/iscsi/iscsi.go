// Package iscsi is the backend for nearflash-target, which exports logical
// volumes of a plain Linux server over iSCSI.
package iscsi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
	"github.com/nearflash/nearflash/pkg/volume"
)

// API is what is used of targetclient.Client.
type API interface {
	CreateVolume(ctx context.Context, name string, sizeBytes int64, p targetclient.Provisioning) (targetclient.Volume, error)
	DeleteVolume(ctx context.Context, name string) error
	ExpandVolume(ctx context.Context, name string, sizeBytes int64) (int64, error)
	GetVolume(ctx context.Context, name string) (targetclient.Volume, error)
	ListVolumes(ctx context.Context, limit int32, token string) (volumes []targetclient.Volume, next string, err error)
	ExportVolume(ctx context.Context, req targetclient.ExportRequest) (targetclient.Connection, error)
	ExportVolumeReadOnly(ctx context.Context, req targetclient.ExportRequest) (targetclient.Connection, error)
	UnexportVolume(ctx context.Context, name, initiatorIQN, admission string) error
	Epoch(ctx context.Context) (server, epoch string, err error)
	SwapEpoch(ctx context.Context, current, next string) error
	GetCapacity(ctx context.Context, p targetclient.Provisioning) (targetclient.Capacity, error)
	Health(ctx context.Context) (targetclient.Health, error)
	CertificatesEnd() (server, client time.Time)
	SnapshotAPI
}

var _ API = (*targetclient.Client)(nil)

// Backend is a backend.Backend over nearflash-target.
type Backend struct {
	api API
}

var (
	_ backend.Backend  = (*Backend)(nil)
	_ backend.Reporter = (*Backend)(nil)
)

// New returns a Backend.
func New(api API) *Backend {
	return &Backend{api: api}
}

// Create implements backend.Backend.
func (b *Backend) Create(ctx context.Context, id volume.ID, req backend.Request) error {
	p, err := provisioning(req.Provisioning)
	if err != nil {
		return err
	}
	if req.From != "" {
		return b.createFrom(ctx, id, req.SizeBytes, p, req.From)
	}
	_, err = b.api.CreateVolume(epoch(ctx), string(id), req.SizeBytes, p)
	return translate(ctx, id, err)
}

func provisioning(s string) (targetclient.Provisioning, error) {
	switch s {
	case "":
		return targetclient.ServerDefault, nil
	case "thin":
		return targetclient.Thin, nil
	case "thick":
		return targetclient.Thick, nil
	}
	return 0, fmt.Errorf("%w: provisioning %q: accepted are thin and thick", volume.ErrInvalid, s)
}

// Delete implements backend.Backend.
func (b *Backend) Delete(ctx context.Context, id volume.ID) error {
	return translate(ctx, id, b.api.DeleteVolume(epoch(ctx), string(id)))
}

// Expand implements backend.Backend.
func (b *Backend) Expand(ctx context.Context, id volume.ID, size int64) (int64, error) {
	now, err := b.api.ExpandVolume(epoch(ctx), string(id), size)
	return now, translate(ctx, id, err)
}

// Access implements backend.Backend.
func (b *Backend) Access(ctx context.Context, id volume.ID) (backend.Access, error) {
	v, err := b.api.GetVolume(ctx, string(id))
	if err != nil {
		return backend.Access{}, translate(ctx, id, err)
	}
	out := backend.Access{Generation: v.Generation, SizeBytes: v.SizeBytes}
	for _, e := range v.Exports {
		out.Exports = append(out.Exports, backend.Export{
			Initiator: e.InitiatorIQN, Generation: e.Generation, LoggedIn: e.LoggedIn, Admission: e.Admission, Username: e.CHAPUsername,
			ReadOnly: e.ReadOnly,
		})
	}
	return out, nil
}

// AdmittedHosts implements backend.Backend.
func (b *Backend) AdmittedHosts(ctx context.Context) (map[string]volume.ID, error) {
	out := map[string]volume.ID{}
	for token := ""; ; {
		volumes, next, err := b.api.ListVolumes(ctx, listPage, token)
		if err != nil {
			return nil, translate(ctx, "", err)
		}
		for _, v := range volumes {
			for _, e := range v.Exports {
				out[strings.ToLower(e.InitiatorIQN)] = volume.ID(v.Name)
			}
		}
		if next == "" {
			return out, nil
		}
		token = next
	}
}

// Export implements backend.Backend.
func (b *Backend) Export(ctx context.Context, id volume.ID, g backend.Grant) (volume.Source, error) {
	export := b.api.ExportVolume
	if g.ReadOnly {
		export = b.api.ExportVolumeReadOnly
	}
	c, err := export(epoch(ctx), targetclient.ExportRequest{
		Name:         string(id),
		InitiatorIQN: g.Initiator,
		CHAPUsername: g.Credentials.Username,
		CHAPPassword: g.Credentials.Password,
		Generation:   g.Generation,
	})
	if g.ReadOnly && errors.Is(err, targetclient.ErrUnknownCall) {
		return volume.Source{}, fmt.Errorf("%w: access mode MULTI_NODE_READER_ONLY (ReadOnlyMany) of volume %s: its nearflash-target is of a version that lets one node have a volume, and to write; upgrade nearflash-target first", volume.ErrInvalid, id)
	}
	if err != nil {
		return volume.Source{}, translate(ctx, id, err)
	}
	if !isOf(c.TargetIQN, id) {
		return volume.Source{}, fmt.Errorf("%w: the storage server leads to target %q, which is not volume %s's: who has taken that server over could show the pod another volume, of another server too", volume.ErrBackend, c.TargetIQN, id)
	}
	return volume.Source{ISCSI: volume.ISCSI{Portals: c.Portals, IQN: c.TargetIQN, LUN: int(c.LUN)}}, nil
}

// isOf reports whether a target has the name that nearflash-target gives a volume's: a prefix, the
// server's ID, the volume and, but for versions before, the generation. A node uses a session that it
// has, whoever logged in for what, so that a name may lead to no other volume.
func isOf(iqn string, id volume.ID) bool {
	parts := strings.Split(iqn, ":")
	return (len(parts) == 3 || len(parts) == 4) && parts[2] == string(id)
}

// Unexport implements backend.Backend.
func (b *Backend) Unexport(ctx context.Context, id volume.ID, e backend.Export) error {
	if e.Initiator == "" { // to the server, everybody
		return fmt.Errorf("%w: which admission to volume %s is to end, has no initiator", volume.ErrInvalid, id)
	}
	return translate(ctx, id, b.api.UnexportVolume(epoch(ctx), string(id), e.Initiator, e.Admission))
}

// epoch hands the epoch of a call on to the client.
func epoch(ctx context.Context) context.Context {
	return targetclient.WithEpoch(ctx, backend.EpochOf(ctx))
}

// Epoch implements backend.Backend.
func (b *Backend) Epoch(ctx context.Context) (backend.Epoch, error) {
	server, value, err := b.api.Epoch(ctx)
	return backend.Epoch{Server: server, Value: value}, translate(ctx, "", err)
}

// SwapEpoch implements backend.Backend.
func (b *Backend) SwapEpoch(ctx context.Context, current, next string) error {
	return translate(ctx, "", b.api.SwapEpoch(ctx, current, next))
}

// Capacity implements backend.Backend, for the server's default provisioning.
func (b *Backend) Capacity(ctx context.Context) (int64, error) {
	c, err := b.api.GetCapacity(ctx, targetclient.ServerDefault)
	return c.AvailableBytes, translate(ctx, "", err)
}

// Check implements backend.Backend.
func (b *Backend) Check(ctx context.Context) error {
	h, err := b.health(ctx)
	if err != nil {
		return err
	}
	if !h.Healthy {
		return fmt.Errorf("%w: server %s reports: %s", volume.ErrBackend, h.ServerID, strings.Join(h.Problems, "; "))
	}
	return nil
}

// health asks the server how it is. Errors: ErrUnavailable, ErrAuth.
func (b *Backend) health(ctx context.Context) (targetclient.Health, error) {
	h, err := b.api.Health(ctx)
	if err != nil && isCertificate(err) {
		return h, fmt.Errorf("%w: %w", volume.ErrAuth, err)
	}
	return h, translate(ctx, "", err)
}

// Report implements backend.Reporter.
func (b *Backend) Report(ctx context.Context) (backend.Report, error) {
	var r backend.Report
	h, err := b.health(ctx)
	r.ServerNotAfter, r.ClientNotAfter = b.api.CertificatesEnd()
	if err != nil {
		return r, err
	}
	r.Problems = h.Problems
	if !h.Healthy && len(r.Problems) == 0 {
		r.Problems = []string{"it does not say what"}
	}
	c, err := b.api.GetCapacity(ctx, targetclient.ServerDefault)
	if err = translate(ctx, "", err); errors.Is(err, volume.ErrBackend) {
		// It answers, so that it does not count as away.
		if len(r.Problems) == 0 {
			r.Problems = []string{err.Error()}
		}
		return r, nil
	}
	r.CapacityBytes, r.UsedBytes, r.MetadataRatio = c.TotalBytes, c.UsedBytes, c.MetadataPercent/100
	return r, err
}

// isCertificate reports whether TLS is why the server could not be reached. gRPC
// keeps of the handshake's error nothing but the text; crypto/tls and crypto/x509
// begin theirs with the package's name.
func isCertificate(err error) bool {
	return errors.Is(err, targetclient.ErrUnavailable) &&
		(strings.Contains(err.Error(), "tls: ") || strings.Contains(err.Error(), "x509: "))
}

// translate turns the client's errors into those that package backend promises.
func translate(ctx context.Context, id volume.ID, err error) error {
	if err == nil {
		return nil
	}
	var stale *targetclient.StaleGenerationError
	if errors.As(err, &stale) {
		return &backend.StaleGenerationError{ID: id, Stored: stale.Stored, Requested: stale.Requested}
	}
	var other *targetclient.EpochError
	if errors.As(err, &other) {
		return &backend.EpochError{Server: other.Server, Given: backend.EpochOf(ctx)}
	}
	for _, m := range []struct{ from, to error }{
		{targetclient.ErrUnknownCall, backend.ErrNoEpochs},
		{targetclient.ErrNotFound, volume.ErrNotFound},
		{targetclient.ErrAlreadyExists, volume.ErrExists},
		{targetclient.ErrNoSpace, volume.ErrNoSpace},
		{targetclient.ErrInvalid, volume.ErrInvalid},
		{targetclient.ErrExported, volume.ErrInUse},
		{targetclient.ErrInUse, volume.ErrInUse},
		{targetclient.ErrInProgress, volume.ErrBusy},
		{targetclient.ErrDenied, volume.ErrAuth},
		{targetclient.ErrUnavailable, volume.ErrUnavailable},
	} {
		if errors.Is(err, m.from) {
			return fmt.Errorf("%w: %w", m.to, err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", volume.ErrBackend, err)
}
