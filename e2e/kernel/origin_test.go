//go:build kernel

package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/rescue"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

// kubeletDir is the folder of a node that stands for kubelet's.
const kubeletDir = "kubelet"

// luns are disks of SCSI, as most clouds and arrays have them: LUNs of the guest's own storage
// server. They implement origintest.Devices.
type luns struct{ m *machine }

func (l luns) target(handle string) (transport.Target, error) {
	c, err := l.m.svc.ExportVolume(context.Background(), handle, l.m.initiator, target.Account{Username: chapUser, Password: chapWord}, 1)
	return transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: c.Portals, IQN: c.IQN, LUN: int(c.LUN)}}}, err
}

// disk is the device of a disk that is attached; ok is false for another.
func (l luns) disk(handle string) (path string, ok bool, err error) {
	at, err := l.target(handle)
	if err != nil {
		return "", false, err
	}
	o, found, err := l.initiator().Lookup(context.Background(), at)
	if err != nil || !found {
		return "", false, err
	}
	return o.Paths[0], true, nil
}

func (luns) initiator() *iscsi.Initiator { return iscsi.New(hostexec.New(), iscsi.Config{}) }

func (l luns) Create(handle string, size int64) error {
	_, err := l.m.svc.CreateVolume(context.Background(), handle, size, target.Thin)
	return err
}

func (l luns) Delete(handle string) error {
	return l.m.svc.DeleteVolume(context.Background(), handle)
}

func (l luns) Resize(handle string, size int64) error {
	_, err := l.m.svc.ExpandVolume(context.Background(), handle, size)
	return err
}

func (l luns) Attach(handle string) error {
	at, err := l.target(handle)
	if err != nil {
		return err
	}
	_, err = l.initiator().Connect(context.Background(), at, &volume.Credentials{Username: chapUser, Password: chapWord})
	return err
}

func (l luns) Detach(handle string) error {
	at, err := l.target(handle)
	if err != nil {
		return err
	}
	return errors.Join(l.initiator().Disconnect(context.Background(), at), l.m.svc.UnexportVolume(context.Background(), handle, "", ""))
}

func (l luns) Refresh(handle string) error {
	at, err := l.target(handle)
	if err != nil {
		return err
	}
	return l.initiator().Rescan(context.Background(), at, nil)
}

func (l luns) Publish(handle, path string) error {
	disk, ok, err := l.disk(handle)
	if err != nil || !ok {
		return errors.Join(err, fmt.Errorf("disk of %s is not attached", handle))
	}
	if old, err := os.Readlink(path); err == nil && old == disk {
		return nil
	}
	// One that is there is of before the node's last stop.
	return errors.Join((luns{}).Unpublish(path), os.Symlink(disk, path))
}

func (luns) Unpublish(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (l luns) Open(handle string) (bool, error) {
	disk, ok, err := l.disk(handle)
	if err != nil || !ok {
		return false, err
	}
	f, err := os.OpenFile(disk, os.O_RDONLY|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, f.Close()
}

// strictOrigin is a CSI driver on one node or on several, whose state they share. It fails the test at
// each breach of the specification.
type strictOrigin struct {
	// on are its plugins, by node.
	on map[string]*origintest.Driver
	// secrets are what they must be given.
	secrets map[string]string
}

// strictDriver starts the driver on nodes, which are given by their names.
func (m *machine) strictDriver(nodes map[string]*node, secrets map[string]string) *strictOrigin {
	m.t.Helper()
	state := m.t.TempDir()
	o := &strictOrigin{on: map[string]*origintest.Driver{}, secrets: secrets}
	for name, n := range nodes {
		d := origintest.New(origintest.Config{
			Name: "strict.example.org", Node: name, Kubelet: filepath.Join(n.dir, kubeletDir), Secrets: secrets, State: state,
			Capabilities: origintest.Capabilities{Attach: true, Stage: true, Expand: true}, Devices: luns{m},
		})
		d.Check(m.t)
		mustPass(m.t, "start of the driver", d.Start(m.t.Context()))
		o.on[name] = d
	}
	return o
}

// admit has the volume attached to the node that the record names, and to no other. It is made if it
// is not there.
func (o *strictOrigin) admit(d *disk, generation int64) volume.Source {
	d.m.t.Helper()
	rec, err := d.rec.load(d.req.ID)
	mustPass(d.m.t, "record", err)
	if before := d.req.Publication.Source.CSI; before != nil {
		mustPass(d.m.t, "detach", o.detach(d.m.t.Context(), before.Handle))
	}
	source, err := o.on[rec.Volume.Fence.Node].Provision(d.m.t.Context(), "pv-"+string(d.req.ID), d.size)
	mustPass(d.m.t, "provision", err)
	source.Admission = fmt.Sprint("of generation ", generation)
	return volume.Source{CSI: source}
}

// none ends the test at a breach of the specification. Without a driver there is none.
func (o *strictOrigin) none(t *testing.T, after string) {
	t.Helper()
	if o == nil {
		return
	}
	for _, d := range o.on {
		if found, err := d.Breaches(); err != nil || len(found) > 0 {
			t.Fatalf("%s: breaches of the CSI specification: %v, %v", after, found, err)
		}
	}
}

// left lists what is in the folders of the kubelet that a node has for raw block volumes.
func (o *strictOrigin) left(nodes ...*node) (out []string) {
	if o == nil {
		return nil
	}
	for _, n := range nodes {
		for _, folder := range []string{"staging", "publish"} {
			found, _ := filepath.Glob(filepath.Join(n.dir, kubeletDir, "plugins/kubernetes.io/csi/volumeDevices", folder, "*"))
			out = append(out, found...)
		}
	}
	return out
}

func (o *strictOrigin) detach(ctx context.Context, handle string) error {
	for name, d := range o.on {
		if _, err := d.ControllerUnpublishVolume(ctx, &csipb.ControllerUnpublishVolumeRequest{VolumeId: handle, NodeId: name}); err != nil {
			return err
		}
	}
	return nil
}

func (o *strictOrigin) remove(ctx context.Context, handle string) error {
	if err := o.detach(ctx, handle); err != nil {
		return err
	}
	for _, d := range o.on {
		_, err := d.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: handle})
		return err
	}
	return nil
}

func (o *strictOrigin) expand(ctx context.Context, p volume.Publication, size int64) error {
	_, err := o.on[p.Fence.Node].ControllerExpandVolume(ctx, &csipb.ControllerExpandVolumeRequest{
		VolumeId: p.Source.CSI.Handle, CapacityRange: &csipb.CapacityRange{RequiredBytes: size},
	})
	return err
}

// over makes a volume over one of another driver.
func (m *machine) over(n *node, o *strictOrigin, name string, size int64, spec volume.Spec) *disk {
	m.t.Helper()
	id := volume.ID(name)
	spec.CapacityBytes, spec.Origin = size, &volume.Origin{StorageClass: "strict"}
	fence := volume.Fence{UID: fmt.Sprintf("uid-%s-%d", name, time.Now().UnixNano()), Node: nodeName}
	d := &disk{m: m, n: n, rec: fileRecords{filepath.Join(n.dir, "records")}, size: size, origin: o}
	d.req = volume.StageRequest{
		ID: id, StagingPath: filepath.Join(n.dir, "staging-"+name), Block: true, Credentials: &volume.Credentials{Secrets: o.secrets},
	}
	mustPass(m.t, "record", d.rec.store(id, fileRecord{Volume: volume.Volume{ID: id, Spec: spec, Fence: fence, Published: true, Filesystem: volume.FormatNever}}))
	d.publish(1)
	return d
}

// TestKernelOriginOfDriver: a volume over one of another driver is cached, comes back to its
// cache, survives a plugin that is killed, and keeps no cache whose origin has failed a write. What the
// driver has is every write, and it is called as kubelet calls it.
func TestKernelOriginOfDriver(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	strict := m.strictDriver(map[string]*node{nodeName: n}, map[string]string{"key": "word"})
	driver := strict.on[nodeName]
	for _, mode := range cachingModes() {
		d := m.over(n, strict, "over-"+string(mode), 64*mib, cached(mode, 32*mib))
		d.stage()
		data := pattern(1, 4*mib)
		write(t, d.device(), data, 0, true)
		d.heat(4 * mib)
		d.returns()

		// The other driver's plugin is away, and so was ours: what is attached goes on.
		driver.Stop()
		d.reopen()
		d.stage()
		sameDevices(t, d.device(), d.originDevice())
		if err := d.n.Unstage(t.Context(), d.req.ID, d.req.StagingPath); !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("unstage without the other driver: %v", err)
		}
		// The controller has it detached once the record says Clean: not before it is unstaged.
		if rec, err := d.rec.load(d.req.ID); err != nil || rec.Volume.PossiblyDirty != (mode == volume.ModeWriteback) {
			t.Errorf("the record of a volume that is staged: %+v, %v", rec.Volume, err)
		}
		mustPass(t, "start of the driver", driver.Start(t.Context()))
		d.unstage()
		d.stage()
		d.wantBegan(beganKept)
		d.forgetReasons()

		d.enlarge(32 * mib)
		if err := d.expand(t.Context()); err != nil {
			t.Error(err)
		}

		restore := d.breakLUN()
		f := openDirect(t, d.device())
		_, err := f.ReadAt(aligned(mib), d.size-mib)
		if mode == volume.ModeWritethrough {
			_, err = f.WriteAt(pattern(2, 4*mib), 0)
		}
		if !errors.Is(err, unix.EIO) {
			t.Errorf("use of an origin that fails: %v, want EIO", err)
		}
		mustPass(t, "close", f.Close())
		restore()
		d.unstage()
		d.wantDropped(string(mode))
		d.stage()
		d.wantBegan(beganEmpty)
		sameDevices(t, d.device(), d.originDevice())
		if mode == volume.ModeWriteback {
			wantContent(t, d.originDevice(), data)
		}
		d.unstage()
		if on, err := driver.OnNode(); err != nil || len(on) > 0 {
			t.Errorf("the driver still has on this node: %v, %v", on, err)
		}
		d.remove()
		n = d.n
	}
}

// TestKernelOriginVanishes: the origin's disk is taken away below a pod, and comes back under another
// number. What the pod wrote is on it once the volume leaves the node, and the next pod gets it; while
// the pod has the volume open, the call says that the origin is gone.
func TestKernelOriginVanishes(t *testing.T) {
	const size = 64 * mib
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	strict := m.strictDriver(map[string]*node{nodeName: n}, nil)
	for _, mode := range append(cachingModes(), volume.ModeNone) {
		for _, then := range []string{"unstage", "stage"} {
			d := m.over(n, strict, "vanish-"+string(mode)+"-"+then, size, cached(mode, 32*mib))
			d.stage()
			want := pattern(1, size)
			write(t, d.device(), want, 0, true)
			if mode == volume.ModeWriteback {
				d.writeDirty(d.device(), pattern(2, 8*mib))
				copy(want, pattern(2, 8*mib))
			}
			d.vanish()
			f := openDirect(t, d.device())
			if _, err := f.WriteAt(pattern(9, mib), size-mib); err == nil && mode != volume.ModeWriteback {
				t.Error("a write succeeds without an origin")
			}
			if err := d.n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrUnavailable) || !errors.Is(err, volume.ErrInUse) {
				t.Errorf("stage without an origin, while a pod has the volume open: %v", err)
			}
			mustPass(t, "close", f.Close())
			if then == "stage" { // the pod was started anew, and kubelet has not unstaged
				for tries := 0; ; tries++ {
					err := d.n.Stage(t.Context(), d.req)
					if err == nil {
						break
					}
					if tries > 3 || !errors.Is(err, volume.ErrUnavailable) {
						t.Fatalf("stage %d: %v", tries, err)
					}
				}
				if got := content(t, d.device(), size-mib); !bytes.Equal(got, want[:size-mib]) {
					t.Errorf("%s: the next pod gets other data", d.req.ID)
				}
			}
			d.unstage()
			if got := d.onDisk(size - mib); !bytes.Equal(got, want[:size-mib]) {
				t.Errorf("%s: the origin is not what the pod had written", d.req.ID)
			}
			if rec, err := d.rec.load(d.req.ID); err != nil || rec.Volume.PossiblyDirty {
				t.Errorf("the record: %+v, %v", rec.Volume, err)
			}
			strict.none(t, string(d.req.ID))
			d.remove()
		}
	}
}

// attachedDisk is the device of the other driver's disk.
func (d *disk) attachedDisk() string {
	d.m.t.Helper()
	path, attached, err := luns{d.m}.disk(d.req.Publication.Source.CSI.Handle)
	if err != nil || !attached {
		d.m.t.Fatalf("the disk: %t, %v", attached, err)
	}
	return path
}

// onDisk is the beginning of the origin of a volume that has left the node.
func (d *disk) onDisk(size int64) []byte {
	t := d.m.t
	t.Helper()
	l := luns{d.m}
	handle := d.req.Publication.Source.CSI.Handle
	mustPass(t, "attach", l.Attach(handle))
	got := content(t, d.attachedDisk(), size)
	mustPass(t, "detach", l.Detach(handle))
	return got
}

// vanish takes the origin's disk away and brings it back, under another number as long as somebody has
// the one of before open.
func (d *disk) vanish() {
	t := d.m.t
	t.Helper()
	l := luns{d.m}
	handle := d.req.Publication.Source.CSI.Handle
	before := d.attachedDisk()
	mustPass(t, "take the disk away", os.WriteFile(filepath.Join("/sys/class/block", filepath.Base(before), "device/delete"), []byte("1"), 0o600))
	d.m.must("iscsiadm", "--mode", "session", "--rescan")
	for range 100 {
		if now, attached, err := l.disk(handle); err == nil && attached && now != before {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("the disk does not come back under another number")
}

// TestKernelRescueOverDriver: the writes of a node that lost its power are brought to another driver's
// disk, which is shown to the command as a device.
func TestKernelRescueOverDriver(t *testing.T) {
	const size = 64 * mib
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	strict := m.strictDriver(map[string]*node{nodeName: n}, nil)
	d := m.over(n, strict, "lost-over", size, cached(volume.ModeWriteback, 32*mib))
	d.stage()
	write(t, d.device(), pattern(1, size), 0, true)
	d.writeDirty(d.device(), pattern(2, 8*mib))
	m.must("dmsetup", "wipe_table", "nf-lost-over.origin")
	want := pattern(1, size)
	copy(want, pattern(2, 8*mib))
	d.powerCut()

	disk := d.attachedDisk()
	if bytes.Equal(content(t, disk, size), want) {
		t.Fatal("the origin had everything: the test proves nothing")
	}
	if _, err := d.rescued("--volume", "lost-over", "--origin", disk, "--generation", "2"); !errors.Is(err, rescue.ErrRefused) {
		t.Errorf("rescue of another generation: %v", err)
	}
	out, err := d.rescued("--volume", "lost-over", "--origin", disk, "--generation", "1")
	mustPass(t, "rescue", err)
	t.Log(out)
	if !bytes.Equal(content(t, disk, size), want) {
		t.Error("the origin is not what the pod had written")
	}
	write(t, disk, pattern(3, mib), 0, true) // somebody uses the volume now
	copy(want, pattern(3, mib))
	d.unstage() // the node is back after all
	d.stage()
	if !bytes.Equal(content(t, d.device(), size), want) {
		t.Error("the node that came back has flushed its cache again")
	}
	d.unstage()
	strict.none(t, "rescue")
	d.remove()
}

// wantContent compares the beginning of a device.
func wantContent(t *testing.T, device string, want []byte) {
	t.Helper()
	f := openDirect(t, device)
	defer func() { _ = f.Close() }()
	got := aligned(int64(len(want)))
	if _, err := f.ReadAt(got, 0); err != nil || string(got) != string(want) {
		t.Errorf("%s has other content than was written (%v)", device, err)
	}
}
