//go:build kernel

package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// before says how a version before named devices, and what it wrote to the journal.
type before struct {
	format string
	name   func(now string) string
}

// lent is the version before this one, and dashed the one before that.
var (
	lent   = before{`"version":3`, func(now string) string { return strings.Replace(now, ".exported", ".lent", 1) }}
	dashed = before{`"version":2`, func(now string) string { return strings.Replace(lent.name(now), ".", "-", 1) }}
)

// earlier makes of a volume's devices, and of the nodes' journals, what a version before left.
// It returns the devices as they were.
func (d *disk) earlier(v before, nodes ...*node) map[string]devmapper.Info {
	t := d.m.t
	t.Helper()
	was, err := d.n.DM.Info(t.Context(), layout.DevicePrefix)
	mustPass(t, "devices", err)
	for _, now := range layout.Devices(d.req.ID)[1:] {
		if was[now].UUID != "" && v.name(now) != now {
			d.m.must("dmsetup", "rename", now, v.name(now), "--noudevsync")
		}
	}
	keys := strings.NewReplacer(`"version":6`, v.format, `"hydration":`, `"fill":`, `"exported":`, `"lent":`, `"exportedBytes":`, `"lentBytes":`, `"wwid":`, `"unitID":`)
	for _, n := range nodes {
		path := filepath.Join(n.dir, "journal", string(d.req.ID)+".json")
		text, err := os.ReadFile(path)
		mustPass(t, "journal", err)
		mustPass(t, "journal", os.WriteFile(path, []byte(keys.Replace(string(text))), 0o600))
	}
	return was
}

// wantNames compares the devices with what they were before the upgrade. Who has one open
// may have changed.
func (d *disk) wantNames(before map[string]devmapper.Info) {
	t := d.m.t
	t.Helper()
	after, err := d.n.DM.Info(t.Context(), layout.DevicePrefix)
	mustPass(t, "devices", err)
	if len(after) != len(before) {
		t.Errorf("devices %v, before %v", after, before)
	}
	for name, was := range before {
		is := after[name]
		is.OpenCount = was.OpenCount
		if is != was {
			t.Errorf("%s is %+v, was %+v", name, is, was)
		}
	}
}

// TestKernelUpgrade: devices of an earlier version are renamed below a pod that works, and
// the plugin changes, flushes and removes them.
func TestKernelUpgrade(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range []volume.CacheMode{volume.ModeNone, volume.ModeWriteback} {
		d := m.volume(n, "upgrade-"+string(mode), 128*mib, cached(mode, 32*mib))
		d.n, d.req.Block = n, true
		d.stage()
		l := startLoad(t, d.device(), 32*mib)
		l.moving()
		was := d.earlier(dashed, n)
		d.reopen()
		d.n.AdoptNames(t.Context())
		d.wantNames(was)
		d.stage()
		d.change()
		l.moving()
		if mode == volume.ModeWriteback {
			d.ask(cacheBytes(64 * mib))
			d.change()
			l.moving()
		}
		l.end()
		l.check(d.device())
		d.unstage()
		d.connected(func(origin string) { l.check(origin) })
		d.remove()
		n = d.n
	}
}

// TestKernelUpgradeMove: the same in the middle of a warm move, on both of its nodes. They
// share a kernel here, and each renames its own devices alone.
func TestKernelUpgradeMove(t *testing.T) {
	m := newMachine(t)
	upgradedMove(t, newMovers(t, m, "upgrade", cached(volume.ModeWriteback, 64*mib)), lent)
	if every() {
		upgradedMove(t, newMovers(t, m, "upgrade-far", cached(volume.ModeWriteback, 64*mib)), dashed)
	}
}

func upgradedMove(t *testing.T, v *movers, from before) {
	t.Helper()
	l := v.movedWarm()
	again := resumeLoad(l, v.device())
	again.moving()
	was := v.earlier(from, v.a, v.b)
	for _, part := range []layout.Part{layout.Data, layout.Origin, layout.Source, layout.Path, layout.Exported} {
		if was[layout.Device(v.req.ID, part)].UUID == "" {
			t.Errorf("the volume has no device %s", layout.Device(v.req.ID, part))
		}
	}
	a, b, err := openPair(t.Context(), v.a.dir, v.b.dir)
	mustPass(t, "nodes", err)
	v.a, v.b, v.n = a, b, b
	b.AdoptNames(t.Context())
	infos, err := b.DM.Info(t.Context(), layout.Device(v.req.ID, layout.Exported))
	mustPass(t, "devices", err)
	if len(infos) > 0 {
		t.Errorf("the destination has renamed what the source node exports: %v", infos)
	}
	a.AdoptNames(t.Context())
	v.wantNames(was)
	again.moving()
	v.wantHydrated()
	again.end()
	again.check(v.device())
	v.leaveChecked(again)
}
