package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/lvm/lvmtest"
	"github.com/nearflash/nearflash/pkg/volume"
)

var errKilled = errors.New("killed")

// leaver is a node of two SSDs, ssd1 and ssd2, with LVM in memory, whose plugin is killed behind so
// many changes of LVM.
type leaver struct {
	*Manager
	t     *testing.T
	lvm   *lvmtest.LVM
	dir   string
	state string
	api   client.Client
	had   *had
	told  *events.FakeRecorder
	kills int
}

func newLeaver(t *testing.T) *leaver {
	t.Helper()
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	m := blockdevtest.New()
	l := &leaver{t: t, lvm: lvmtest.New(m), dir: t.TempDir(), state: t.TempDir(), had: &had{}, told: events.NewFakeRecorder(10), kills: -1}
	for i, name := range []string{"ssd1", "ssd2"} {
		if err := os.WriteFile(l.path(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		m.Add(fmt.Sprint("8:", i), l.path(name), blockdevtest.NewDisk(64<<20))
	}
	l.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.CachePool{}).Build()
	l.restart(nil)
	return l
}

func (l *leaver) path(name string) string { return filepath.Join(l.dir, name) }

// restart starts another plugin, which is to have these SSDs out of the pool.
func (l *leaver) restart(evacuate []string) {
	spec := v1alpha1.CachePoolSpec{Devices: []string{l.path("*")}, Redundancy: v1alpha1.RedundancyNone}
	for _, name := range evacuate {
		spec.Evacuate = append(spec.Evacuate, l.path(name))
	}
	c := Config{Node: "node-a", StateDir: l.state, Default: spec, Preflight: func() string { return "" }, Events: l.told}
	l.Manager = NewManager(c, killable{l.lvm.Client(nil), l}, l.api, func() (int64, error) { return 0, nil })
	l.Serve(l.had)
}

// killable is LVM whose caller dies behind some changes: what comes after does not happen.
type killable struct {
	lvm.Client
	l *leaver
}

func (k killable) dies(change func() error) error {
	if k.l.kills == 0 {
		return errKilled
	}
	k.l.kills--
	return change()
}

func (k killable) ReduceVG(c context.Context, name, device string) error {
	return k.dies(func() error { return k.Client.ReduceVG(c, name, device) })
}

func (k killable) RemoveVG(c context.Context, name string) error {
	return k.dies(func() error { return k.Client.RemoveVG(c, name) })
}

func (k killable) RemovePV(c context.Context, device string) error {
	return k.dies(func() error { return k.Client.RemovePV(c, device) })
}

// pass is one reconciliation, and what the object says after it.
func (l *leaver) pass() *v1alpha1.CachePool {
	l.t.Helper()
	if err := l.Reconcile(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	obj := &v1alpha1.CachePool{}
	if err := l.api.Get(l.t.Context(), client.ObjectKey{Name: "node-a"}, obj); err != nil {
		l.t.Fatal(err)
	}
	return obj
}

// said is what the object says of an SSD that is to be out.
func (l *leaver) said(obj *v1alpha1.CachePool, name string) v1alpha1.DeviceEvacuation {
	l.t.Helper()
	for _, d := range obj.Status.Devices {
		if d.Path == l.path(name) && d.Evacuation != nil {
			return *d.Evacuation
		}
	}
	l.t.Fatalf("%s is not said to leave: %+v", name, obj.Status.Devices)
	return v1alpha1.DeviceEvacuation{}
}

// groups are the volume groups of the SSDs, "none" for a label without one and "blank" without a label.
func (l *leaver) groups() string {
	l.t.Helper()
	var out []string
	for _, name := range []string{"ssd1", "ssd2"} {
		pvs, err := l.lvm.Client(nil).PVs(l.t.Context(), []string{l.path(name)})
		switch {
		case err != nil:
			l.t.Fatal(err)
		case len(pvs) == 0:
			out = append(out, "blank")
		case pvs[0].VG == "":
			out = append(out, "none")
		default:
			out = append(out, "pool")
		}
	}
	return strings.Join(out, " ")
}

func (l *leaver) fill(name string) (free func()) {
	l.t.Helper()
	c := l.lvm.Client(nil)
	c.SetDevices([]string{l.path("ssd1"), l.path("ssd2")})
	vg := VolumeGroup("node-a")
	if err := c.CreateLV(l.t.Context(), lvm.CreateSpec{VG: vg, Name: "v.data", SizeBytes: 8 << 20, Devices: []string{l.path(name)}}); err != nil {
		l.t.Fatal(err)
	}
	return func() {
		if err := c.RemoveLVs(l.t.Context(), vg, "v.data"); err != nil {
			l.t.Fatal(err)
		}
	}
}

// TestEvacuate: a device is out of the pool, and blank, when nothing lies on it any more, and not
// before. It does not count meanwhile, and says what it waits for. It is put in when it is named no
// more.
func TestEvacuate(t *testing.T) {
	l := newLeaver(t)
	whole := l.pass().Status.Capacity.Value()
	free := l.fill("ssd1")
	l.restart([]string{"ssd1"})
	l.had.left = []volume.LeftCache{{Name: "v", Why: "the volume is being attached", Waits: true}}
	for range 3 {
		obj := l.pass()
		e := l.said(obj, "ssd1")
		if e.State != v1alpha1.EvacuationWaiting || e.BytesLeft == nil || *e.BytesLeft != 8<<20 || e.Message != "v: the volume is being attached" {
			t.Fatalf("evacuation %+v", e)
		}
		if got := obj.Status.Capacity.Value(); got != whole/2 || obj.Status.Free.Value() != whole/2 || l.View().CapacityBytes != whole/2 {
			t.Errorf("capacity %d, free %d, of %d", got, obj.Status.Free.Value(), whole)
		}
		if v := l.View(); !slices.Equal(v.Leaving, []string{l.path("ssd1")}) || !slices.Equal(v.Staying(), []string{l.path("ssd2")}) || v.Stripes != 1 {
			t.Errorf("view %+v", v)
		}
	}
	free()
	if e := l.said(l.pass(), "ssd1"); e.State != v1alpha1.EvacuationEvacuated || e.BytesLeft != nil {
		t.Errorf("evacuation %+v", e)
	}
	if got := l.groups(); got != "blank pool" {
		t.Errorf("the SSDs are %s", got)
	}
	if event := <-l.told.Events; !strings.Contains(event, "Normal Evacuated Device "+l.path("ssd1")) {
		t.Errorf("event %q", event)
	}
	for range 2 {
		obj := l.pass()
		if e := l.said(obj, "ssd1"); e.State != v1alpha1.EvacuationEvacuated || l.groups() != "blank pool" || !strings.Contains(obj.Status.Devices[0].Message, "spec.evacuate") {
			t.Errorf("evacuation %+v, the SSDs are %s, %+v", e, l.groups(), obj.Status.Devices)
		}
	}
	l.restart(nil)
	if obj := l.pass(); l.groups() != "pool pool" || obj.Status.Capacity.Value() != whole || obj.Status.Devices[0].Evacuation != nil {
		t.Errorf("the SSDs are %s, status %+v", l.groups(), obj.Status)
	}
}

// TestEvacuateKilled kills the plugin behind each change of LVM, with one device and with all: the next
// one leads on. If the device is named no more, it is put in again.
func TestEvacuateKilled(t *testing.T) {
	for _, evacuate := range [][]string{{"ssd1"}, {"ssd1", "ssd2"}} {
		for kills := range 4 {
			for _, back := range []bool{false, true} {
				t.Run(fmt.Sprint(evacuate, kills, back), func(t *testing.T) {
					l := newLeaver(t)
					l.pass()
					l.restart(evacuate)
					l.kills = kills
					for range 2 {
						l.pass()
					}
					l.kills = -1
					next, want := evacuate, map[int]string{1: "blank pool", 2: "blank blank"}[len(evacuate)]
					if back {
						next, want = nil, "pool pool"
					}
					l.restart(next)
					for range 3 {
						l.pass()
					}
					if got := l.groups(); got != want {
						t.Errorf("the SSDs are %s, want %s", got, want)
					}
					if ready := l.View().Ready; ready == (want == "blank blank") {
						t.Errorf("the pool is ready: %t", ready)
					}
				})
			}
		}
	}
}

// TestEvacuateForeignLabel: a label without a group that nobody noted may be anybody's. It stays.
func TestEvacuateForeignLabel(t *testing.T) {
	l := newLeaver(t)
	l.pass()
	l.restart([]string{"ssd1"})
	l.kills = 1
	for range 2 {
		l.pass()
	}
	l.kills = -1
	if got := l.groups(); got != "none pool" {
		t.Fatalf("the SSDs are %s", got)
	}
	l.state = t.TempDir() // the node's disk was lost
	l.restart([]string{"ssd1"})
	for range 2 {
		if obj := l.pass(); l.groups() != "none pool" || !strings.Contains(obj.Status.Devices[0].Message, "physical volume") {
			t.Errorf("the SSDs are %s, %+v", l.groups(), obj.Status.Devices)
		}
	}
}

// TestEvacuateUnknown: while the API server is away, nothing is taken out; after a restart nothing
// leaves.
func TestEvacuateUnknown(t *testing.T) {
	l := newLeaver(t)
	l.pass()
	l.restart([]string{"ssd1"})
	api := l.Manager.api
	l.Manager.api = failing{api}
	for range 2 {
		if err := l.Reconcile(t.Context()); err == nil || len(l.View().Leaving) > 0 || !l.View().Ready || l.View().Stripes != 2 {
			t.Fatalf("%v, view %+v", err, l.View())
		}
	}
	l.Manager.api = api
	l.pass()
	l.Manager.api = failing{api}
	for range 2 {
		if err := l.Reconcile(t.Context()); err == nil || len(l.View().Leaving) != 1 || l.groups() != "pool pool" {
			t.Fatalf("%v, view %+v, %s", err, l.View(), l.groups())
		}
	}
	l.Manager.api = api
	if obj := l.pass(); l.groups() != "blank pool" || !meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("the SSDs are %s", l.groups())
	}
}

// failing is an API server that cannot be reached.
type failing struct{ client.Client }

func (failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no answer")
}

// TestEvacuationOf: what waits is named first, and a device on which anything moves is not said to wait.
func TestEvacuationOf(t *testing.T) {
	waits, goes := volume.LeftCache{Name: "a", Why: "waits", Waits: true}, volume.LeftCache{Name: "b", Why: "goes"}
	if state, message := evacuationOf([]volume.LeftCache{goes, waits}); state != v1alpha1.EvacuationEvacuating || message != "a: waits; b: goes" {
		t.Errorf("%s: %s", state, message)
	}
	if state, message := evacuationOf([]volume.LeftCache{waits}); state != v1alpha1.EvacuationWaiting || message != "a: waits" {
		t.Errorf("%s: %s", state, message)
	}
	if _, message := evacuationOf(slices.Repeat([]volume.LeftCache{waits}, 200)); len(message) != maxMessage || !strings.HasSuffix(message, "(200 in all)") {
		t.Errorf("%d characters: %s", len(message), message)
	}
}
