package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// errSmaller is returned for a volume that its snapshot does not fit into.
var errSmaller = errors.New("too small")

// snapshotPattern is a snapshot of an image, which is its id.
var snapshotPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+$`)

// copying is added to the name of an image that does not have all of its source yet.
const copying = ".copying"

// snapshot is one as Ceph lists it.
type snapshot struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// Timestamp is in the form of asctime, of the root that Ceph runs in, which has UTC.
	Timestamp string `json:"timestamp"`
}

// snapshots are those of an image.
func (c *cluster) snapshots(ctx context.Context, image string) ([]snapshot, error) {
	var all []snapshot
	return all, c.rbdJSON(ctx, &all, "snap", "list", image)
}

func (c *cluster) snap(ctx context.Context, id string) error {
	_, err := c.rbd(ctx, "snap", "create", "--no-progress", id)
	return err
}

func (c *cluster) unsnap(ctx context.Context, id string) error {
	_, err := c.rbd(ctx, "snap", "remove", "--no-progress", id)
	return err
}

// copyFrom makes an image of a snapshot's content, whole or not at all. It is a copy, no child:
// nothing keeps the snapshot from being deleted.
func (c *cluster) copyFrom(ctx context.Context, from, image string, size int64) error {
	half := image + copying
	if err := c.removeHalf(ctx, half); err != nil {
		return err
	}
	if _, err := c.rbd(ctx, "copy", "--no-progress", "--image-feature", imageFeatures, from, half); err != nil {
		return err
	}
	// A size that an image has is refused.
	have, err := c.size(ctx, half)
	if err == nil && have != size {
		err = c.resize(ctx, half, size)
	}
	if err != nil {
		return err
	}
	_, err = c.rbd(ctx, "rename", half, image)
	return err
}

// find returns a snapshot of an image, nil if it has none of the name.
func (c *cluster) find(ctx context.Context, image, name string) (*snapshot, error) {
	all, err := c.snapshots(ctx, image)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
	}
	return nil, nil
}

// CreateSnapshot implements ControllerServer. Who makes a snapshot takes the image's lock, as who
// grows it.
func (c *controller) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	image, id := r.GetSourceVolumeId(), r.GetSourceVolumeId()+"@"+r.GetName()
	if !snapshotPattern.MatchString(id) {
		return nil, status.Errorf(codes.InvalidArgument, "%q is no POOL/IMAGE@SNAPSHOT", id)
	}
	end, err := c.begin(image)
	if err != nil {
		return nil, err
	}
	defer end()
	s, err := c.ceph.find(ctx, image, r.GetName())
	if err == nil && s == nil {
		err = c.withLock(ctx, image, func() error { return c.ceph.snap(ctx, id) })
		if err == nil {
			s, err = c.ceph.find(ctx, image, r.GetName())
		}
	}
	if err != nil {
		return nil, failed(err)
	}
	if s == nil {
		return nil, status.Errorf(codes.Internal, "snapshot %s was made, and is not there", id)
	}
	made, err := time.Parse(time.ANSIC, s.Timestamp)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "time of snapshot %s: %v", id, err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId: id, SourceVolumeId: image, SizeBytes: s.Size, CreationTime: timestamppb.New(made), ReadyToUse: true,
	}}, nil
}

// DeleteSnapshot implements ControllerServer. An image that is gone took no snapshot along: it
// is not deleted while it has one.
func (c *controller) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id := r.GetSnapshotId()
	if !snapshotPattern.MatchString(id) {
		return nil, status.Errorf(codes.InvalidArgument, "%q is no POOL/IMAGE@SNAPSHOT", id)
	}
	image, name, _ := strings.Cut(id, "@")
	end, err := c.begin(image)
	if err != nil {
		return nil, err
	}
	defer end()
	s, err := c.ceph.find(ctx, image, name)
	if err == nil && s != nil {
		err = c.withLock(ctx, image, func() error { return c.ceph.unsnap(ctx, id) })
	}
	if err != nil && !errors.Is(err, errNoImage) {
		return nil, failed(err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// fill makes an image that begins as a snapshot.
func (c *controller) fill(ctx context.Context, from, image string, size int64) error {
	parent, name, _ := strings.Cut(from, "@")
	s, err := c.ceph.find(ctx, parent, name)
	switch {
	case err != nil:
		return err
	case s == nil:
		return fmt.Errorf("%w: snapshot %s", errNoImage, from)
	case size < s.Size:
		return fmt.Errorf("%w: snapshot %s has %d bytes, %d were asked for", errSmaller, from, s.Size, size)
	}
	return c.ceph.copyFrom(ctx, from, image, size)
}

// sourceOf is the snapshot that a volume begins as, "" if it begins empty.
func sourceOf(r *csi.CreateVolumeRequest) (string, error) {
	if r.GetVolumeContentSource() == nil {
		return "", nil
	}
	id := r.GetVolumeContentSource().GetSnapshot().GetSnapshotId()
	if !snapshotPattern.MatchString(id) {
		return "", status.Errorf(codes.InvalidArgument, "%q is no POOL/IMAGE@SNAPSHOT, and clones are not made", id)
	}
	return id, nil
}
