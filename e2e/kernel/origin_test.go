//go:build kernel

package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// strictDriver is a CSI driver that fails the test at each breach of the specification.
func (m *machine) strictDriver(n *node) *origintest.Driver {
	m.t.Helper()
	dir := filepath.Join(n.dir, "origins")
	mustPass(m.t, "folder", os.MkdirAll(dir, 0o700))
	d := origintest.New(origintest.Config{
		Name: "strict.example", Node: nodeName, Kubelet: filepath.Join(n.dir, kubeletDir), Secrets: map[string]string{"key": "word"},
		Capabilities: origintest.Capabilities{Attach: true, Stage: true, Expand: true}, Devices: origintest.Loops{Dir: dir},
	})
	d.Check(m.t)
	mustPass(m.t, "start of the driver", d.Start(m.t.Context()))
	return d
}

// over makes a volume over one of another driver.
func (m *machine) over(n *node, d *origintest.Driver, name string, size int64, spec volume.Spec) *disk {
	m.t.Helper()
	source, err := d.Provision(m.t.Context(), "pv-"+name, size)
	mustPass(m.t, "provision", err)
	source.Admission = "first"
	id := volume.ID(name)
	spec.CapacityBytes, spec.Origin = size, &volume.Origin{StorageClass: "strict"}
	fence := volume.Fence{UID: fmt.Sprintf("uid-%s-%d", name, time.Now().UnixNano()), Node: nodeName, Generation: 1}
	v := &disk{m: m, n: n, rec: fileRecords{filepath.Join(n.dir, "records")}, size: size}
	v.req = volume.StageRequest{
		ID: id, StagingPath: filepath.Join(n.dir, "staging-"+name), Block: true,
		Credentials: &volume.Credentials{Secrets: map[string]string{"key": "word"}},
		Publication: volume.Publication{Fence: fence, Source: volume.Source{CSI: source}},
	}
	mustPass(m.t, "record", v.rec.store(id, fileRecord{Volume: volume.Volume{ID: id, Spec: spec, Fence: fence, Published: true, Filesystem: volume.FormatNever}}))
	return v
}

// TestKernelOriginOfDriver: a volume over one of another driver is cached, comes back to its
// cache, survives a plugin that is killed, and keeps no cache whose origin has failed a write. What the
// driver has is every write, and it is called as kubelet calls it.
func TestKernelOriginOfDriver(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	driver := m.strictDriver(n)
	for _, mode := range cachingModes() {
		d := m.over(n, driver, "over-"+string(mode), 64*mib, cached(mode, 32*mib))
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
		mustPass(t, "start of the driver", driver.Start(t.Context()))
		d.unstage()
		d.stage()
		d.wantBegan("Reuse")
		d.forgetReasons()

		restore := d.failOrigin()
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
		d.wantBegan("Create")
		sameDevices(t, d.device(), d.originDevice())
		if mode == volume.ModeWriteback {
			wantContent(t, d.originDevice(), data)
		}
		d.unstage()
		if on, err := driver.OnNode(); err != nil || len(on) > 0 {
			t.Errorf("the driver still has on this node: %v, %v", on, err)
		}
		mustPass(t, "deleted", d.n.deleted(t.Context(), d.req.ID, d.req.Publication.Fence))
		n = d.n
	}
}

// failOrigin makes the device over the origin answer with errors.
func (d *disk) failOrigin() (restore func()) {
	name := filepath.Base("nf-" + string(d.req.ID) + ".origin")
	before := d.m.must("dmsetup", "table", name)
	d.m.swapTable(name, fmt.Sprintf("0 %d error", d.size/512))
	return func() { d.m.swapTable(name, before) }
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
