package pool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/lvm"
)

// disks is an LVM of which a Manager asks no more than this: the volume group of each device,
// "" for a blank one.
type disks struct {
	lvm.Client
	of    map[string]string
	taken []string
}

func (d *disks) SetDevices([]string) {}

func (d *disks) VG(_ context.Context, name string) (lvm.VG, error) {
	for _, vg := range d.of {
		if vg == name {
			return lvm.VG{Name: name, SizeBytes: 1 << 30, FreeBytes: 1 << 30, ExtentBytes: 4 << 20}, nil
		}
	}
	return lvm.VG{}, lvm.ErrNotFound
}

func (d *disks) PVs(_ context.Context, devices []string) (out []lvm.PV, err error) {
	for _, device := range devices {
		if vg := d.of[device]; vg != "" {
			out = append(out, lvm.PV{Device: device, VG: vg})
		}
	}
	return out, nil
}

func (d *disks) Blank(_ context.Context, device string) (bool, string, error) {
	return d.of[device] == "", "has a signature: LVM2_member", nil
}

func (d *disks) CreateVG(_ context.Context, name string, devices []string) error {
	for _, device := range devices {
		d.of[device] = name
		d.taken = append(d.taken, filepath.Base(device))
	}
	return nil
}

func (d *disks) ExtendVG(ctx context.Context, name string, devices []string) error {
	return d.CreateVG(ctx, name, devices)
}

// machine is a node with its SSDs, which are files in a directory.
type machine struct {
	*Manager
	*disks
	dir string
	api client.Client
}

func newMachine(t *testing.T, ssds ...string) *machine {
	t.Helper()
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{disks: &disks{of: map[string]string{}}, dir: t.TempDir()}
	m.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.CachePool{}).Build()
	for _, name := range ssds {
		if err := os.WriteFile(filepath.Join(m.dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.restart(Config{})
	return m
}

// restart starts another plugin, whose flags name all SSDs if they name none.
func (m *machine) restart(c Config) {
	c.Node, c.Preflight = "node-a", func() string { return "" }
	if c.Default.Devices == nil {
		c.Default = v1alpha1.CachePoolSpec{Devices: []string{filepath.Join(m.dir, "*")}, Redundancy: v1alpha1.RedundancyNone}
	}
	m.Manager = NewManager(c, m.disks, m.api, func() (int64, error) { return 0, nil })
}

func (m *machine) reconcile(t *testing.T) *v1alpha1.CachePool {
	t.Helper()
	if err := m.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	obj := &v1alpha1.CachePool{}
	if err := m.api.Get(t.Context(), client.ObjectKey{Name: "node-a"}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// TestForeignPool: a machine that was installed anew under another name has the SSDs of the
// node that it was. They are not taken, and the pool says whose they are; what the operator has
// made blank is.
func TestForeignPool(t *testing.T) {
	m := newMachine(t, "ssd1", "ssd2")
	foreign := VolumeGroup("node-of-before")
	for _, ssd := range []string{"ssd1", "ssd2"} {
		m.of[filepath.Join(m.dir, ssd)] = foreign
	}
	for range 3 {
		ready := meta.FindStatusCondition(m.reconcile(t).Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != "False" || ready.Reason != v1alpha1.ReasonDeviceNotBlank || !strings.Contains(ready.Message, foreign) || !strings.Contains(ready.Message, "prepare-ssds.md") {
			t.Fatalf("condition %+v, want it to name volume group %s", ready, foreign)
		}
		m.restart(Config{})
	}
	if len(m.taken) > 0 {
		t.Fatalf("took %v", m.taken)
	}
	delete(m.of, filepath.Join(m.dir, "ssd2")) // the operator's word: vgremove, wipefs
	if pool := m.reconcile(t); !meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionReady) || !slices.Equal(m.taken, []string{"ssd2"}) {
		t.Errorf("took %v, conditions %+v", m.taken, pool.Status.Conditions)
	}
}

// TestBlankAtEachBoot: the SSDs of a cloud's machine are blank whenever it was stopped. They
// make the pool again.
func TestBlankAtEachBoot(t *testing.T) {
	m := newMachine(t, "ssd1", "ssd2")
	for range 3 {
		m.taken = nil
		clear(m.of)
		m.restart(Config{})
		if pool := m.reconcile(t); !meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionReady) || !slices.Equal(m.taken, []string{"ssd1", "ssd2"}) {
			t.Fatalf("took %v, conditions %+v", m.taken, pool.Status.Conditions)
		}
	}
}

// TestNamespaceShare: the share that counts is that of the object, be it the plugin's, which has what
// the flags say, or an administrator's.
func TestNamespaceShare(t *testing.T) {
	m := newMachine(t, "ssd")
	flags := Config{Default: v1alpha1.CachePoolSpec{Devices: []string{filepath.Join(m.dir, "*")}, Redundancy: v1alpha1.RedundancyNone, NamespaceSharePercent: 25}}
	m.restart(flags)
	if pool := m.reconcile(t); pool.Spec.NamespaceSharePercent != 25 || m.View().NamespaceSharePercent != 25 {
		t.Errorf("the object has %d%%, the view %d%%, want 25%%", pool.Spec.NamespaceSharePercent, m.View().NamespaceSharePercent)
	}
	flags.Default.NamespaceSharePercent = 10
	m.restart(flags)
	pool := m.reconcile(t)
	if pool.Spec.NamespaceSharePercent != 10 || m.View().NamespaceSharePercent != 10 {
		t.Errorf("the object has %d%%, the view %d%%, want 10%%", pool.Spec.NamespaceSharePercent, m.View().NamespaceSharePercent)
	}
	pool.Labels, pool.Spec.NamespaceSharePercent = nil, 0
	if err := m.api.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if m.reconcile(t); m.View().NamespaceSharePercent != 0 {
		t.Errorf("the view has %d%%, want no share, as the administrator says", m.View().NamespaceSharePercent)
	}
}

// TestChosenDevices: as long as the node's labels are not known, no device is taken; then those
// that they choose.
func TestChosenDevices(t *testing.T) {
	m := newMachine(t, "fast", "system")
	errUnknown := errors.New("not yet")
	known := map[string]string(nil)
	flags := Config{
		Choices: []Choice{{NodeSelector: map[string]string{"kind": "large"}, Devices: []string{filepath.Join(m.dir, "fast")}}},
		Labels: func(context.Context) (map[string]string, error) {
			if known == nil {
				return nil, errUnknown
			}
			return known, nil
		},
	}
	m.restart(flags)
	if err := m.Reconcile(t.Context()); !errors.Is(err, errUnknown) {
		t.Errorf("reconciled without labels: %v", err)
	}
	if len(m.taken) > 0 {
		t.Fatalf("took %v before the labels were known", m.taken)
	}
	known = map[string]string{"kind": "large"}
	pool := m.reconcile(t)
	if !slices.Equal(m.taken, []string{"fast"}) || !slices.Equal(pool.Spec.Devices, flags.Choices[0].Devices) {
		t.Errorf("took %v, spec %+v", m.taken, pool.Spec)
	}
	// The labels may be away when the plugin starts again: the pool that there is goes on. On
	// another machine of the name there is none, and none is made.
	known = nil
	for _, ready := range []bool{true, false} {
		m.restart(flags)
		if err := m.Reconcile(t.Context()); !errors.Is(err, errUnknown) {
			t.Errorf("reconciled without labels: %v", err)
		}
		if m.View().Ready != ready || len(m.taken) != 1 {
			t.Errorf("view %+v, took %v; want it ready: %v", m.View(), m.taken, ready)
		}
		clear(m.of)
	}
}
