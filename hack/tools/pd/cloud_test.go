package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud/meta"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	gce "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-cloud-provider/compute"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/parameters"
)

const testZone = "us-lab1-a"

// machines are what disks are plugged into, as MACHINE/DISK.
type machines struct {
	has map[string]bool
	// plugFails and unplugFails are what calls return.
	plugFails, unplugFails error
}

func (m *machines) plug(_ context.Context, machine, file, name string, _ bool) error {
	if _, err := os.Stat(file); err != nil {
		return err
	}
	if m.plugFails == nil {
		m.has[machine+"/"+name] = true
	}
	return m.plugFails
}

func (m *machines) unplug(_ context.Context, machine, name string) error {
	if m.unplugFails == nil {
		delete(m.has, machine+"/"+name)
	}
	return m.unplugFails
}

func (m *machines) mustHave(t *testing.T, want ...string) {
	t.Helper()
	set := map[string]bool{}
	for _, w := range want {
		set[w] = true
	}
	if !maps.Equal(m.has, set) {
		t.Errorf("machines have %v, want %v", m.has, set)
	}
}

// world is a cloud that can be started again over what it has kept.
type world struct {
	*cloud
	t        *testing.T
	dir      string
	machines *machines
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), machines: &machines{has: map[string]bool{}}}
	w.restart()
	return w
}

func (w *world) restart() {
	w.t.Helper()
	zones := map[string]string{"node-a": testZone, "node-b": testZone, "far": "us-lab1-b"}
	var err error
	if w.cloud, err = newCloud(w.t.Context(), "lab", zones, w.dir, w.machines); err != nil {
		w.t.Fatal(err)
	}
}

func key(name string) *meta.Key { return meta.ZonalKey(name, testZone) }

func (w *world) insert(name, source string) error {
	return w.InsertDisk(w.t.Context(), "lab", key(name), parameters.DiskParameters{DiskType: "pd-ssd"}, 1<<30, nil, nil, "", source, false, "")
}

func (w *world) attach(name, instance string) error {
	return w.AttachDisk(w.t.Context(), "lab", key(name), "READ_WRITE", "PERSISTENT", w.zones[instance], instance, false)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// inUse tells whether an error is Compute Engine's for a disk that another has.
func inUse(err error) bool { return gce.IsGCEError(err, resourceInUse) }

func TestDiskIsInOneMachine(t *testing.T) {
	w := newWorld(t)
	w.must(w.insert("d", ""))
	w.must(w.insert("d", "")) // repeated
	w.must(w.attach("d", "node-a"))
	w.must(w.attach("d", "node-a"))
	// The driver tells by these words that the user is wrong.
	if err := w.attach("d", "node-b"); !inUse(err) || !strings.Contains(err.Error(), "The disk resource") {
		t.Errorf("attach to a second machine: %v", err)
	}
	if err := w.DeleteDisk(t.Context(), "lab", key("d")); !inUse(err) {
		t.Errorf("delete of an attached disk: %v", err)
	}
	w.machines.mustHave(t, "node-a/d")
	w.must(w.DetachDisk(t.Context(), "lab", "d", testZone, "node-a"))
	w.must(w.attach("d", "node-b"))
	w.machines.mustHave(t, "node-b/d")
	if err := w.attach("d", "far"); err == nil {
		t.Error("a disk is attached in another zone")
	}
	w.must(w.DetachDisk(t.Context(), "lab", "d", testZone, "node-b"))
	w.must(w.DeleteDisk(t.Context(), "lab", key("d")))
	w.must(w.DeleteDisk(t.Context(), "lab", key("d")))
	if _, err := os.Stat(w.store.image("d")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the image is left: %v", err)
	}
}

func TestRestartKnowsWhatThereIs(t *testing.T) {
	w := newWorld(t)
	w.must(w.insert("d", ""))
	w.must(w.attach("d", "node-a"))
	_, err := w.ResizeDisk(t.Context(), "lab", key("d"), 3<<30)
	w.must(err)
	w.machines.has = map[string]bool{} // a new machine of that name
	w.restart()
	w.machines.mustHave(t, "node-a/d")
	d, err := w.GetDisk(t.Context(), "lab", key("d"))
	w.must(err)
	if users := d.GetUsers(); d.GetSizeGb() != 3 || len(users) != 1 || !strings.HasSuffix(users[0], "/instances/node-a") {
		t.Errorf("disk has %d GB and users %v", d.GetSizeGb(), users)
	}
	if st, err := os.Stat(w.store.image("d")); err != nil || st.Size() != 3<<30 {
		t.Errorf("image: %v, %v", st, err)
	}
	instance, err := w.GetInstanceOrError(t.Context(), "lab", testZone, "node-a")
	w.must(err)
	if len(instance.Disks) != 1 || instance.Disks[0].DeviceName != "d" {
		t.Errorf("machine's disks: %+v", instance.Disks)
	}
}

func TestPlugFails(t *testing.T) {
	w := newWorld(t)
	w.must(w.insert("d", ""))
	boom := errors.New("boom")
	w.machines.plugFails = boom
	if err := w.attach("d", "node-a"); !errors.Is(err, boom) {
		t.Errorf("attach: %v", err)
	}
	w.machines.plugFails = nil
	w.must(w.attach("d", "node-b")) // node-a surely has nothing
	w.must(w.DetachDisk(t.Context(), "lab", "d", testZone, "node-b"))

	w.machines.plugFails, w.machines.unplugFails = boom, boom
	if err := w.attach("d", "node-a"); !errors.Is(err, boom) {
		t.Errorf("attach: %v", err)
	}
	w.machines.plugFails = nil
	if err := w.attach("d", "node-b"); !inUse(err) {
		t.Errorf("attach to a second machine while the first may have it: %v", err)
	}
	w.restart()
	if err := w.attach("d", "node-b"); !inUse(err) {
		t.Errorf("the same after a restart: %v", err)
	}
	w.machines.unplugFails = nil
	w.must(w.attach("d", "node-b"))
	w.machines.mustHave(t, "node-b/d")
	w.machines.unplugFails = boom
	if err := w.DetachDisk(t.Context(), "lab", "d", testZone, "node-b"); !errors.Is(err, boom) {
		t.Errorf("detach: %v", err)
	}
	if err := w.attach("d", "node-a"); !inUse(err) {
		t.Errorf("attach after a detach that failed: %v", err)
	}
}

func TestMachineIsFull(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"one", "two"} {
		w.must(w.insert(name, ""))
	}
	w.must(os.WriteFile(filepath.Join(w.dir, limitsFile), []byte(`{"node-a": 1}`), 0o600))
	w.must(w.attach("one", "node-a"))
	if err := w.attach("two", "node-a"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("attach to a machine that is full: %v", err)
	}
	w.must(w.attach("one", "node-a")) // again
	w.must(w.attach("two", "node-b"))
	w.machines.mustHave(t, "node-a/one", "node-b/two")
}

func TestClone(t *testing.T) {
	w := newWorld(t)
	w.must(w.insert("d", ""))
	f, err := os.OpenFile(w.store.image("d"), os.O_WRONLY, 0)
	w.must(err)
	for _, at := range []int64{5 << 20, 1<<30 - 4} {
		_, err = f.WriteAt([]byte("data"), at)
		w.must(err)
	}
	w.must(f.Close())
	w.must(w.insert("e", "projects/lab/zones/"+testZone+"/disks/d"))
	e, err := os.Open(w.store.image("e"))
	w.must(err)
	defer e.Close()
	for _, at := range []int64{5 << 20, 1<<30 - 4} {
		b := make([]byte, 5) // one more than there is at the end
		if n, _ := e.ReadAt(b, at); string(b[:4]) != "data" || at > 5<<20 && n != 4 {
			t.Errorf("the copy has %q at %d", b[:n], at)
		}
	}
	if err := w.insert("f", "projects/lab/zones/"+testZone+"/disks/x"); !gce.IsGCENotFoundError(err) {
		t.Errorf("copy of nothing: %v", err)
	}
}

func TestParseInstances(t *testing.T) {
	for s, want := range map[string]int{"a=us-lab1-a,b=us-lab1-b": 2, "": 0, "a": 0, "a=zone": 0} {
		got, err := parseInstances(s)
		if len(got) != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}
