package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fakeCeph answers the commands as Ceph does, from memory.
type fakeCeph struct {
	images  map[string]*fakeImage
	notes   map[string][]byte
	blocked map[string]bool
	// done are the commands that changed something, without the user.
	done []string
	// fail is an error for commands that begin with its key.
	fail map[string]error
}

type fakeImage struct {
	size  int64
	snaps []snapshot
	locks []lock
	// watchers are addresses.
	watchers []string
}

func (f *fakeCeph) run(_ context.Context, stdin []byte, args ...string) ([]byte, error) {
	if args[1] != "--id" || args[2] != "controller" {
		return nil, fmt.Errorf("who asks? %v", args)
	}
	args = append([]string{args[0]}, args[3:]...)
	line := strings.Join(args, " ")
	for begin, err := range f.fail {
		if strings.HasPrefix(line, begin) {
			return nil, err
		}
	}
	if args[0] == "rados" {
		return f.rados(line, stdin, args[3], strings.Replace(args[4], "lab.", args[2]+"/", 1))
	}
	if args[0] == "ceph" {
		f.done = append(f.done, line)
		f.blocked[args[4]] = args[3] == "add"
		return nil, nil
	}
	return f.rbd(line, args[1:])
}

func (f *fakeCeph) rados(line string, stdin []byte, verb, image string) ([]byte, error) {
	if verb != "get" {
		f.done = append(f.done, line)
	}
	notes, there := f.notes[image]
	switch {
	case verb == "put":
		f.notes[image] = stdin
	case !there:
		return nil, errors.New("exit status 1: error getting it: (2) No such file or directory")
	case verb == "rm":
		delete(f.notes, image)
	}
	return notes, nil
}

func (f *fakeCeph) rbd(line string, args []string) ([]byte, error) {
	at := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "rbd/") })
	name, snap, _ := strings.Cut(args[at], "@")
	img := f.images[name]
	if img == nil && args[0] == "remove" {
		f.done = append(f.done, line)
	}
	if img == nil && args[0] != "create" {
		return nil, fmt.Errorf("%w: %s", errNoImage, name)
	}
	var answer any
	switch args[0] + " " + args[1] {
	case "info " + name:
		answer = map[string]int64{"size": img.size}
	case "status " + name:
		type watcher struct {
			Address string `json:"address"`
		}
		var all []watcher
		for _, address := range img.watchers {
			all = append(all, watcher{address})
		}
		answer = map[string]any{"watchers": all}
	case "lock list":
		answer = img.locks
	case "snap list":
		answer = img.snaps
	case "snap create", "snap remove":
		f.done = append(f.done, line)
		img.snaps = slices.DeleteFunc(img.snaps, func(s snapshot) bool { return s.Name == snap })
		if args[1] == "create" {
			img.snaps = append(img.snaps, snapshot{Name: snap, Size: img.size, Timestamp: "Fri Nov  6 06:22:36 2026"})
		}
	case "copy --no-progress":
		f.done = append(f.done, line)
		f.images[args[at+1]] = &fakeImage{size: img.snaps[0].Size}
	case "rename " + name:
		f.done = append(f.done, line)
		f.images[args[2]] = img
		delete(f.images, name)
	default:
		f.done = append(f.done, line)
		return nil, f.change(name, img, args)
	}
	return json.Marshal(answer)
}

func (f *fakeCeph) change(name string, img *fakeImage, args []string) error {
	switch args[0] + " " + args[1] {
	case "create --size":
		size, err := strconv.ParseInt(strings.TrimSuffix(args[2], "B"), 10, 64)
		f.images[name] = &fakeImage{size: size}
		return err
	case "resize --no-progress":
		size, err := strconv.ParseInt(strings.TrimSuffix(args[3], "B"), 10, 64)
		if size == img.size {
			return errors.New("exit status 22: rbd: new size is equal to original size")
		}
		img.size = size
		return err
	case "remove --no-progress":
		delete(f.images, name)
	case "--rbd-blocklist-on-break-lock=false lock":
		img.locks = slices.DeleteFunc(img.locks, func(l lock) bool { return l.ID == args[4] && l.Locker == args[5] })
	default:
		return fmt.Errorf("unknown command %v", args)
	}
	return nil
}

// world is a controller over a fake Ceph, with nodes that have booted.
type world struct {
	*controller
	ceph  *fakeCeph
	boots map[string]string
}

const testImage = "rbd/vol"

func newWorld(t *testing.T) world {
	t.Helper()
	f := &fakeCeph{images: map[string]*fakeImage{}, notes: map[string][]byte{}, blocked: map[string]bool{}, fail: map[string]error{}}
	booted := map[string]string{"a": "a1", "b": "b1"}
	c := newController(&cluster{run: f.run, user: "controller"}, func(_ context.Context, node string) (string, error) { return booted[node], nil })
	w := world{controller: c, ceph: f, boots: booted}
	if _, err := w.create(1 << 30); err != nil {
		t.Fatal(err)
	}
	return w
}

func blockVolume() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func (w world) create(size int64) (*csi.CreateVolumeResponse, error) {
	return w.CreateVolume(context.Background(), &csi.CreateVolumeRequest{
		Name: "vol", VolumeCapabilities: []*csi.VolumeCapability{blockVolume()}, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		Parameters: map[string]string{paramPool: "rbd", paramMonitors: "10.0.0.1:3300"},
	})
}

func (w world) publish(node string) (string, error) {
	r, err := w.ControllerPublishVolume(context.Background(), &csi.ControllerPublishVolumeRequest{
		VolumeId: testImage, NodeId: node, VolumeCapability: blockVolume(),
	})
	return r.GetPublishContext()[contextFenced], err
}

func (w world) unpublish(node string) error {
	_, err := w.ControllerUnpublishVolume(context.Background(), &csi.ControllerUnpublishVolumeRequest{VolumeId: testImage, NodeId: node})
	return err
}

func (w world) remove() error {
	_, err := w.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: testImage})
	return err
}

// lock gives the lock to a client, as a map does.
func (w world) lock(address string) {
	w.ceph.images[testImage].locks = []lock{{ID: "auto 1", Locker: "client.1", Address: address}}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Fatalf("error %v, want code %v", err, want)
	}
}

func TestCreate(t *testing.T) {
	w := newWorld(t)
	_, err := w.create(1 << 30)
	wantCode(t, err, codes.OK) // again
	_, err = w.create(2 << 30)
	wantCode(t, err, codes.AlreadyExists)
	mounted := &csi.CreateVolumeRequest{
		Name: "vol", Parameters: map[string]string{paramPool: "rbd", paramMonitors: "10.0.0.1:3300"},
		VolumeCapabilities: []*csi.VolumeCapability{{AccessType: &csi.VolumeCapability_Mount{}, AccessMode: blockVolume().GetAccessMode()}},
	}
	_, err = w.CreateVolume(context.Background(), mounted)
	wantCode(t, err, codes.InvalidArgument)
	mounted.VolumeCapabilities, mounted.Parameters = []*csi.VolumeCapability{blockVolume()}, nil
	_, err = w.CreateVolume(context.Background(), mounted)
	wantCode(t, err, codes.InvalidArgument)
	mounted.Parameters = map[string]string{paramPool: "rbd", paramMonitors: "10.0.0.1:3300", paramDisk: "tape"}
	_, err = w.CreateVolume(context.Background(), mounted)
	wantCode(t, err, codes.InvalidArgument)
	mounted.Parameters, mounted.Name = map[string]string{paramPool: "rbd", paramMonitors: "10.0.0.1:3300"}, "a b"
	_, err = w.CreateVolume(context.Background(), mounted)
	wantCode(t, err, codes.InvalidArgument)
}

// TestOrder: what is out of order is refused.
func TestOrder(t *testing.T) {
	w := newWorld(t)
	_, err := w.publish("a")
	wantCode(t, err, codes.OK)
	_, err = w.publish("a") // again
	wantCode(t, err, codes.OK)
	_, err = w.publish("b")
	wantCode(t, err, codes.FailedPrecondition)
	wantCode(t, w.remove(), codes.FailedPrecondition)
	wantCode(t, w.unpublish("b"), codes.OK) // it has nothing
	_, err = w.publish("b")
	wantCode(t, err, codes.FailedPrecondition)
	wantCode(t, w.unpublish("a"), codes.OK)
	wantCode(t, w.unpublish("a"), codes.OK)
	_, err = w.publish("b")
	wantCode(t, err, codes.OK)
	wantCode(t, w.unpublish(""), codes.OK) // from all nodes
	wantCode(t, w.remove(), codes.OK)
	wantCode(t, w.remove(), codes.OK)
	wantCode(t, w.unpublish("b"), codes.OK)
	_, err = w.publish("b")
	wantCode(t, err, codes.NotFound)
}

// TestFence: a node that still has the lock is kept out before the volume goes on, and let
// in when it has booted, not before.
func TestFence(t *testing.T) {
	w := newWorld(t)
	const client = "10.0.0.11:0/42"
	publish := func(node, wantFenced string) {
		t.Helper()
		got, err := w.publish(node)
		wantCode(t, err, codes.OK)
		if got != wantFenced {
			t.Errorf("fenced clients told to %s: %q, want %q", node, got, wantFenced)
		}
	}
	publish("a", "")
	wantCode(t, w.unpublish("a"), codes.OK)
	if len(w.ceph.blocked) > 0 {
		t.Fatalf("a node without the lock was fenced: %v", w.ceph.blocked)
	}
	publish("a", "")
	w.lock(client)
	w.ceph.fail["rbd --rbd-blocklist-on-break-lock=false lock remove"] = context.DeadlineExceeded
	wantCode(t, w.unpublish("a"), codes.DeadlineExceeded)
	_, err := w.publish("b")
	wantCode(t, err, codes.FailedPrecondition) // the fence is not done
	clear(w.ceph.fail)
	w.ceph.done = nil
	wantCode(t, w.unpublish("a"), codes.OK)
	want := []string{
		"rados -p rbd put lab.vol -",
		"ceph osd blocklist add " + client + " " + strconv.Itoa(int(fenceLasts/time.Second)),
		"rbd --rbd-blocklist-on-break-lock=false lock remove " + testImage + " auto 1 client.1",
		"rados -p rbd put lab.vol -",
	}
	if !slices.Equal(w.ceph.done, want) {
		t.Errorf("commands %q, want %q", w.ceph.done, want)
	}
	publish("b", client)
	wantCode(t, w.unpublish("b"), codes.OK)
	publish("a", client)
	if !w.ceph.blocked[client] {
		t.Error("the client was let in, and its node has not booted since")
	}
	wantCode(t, w.unpublish("a"), codes.OK)
	w.boots["a"] = ""
	publish("a", client) // no node of that name
	w.boots["a"] = "a2"
	publish("a", "")
	if w.ceph.blocked[client] {
		t.Error("the client of an earlier boot is still fenced")
	}
	if got := string(w.ceph.notes[testImage]); got != `{"node":"a"}` {
		t.Errorf("notes %s", got)
	}
	wantCode(t, w.unpublish("a"), codes.OK)
	wantCode(t, w.remove(), codes.OK)
	if len(w.ceph.notes) > 0 {
		t.Errorf("left: %s", w.ceph.notes)
	}
}

func TestExpandImage(t *testing.T) {
	w := newWorld(t)
	expand := func(size, want int64) {
		t.Helper()
		r, err := w.ControllerExpandVolume(context.Background(), &csi.ControllerExpandVolumeRequest{
			VolumeId: testImage, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		})
		wantCode(t, err, codes.OK)
		if r.GetCapacityBytes() != want || w.ceph.images[testImage].size != want || !r.GetNodeExpansionRequired() {
			t.Errorf("answer %v, image of %d bytes, want %d", r, w.ceph.images[testImage].size, want)
		}
	}
	expand(2<<30+1, 2<<30+objectSize)
	expand(1<<30, 2<<30+objectSize)
}

// TestFenceWithoutLock: who grows an image has its lock then. A client that watches the
// image is fenced all the same, and one that nobody has heard of since.
func TestFenceWithoutLock(t *testing.T) {
	w := newWorld(t)
	_, err := w.publish("a")
	wantCode(t, err, codes.OK)
	img := w.ceph.images[testImage]
	w.lock("10.0.0.11:0/1")
	_, err = w.ControllerExpandVolume(context.Background(), &csi.ControllerExpandVolumeRequest{
		VolumeId: testImage, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30},
	})
	wantCode(t, err, codes.OK)
	img.locks, img.watchers = nil, []string{"10.0.0.11:0/2"}
	wantCode(t, w.unpublish("a"), codes.OK)
	if want := map[string]bool{"10.0.0.11:0/1": true, "10.0.0.11:0/2": true}; !maps.Equal(w.ceph.blocked, want) {
		t.Errorf("blocked %v, want %v", w.ceph.blocked, want)
	}
	n, err := w.controller.ceph.notes(context.Background(), testImage)
	if err != nil || n.Node != "" || len(n.Clients) > 0 || len(n.Fenced) != 2 {
		t.Errorf("notes %+v, %v", n, err)
	}
}

func TestOneCallAtATime(t *testing.T) {
	w := newWorld(t)
	end, err := w.begin(testImage)
	wantCode(t, err, codes.OK)
	wantCode(t, w.remove(), codes.Aborted)
	end()
	wantCode(t, w.remove(), codes.OK)
}
