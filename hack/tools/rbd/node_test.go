package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// fakeKernel maps images in memory. locks counts how often a lock was asked for.
type fakeKernel struct {
	mapped map[string]mapping
	locks  int
	open   bool
	size   int64
	next   int
}

func (f *fakeKernel) find(image string) (mapping, bool, error) {
	m, found := f.mapped[image]
	return m, found, nil
}

func (f *fakeKernel) attach(r mapRequest) error {
	if r.user != "node" || r.key != "key" || r.monitors != "mon" {
		return errors.New("wrong credentials")
	}
	f.mapped[r.image] = mapping{ID: f.next, Image: r.image, Client: "client" + string(rune('0'+f.next))}
	f.next++
	return nil
}

func (f *fakeKernel) lock(mapping) error { f.locks++; return nil }

func (f *fakeKernel) detach(m mapping) error {
	if f.open {
		return unix.EBUSY
	}
	delete(f.mapped, m.Image)
	return nil
}

func (f *fakeKernel) refresh(mapping) error { f.size = 2 << 30; return nil }

func (f *fakeKernel) device(m mapping) string { return "/dev/" + m.Client }

func (f *fakeKernel) disk(_ context.Context, m mapping) (string, error) {
	return "/dev/sd" + m.Client, nil
}

func (f *fakeKernel) awaitSize(context.Context, mapping, int64) (int64, error) { return f.size, nil }

type fakeMounts map[string]string

func (f fakeMounts) bound(device, target string) (bool, error) { return f[target] == device, nil }
func (f fakeMounts) bind(device, target string) error          { f[target] = device; return nil }
func (f fakeMounts) unbind(target string) error                { delete(f, target); return nil }

// machine is a node with a fake kernel.
type machine struct {
	*node
	kernel  *fakeKernel
	mounts  fakeMounts
	staging string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	k := &fakeKernel{mapped: map[string]mapping{}}
	m := machine{kernel: k, mounts: fakeMounts{}, staging: t.TempDir()}
	m.node = &node{name: "a", dir: t.TempDir(), boot: "1", kernel: k, mounts: m.mounts}
	return m
}

func (m machine) stage(fenced string) error { return m.stageAs("", fenced) }

func (m machine) stageAs(disk, fenced string) error {
	_, err := m.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: testImage, StagingTargetPath: m.staging, VolumeCapability: blockVolume(),
		VolumeContext: map[string]string{paramMonitors: "mon", paramDisk: disk},
		Secrets:       map[string]string{secretUser: "node", secretKey: "key"}, PublishContext: map[string]string{contextFenced: fenced},
	})
	return err
}

func (m machine) publish(target string) error {
	_, err := m.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
		VolumeId: testImage, StagingTargetPath: m.staging, TargetPath: target, VolumeCapability: blockVolume(),
	})
	return err
}

func (m machine) unpublish(target string) error {
	_, err := m.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: testImage, TargetPath: target})
	return err
}

func (m machine) unstage() error {
	_, err := m.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: testImage, StagingTargetPath: m.staging})
	return err
}

// TestNodeOrder: what is out of order is refused, what is repeated is done once.
func TestNodeOrder(t *testing.T) {
	m := newMachine(t)
	wantCode(t, m.publish("/t"), codes.FailedPrecondition)
	wantCode(t, m.stage(""), codes.OK)
	wantCode(t, m.stage(""), codes.OK)
	if m.kernel.next != 1 || m.kernel.locks != 1 {
		t.Errorf("mapped %d times, locked %d times", m.kernel.next, m.kernel.locks)
	}
	wantCode(t, m.publish("/t"), codes.OK)
	wantCode(t, m.publish("/t"), codes.OK)
	if m.mounts["/t"] != "/dev/client0" {
		t.Errorf("mounts %v", m.mounts)
	}
	wantCode(t, m.unstage(), codes.FailedPrecondition)
	wantCode(t, m.unpublish("/t"), codes.OK)
	wantCode(t, m.unpublish("/t"), codes.OK)
	m.kernel.open = true
	wantCode(t, m.unstage(), codes.FailedPrecondition)
	m.kernel.open = false
	elsewhere := m
	elsewhere.staging = t.TempDir()
	wantCode(t, elsewhere.stage(""), codes.FailedPrecondition)
	wantCode(t, elsewhere.unstage(), codes.FailedPrecondition)
	wantCode(t, m.unstage(), codes.OK)
	wantCode(t, m.unstage(), codes.OK)
	if len(m.kernel.mapped) > 0 {
		t.Errorf("still mapped: %v", m.kernel.mapped)
	}
	files, err := os.ReadDir(m.dir)
	if err != nil || len(files) > 0 {
		t.Errorf("left: %v, %v", files, err)
	}
}

// TestSCSI: the disk that is made of the device is what is published.
func TestSCSI(t *testing.T) {
	m := newMachine(t)
	wantCode(t, m.stageAs(diskSCSI, ""), codes.OK)
	wantCode(t, m.publish("/t"), codes.OK)
	if m.mounts["/t"] != "/dev/sdclient0" {
		t.Errorf("mounts %v", m.mounts)
	}
	_, err := m.NodeExpandVolume(context.Background(), &csi.NodeExpandVolumeRequest{VolumeId: testImage, VolumePath: "/t"})
	wantCode(t, err, codes.FailedPrecondition)
}

func TestNoStagingFolder(t *testing.T) {
	m := newMachine(t)
	m.staging = filepath.Join(m.staging, "absent")
	wantCode(t, m.stage(""), codes.FailedPrecondition)
}

// TestFencedMapping: a mapping whose client is fenced is not given to anybody.
func TestFencedMapping(t *testing.T) {
	m := newMachine(t)
	wantCode(t, m.stage("other"), codes.OK)
	wantCode(t, m.stage("other client0"), codes.FailedPrecondition)
	wantCode(t, m.unstage(), codes.OK)
	wantCode(t, m.stage("other client0"), codes.OK)
	if got := m.kernel.mapped[testImage].Client; got != "client1" {
		t.Errorf("client %s, want a new one", got)
	}
}

// TestLeftover: a mapping of which nothing is kept, of a call that was killed, is replaced.
func TestLeftover(t *testing.T) {
	m := newMachine(t)
	wantCode(t, m.stage(""), codes.OK)
	if err := os.Remove(m.file(testImage)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, m.publish("/t"), codes.FailedPrecondition)
	wantCode(t, m.stage(""), codes.OK)
	wantCode(t, m.publish("/t"), codes.OK)
	if m.mounts["/t"] != "/dev/client1" {
		t.Errorf("mounts %v", m.mounts)
	}
}

// TestReboot: what an earlier boot has left does not count.
func TestReboot(t *testing.T) {
	m := newMachine(t)
	wantCode(t, m.stage(""), codes.OK)
	wantCode(t, m.publish("/t"), codes.OK)
	m.boot = "2"
	clear(m.kernel.mapped)
	wantCode(t, m.publish("/t"), codes.FailedPrecondition)
	wantCode(t, m.unstage(), codes.OK)
	wantCode(t, m.stage(""), codes.OK)
}

func TestNodeExpand(t *testing.T) {
	m := newMachine(t)
	expand := func() (*csi.NodeExpandVolumeResponse, error) {
		return m.NodeExpandVolume(context.Background(), &csi.NodeExpandVolumeRequest{VolumeId: testImage, VolumePath: "/t"})
	}
	_, err := expand()
	wantCode(t, err, codes.FailedPrecondition)
	wantCode(t, m.stage(""), codes.OK)
	r, err := expand()
	wantCode(t, err, codes.OK)
	if r.GetCapacityBytes() != 2<<30 || m.kernel.locks != 2 {
		t.Errorf("answer %v, locked %d times", r, m.kernel.locks)
	}
}

// TestMappings reads the kernel's files as they are.
func TestMappings(t *testing.T) {
	sys := t.TempDir()
	dir := filepath.Join(sys, "bus/rbd/devices/3")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"pool": "rbd\n", "name": "vol\n", "client_addr": "10.0.0.11:0/42\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, found, err := krbd{sys: sys}.find("rbd/vol")
	if want := (mapping{ID: 3, Image: "rbd/vol", Client: "10.0.0.11:0/42"}); err != nil || !found || m != want {
		t.Errorf("got %v, %v, %v, want %v", m, found, err, want)
	}
	if _, found, err := (krbd{sys: sys}).find("rbd/other"); found || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
}
