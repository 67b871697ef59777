package main

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

const testSnapshot = testImage + "@monday"

func (w world) snapshot(name string) (*csi.Snapshot, error) {
	r, err := w.CreateSnapshot(context.Background(), &csi.CreateSnapshotRequest{SourceVolumeId: testImage, Name: name})
	return r.GetSnapshot(), err
}

func (w world) unsnapshot(id string) error {
	_, err := w.DeleteSnapshot(context.Background(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

func (w world) restore(from string, size int64) (*csi.Volume, error) {
	source := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: from}}}
	r, err := w.CreateVolume(context.Background(), &csi.CreateVolumeRequest{
		Name: "restored", VolumeCapabilities: []*csi.VolumeCapability{blockVolume()}, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		Parameters: map[string]string{paramPool: "rbd", paramMonitors: "10.0.0.1:3300"}, VolumeContentSource: source,
	})
	return r.GetVolume(), err
}

func TestSnapshot(t *testing.T) {
	w := newWorld(t)
	for range 2 {
		s, err := w.snapshot("monday")
		wantCode(t, err, codes.OK)
		if made := s.GetCreationTime().AsTime(); s.GetSnapshotId() != testSnapshot || s.GetSizeBytes() != 1<<30 || !s.GetReadyToUse() ||
			!made.Equal(time.Date(2026, 11, 6, 6, 22, 36, 0, time.UTC)) {
			t.Errorf("snapshot %v", s)
		}
	}
	if n := len(w.ceph.images[testImage].snaps); n != 1 {
		t.Errorf("%d snapshots were made", n)
	}
	_, err := w.snapshot("a b")
	wantCode(t, err, codes.InvalidArgument)
	wantCode(t, w.remove(), codes.FailedPrecondition) // it has a snapshot
	wantCode(t, w.unsnapshot(testImage), codes.InvalidArgument)
	wantCode(t, w.unsnapshot(testSnapshot), codes.OK)
	wantCode(t, w.unsnapshot(testSnapshot), codes.OK)
	wantCode(t, w.remove(), codes.OK)
	wantCode(t, w.unsnapshot(testSnapshot), codes.OK)
	_, err = w.snapshot("monday")
	wantCode(t, err, codes.NotFound)
}

// TestSnapshotInUse: who makes a snapshot has the lock then, and the client that had it is
// remembered, for a fence.
func TestSnapshotInUse(t *testing.T) {
	w := newWorld(t)
	_, err := w.publish("a")
	wantCode(t, err, codes.OK)
	w.lock("10.0.0.11:0/1")
	_, err = w.snapshot("monday")
	wantCode(t, err, codes.OK)
	w.ceph.images[testImage].locks = nil
	wantCode(t, w.unpublish("a"), codes.OK)
	if !w.ceph.blocked["10.0.0.11:0/1"] {
		t.Errorf("blocked %v", w.ceph.blocked)
	}
}

// TestRestore: an image has all of its snapshot and its own size, or is not there.
func TestRestore(t *testing.T) {
	w := newWorld(t)
	const image = "rbd/restored"
	_, err := w.restore(testSnapshot, 1<<30)
	wantCode(t, err, codes.NotFound)
	_, err = w.restore(testImage, 1<<30)
	wantCode(t, err, codes.InvalidArgument)
	_, err = w.snapshot("monday")
	wantCode(t, err, codes.OK)
	_, err = w.restore(testSnapshot, 1<<29)
	wantCode(t, err, codes.OutOfRange)

	w.ceph.fail["rbd rename"] = errors.New("killed")
	_, err = w.restore(testSnapshot, 2<<30)
	wantCode(t, err, codes.Internal)
	if w.ceph.images[image] != nil {
		t.Fatal("half a copy has the volume's name")
	}
	clear(w.ceph.fail)
	_, err = w.restore(testSnapshot, 1<<30)
	wantCode(t, err, codes.OK)
	delete(w.ceph.images, image)
	w.ceph.done = nil
	for range 2 {
		v, err := w.restore(testSnapshot, 2<<30)
		wantCode(t, err, codes.OK)
		if v.GetCapacityBytes() != 2<<30 || v.GetContentSource().GetSnapshot().GetSnapshotId() != testSnapshot || w.ceph.images[image].size != 2<<30 {
			t.Errorf("volume %v", v)
		}
	}
	want := []string{
		"rbd remove --no-progress " + image + copying,
		"rbd copy --no-progress --image-feature " + imageFeatures + " " + testSnapshot + " " + image + copying,
		"rbd resize --no-progress --size 2147483648B " + image + copying,
		"rbd rename " + image + copying + " " + image,
	}
	if !slices.Equal(w.ceph.done, want) {
		t.Errorf("commands %q, want %q", w.ceph.done, want)
	}
}

// TestHalfAnImage: what a killed command has left of an image does not keep it from being made.
func TestHalfAnImage(t *testing.T) {
	w := newWorld(t)
	delete(w.ceph.images, testImage)
	w.ceph.done = nil
	exists := exec.Command("sh", "-c", "exit 17").Run()
	w.ceph.fail["rbd create"] = exists
	_, err := w.create(1 << 30)
	wantCode(t, err, codes.Internal)
	if want := []string{"rbd remove --no-progress " + testImage}; !slices.Equal(w.ceph.done, want) {
		t.Errorf("commands %q, want %q", w.ceph.done, want)
	}
	clear(w.ceph.fail)
	_, err = w.create(1 << 30)
	wantCode(t, err, codes.OK)
}

// TestCommandGoesOn: a call that is given up does not end its command.
func TestCommandGoesOn(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out, err := commandRunner(nil)(ctx, nil, "echo", "made")
	if err != nil || string(out) != "made\n" {
		t.Errorf("%q, %v", out, err)
	}
}
