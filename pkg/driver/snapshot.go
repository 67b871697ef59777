package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearflash/nearflash/pkg/volume"
)

// keyOriginSnapshotClass and keyFreeze are the parameters of a VolumeSnapshotClass.
const (
	keyOriginSnapshotClass = "originSnapshotClass"
	keyFreeze              = "freeze"
)

// snapshotParameters are the accepted keys of a VolumeSnapshotClass.
var snapshotParameters = []string{keyOriginSnapshotClass, keyFreeze}

// snapshotRequest is a checked CreateSnapshotRequest.
type snapshotRequest struct {
	ID    volume.SnapshotID
	Of    volume.ID
	Class volume.SnapshotClass
}

func parseCreateSnapshot(req *csi.CreateSnapshotRequest) (snapshotRequest, error) {
	id, err := snapshotIDFor(req.GetName())
	if err != nil {
		return snapshotRequest{}, err
	}
	if err := required("source_volume_id", req.GetSourceVolumeId()); err != nil {
		return snapshotRequest{}, err
	}
	of, err := volume.ParseID(req.GetSourceVolumeId())
	if err != nil {
		return snapshotRequest{}, fmt.Errorf("%w: source_volume_id %q", volume.ErrNotFound, req.GetSourceVolumeId())
	}
	class, err := parseSnapshotClass(req.GetParameters())
	return snapshotRequest{ID: id, Of: of, Class: class}, err
}

// snapshotIDFor derives the ID of a snapshot from its CSI name, as volumeIDFor that of a
// volume. Names of what clones are made from, and of members of groups, are not given away.
func snapshotIDFor(name string) (volume.SnapshotID, error) {
	id, err := volumeIDFor(name)
	if err != nil {
		return "", err
	}
	if s := volume.SnapshotID(id); s.ForClone() || s.Group() != "" {
		sum := sha256.Sum256([]byte(name))
		return volume.SnapshotID("s-" + hex.EncodeToString(sum[:])[:32]), nil
	}
	return volume.SnapshotID(id), nil
}

// parseSnapshotClass checks the parameters of a VolumeSnapshotClass.
func parseSnapshotClass(params map[string]string) (class volume.SnapshotClass, err error) {
	p := &problems{what: "parameter"}
	p.unknown(params, snapshotParameters)
	class.Origin = params[keyOriginSnapshotClass]
	if class.Origin != "" && len(validation.IsDNS1123Subdomain(class.Origin)) > 0 {
		p.add(keyOriginSnapshotClass, "%q is not accepted; accepted is the name of a VolumeSnapshotClass of the other CSI driver, for volumes of %s %s", class.Origin, keyBackend, backendCSI)
	}
	class.Freeze = p.oneOf(keyFreeze, params[keyFreeze], "false", "true", "false") == "true"
	return class, p.err()
}

// CreateSnapshot implements csi.ControllerServer. It answers Aborted while the volume's node
// writes out what the origin does not have: external-snapshotter asks again.
func (c *Controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if c.snapshots == nil {
		return c.UnimplementedControllerServer.CreateSnapshot(ctx, req)
	}
	create, err := parseCreateSnapshot(req)
	if err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lockAll(ctx, c.locks, snapshotKey(create.ID), string(create.Of))
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	s, err := c.snapshots.CreateSnapshot(ctx, create.ID, create.Of, create.Class)
	if err != nil {
		return nil, statusFor(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: encodeSnapshot(s)}, nil
}

// snapshotKey is the lock of a snapshot; no volume has such an ID.
func snapshotKey(id volume.SnapshotID) string { return "snapshot/" + string(id) }

func encodeSnapshot(s volume.Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.Handle.String(), SourceVolumeId: string(s.Volume), SizeBytes: s.SizeBytes,
		CreationTime: timestamppb.New(s.Created), ReadyToUse: s.Ready,
		GroupSnapshotId: string(s.Handle.ID.Group()),
	}
}

// DeleteSnapshot implements csi.ControllerServer.
func (c *Controller) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if c.snapshots == nil {
		return c.UnimplementedControllerServer.DeleteSnapshot(ctx, req)
	}
	if err := required("snapshot_id", req.GetSnapshotId()); err != nil {
		return nil, statusFor(err)
	}
	h, err := volume.ParseSnapshotHandle(req.GetSnapshotId())
	if err != nil {
		// No snapshot can have such an ID, so it is gone.
		return &csi.DeleteSnapshotResponse{}, nil
	}
	unlock, err := lockAll(ctx, c.locks, snapshotKey(h.ID))
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	if err := c.snapshots.DeleteSnapshot(ctx, h); err != nil {
		return nil, statusFor(err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// ListSnapshots implements csi.ControllerServer.
func (c *Controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if c.snapshots == nil {
		return c.UnimplementedControllerServer.ListSnapshots(ctx, req)
	}
	after, err := parseSnapshotToken(req.GetStartingToken())
	if err != nil {
		return nil, statusFor(err)
	}
	if req.GetMaxEntries() < 0 {
		return nil, statusFor(fmt.Errorf("%w: max_entries %d is negative", volume.ErrInvalid, req.GetMaxEntries()))
	}
	all, err := c.listed(ctx, req.GetSnapshotId())
	if err != nil {
		return nil, statusFor(err)
	}
	all = slices.DeleteFunc(all, func(s volume.Snapshot) bool {
		return req.GetSourceVolumeId() != "" && string(s.Volume) != req.GetSourceVolumeId()
	})
	page, token := paginate(all, after, int(req.GetMaxEntries()), func(s volume.Snapshot) string { return s.Handle.String() })
	resp := &csi.ListSnapshotsResponse{NextToken: token}
	for _, s := range page {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: encodeSnapshot(s)})
	}
	return resp, nil
}

// listed returns the snapshot with an ID, asking only where that is, or all if the ID is empty.
func (c *Controller) listed(ctx context.Context, id string) ([]volume.Snapshot, error) {
	if id == "" {
		return c.snapshots.Snapshots(ctx)
	}
	h, err := volume.ParseSnapshotHandle(id)
	if err != nil {
		return nil, nil // no snapshot can have such an ID
	}
	s, err := c.snapshots.Snapshot(ctx, h)
	if errors.Is(err, volume.ErrNotFound) {
		return nil, nil
	}
	return []volume.Snapshot{s}, err
}

// parseSnapshotToken is parseToken for snapshots.
func parseSnapshotToken(token string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	if _, err := volume.ParseSnapshotHandle(rest); !ok || err != nil {
		return "", fmt.Errorf("%w %q", errToken, token)
	}
	return rest, nil
}

// parseParent reads what a new volume begins as; nil is nothing.
func parseParent(source *csi.VolumeContentSource) (*volume.Parent, error) {
	if source == nil {
		return nil, nil
	}
	if s := source.GetSnapshot(); s != nil {
		if err := required("volume_content_source.snapshot.snapshot_id", s.GetSnapshotId()); err != nil {
			return nil, err
		}
		h, err := volume.ParseSnapshotHandle(s.GetSnapshotId())
		if err != nil {
			return nil, fmt.Errorf("%w: snapshot %q", volume.ErrNotFound, s.GetSnapshotId())
		}
		return &volume.Parent{Snapshot: &h}, nil
	}
	v := source.GetVolume()
	if v == nil {
		return nil, fmt.Errorf("%w: volume_content_source names neither a snapshot nor a volume", volume.ErrInvalid)
	}
	if err := required("volume_content_source.volume.volume_id", v.GetVolumeId()); err != nil {
		return nil, err
	}
	id, err := volume.ParseID(v.GetVolumeId())
	if err != nil {
		return nil, fmt.Errorf("%w: volume %q", volume.ErrNotFound, v.GetVolumeId())
	}
	return &volume.Parent{Volume: id}, nil
}

// lockAll takes several locks, or none and fails with ErrBusy.
func lockAll(ctx context.Context, l Locker, keys ...string) (unlock func(), err error) {
	var held []func()
	unlock = func() {
		for _, u := range slices.Backward(held) {
			u()
		}
	}
	for _, key := range keys {
		u, err := lock(ctx, l, volume.ID(key))
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, u)
	}
	return unlock, nil
}

// errNoContent refuses a source where there are no snapshots.
var errNoContent = errors.New("volume_content_source: no backend of this controller makes snapshots or clones")
