//go:build kernel

package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/mount"
	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/volume"
)

// examiner looks at the kernel as the node plugin does.
func examiner() preflight.Node {
	run := hostexec.New()
	return preflight.Node{Run: run, DM: devmapper.New(run), Sysfs: "/sys", InitiatorNameFile: "/etc/iscsi/initiatorname.iscsi"}
}

// TestKernelTargets: a kernel has what no test is skipped for, and does not have what
// some are; the plugin finds it good for everything, but for what that is needed for.
func TestKernelTargets(t *testing.T) {
	n := examiner()
	n.LoadModules(t.Context())
	for _, target := range guest.Targets() {
		_, err := n.Run.Run(t.Context(), hostexec.Command("modprobe", "dm-"+target))
		if has := err == nil; has == guest.Lacks(target) {
			t.Errorf("dm-%s on %q: there is %t (%v), lacking are %v", target, guest.Kernel(), has, err, guest.Lacking())
		}
	}
	found := n.Examine(t.Context())
	if found.Essential != nil || found.Cache != nil {
		t.Errorf("essential: %v\ncaches: %v", found.Essential, found.Cache)
	}
	if lacks := guest.Lacks("clone"); (found.WarmMove != nil) != lacks || lacks && !strings.Contains(found.WarmMove.Error(), "no target clone; remedy: load the module dm-clone on the node (CONFIG_DM_CLONE)") {
		t.Errorf("warm moves: %v", found.WarmMove)
	}
}

// possible leaves out the kinds of disasters that need what this kernel does not have.
func possible(kinds []string) []string {
	return slices.DeleteFunc(kinds, func(kind string) bool {
		without := kind == "SSD with bad sectors" && guest.Lacks("dust")
		if without {
			fmt.Printf("skipped on %s, which has no dm-dust: disasters of the kind %q\n", guest.Kernel(), kind)
		}
		return without
	})
}

// TestKernelSmoke: stage, crash, restart, unstage. The plugin is killed when the cache
// has just become active, then the node loses its power with writes that the storage
// server does not have, and its filesystem in use.
func TestKernelSmoke(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "smoke", 320*mib, cached(volume.ModeWriteback, 64*mib))
	d.req.FSType = "xfs"
	if !d.killAt("stage.activated", order{}) {
		t.Fatal("stage did not pass stage.activated")
	}
	mustPass(t, "repair", n.Repair(t.Context()))
	d.stage()
	d.wantReport(v1alpha1.ReasonCacheActive)
	file := filepath.Join(d.req.StagingPath, "data")
	mustPass(t, "create", os.WriteFile(file, make([]byte, 4*mib), 0o600))
	data := pattern(1, 4*mib)
	d.writeDirty(file, data)
	m.must("sync", "--file-system", file)

	s := stopping{m: m, n: n, name: nodeName, id: d.req.ID, sources: []volume.Source{d.req.Publication.Source}}
	s.cut()
	mustPass(t, "unmount", unix.Unmount(d.req.StagingPath, 0))
	s.vanish()
	n, err := openNode(t.Context(), n.dir, onOneSSD(), d.rec)
	mustPass(t, "restart", err)
	d.n = n
	// The volume is this node's still, which flushes what it has when it is staged again.
	mustPass(t, "repair", n.Repair(t.Context()))
	d.stage()
	check(t, file, data, 0)
	d.unstage()
	d.ask(mode(volume.ModeNone))
	d.stage()
	check(t, file, data, 0)
	d.unstage()
	d.remove()
}

// TestKernelOldXFS: a filesystem has no feature that Linux 5.15 does not know, which
// kernels before 6.10 would refuse to mount, and is mounted; and none is made at all if
// the file that says so is missing.
func TestKernelOldXFS(t *testing.T) {
	const features = "/usr/share/xfsprogs/mkfs/lts_5.15.conf"
	m := newMachine(t)
	m.must("wipefs", "--all", ssdTwo)
	host := mount.New(m.run)
	mustPass(t, "hide", os.Rename(features, features+".hidden"))
	err := host.Format(t.Context(), ssdTwo, "xfs")
	mustPass(t, "show", os.Rename(features+".hidden", features))
	if err == nil || !strings.Contains(err.Error(), features) {
		t.Errorf("format without %s: %v", features, err)
	}
	if c, err := host.Probe(t.Context(), ssdTwo); err != nil || c.Type != "" {
		t.Errorf("something was made without %s: %+v, %v", features, c, err)
	}
	mustPass(t, "format", host.Format(t.Context(), ssdTwo, "xfs"))
	head := aligned(4096)
	f := openDirect(t, ssdTwo)
	_, err = f.ReadAt(head, 0)
	mustPass(t, "superblock", errors.Join(err, f.Close()))
	// fs/xfs/libxfs/xfs_format.h: two fields of the superblock, and their bits up to
	// inobtcount and bigtime.
	const roCompat, incompat, known = 212, 216, 0x0f
	for _, at := range []int{roCompat, incompat} {
		if bits := binary.BigEndian.Uint32(head[at:]); bits == 0 || bits&^known != 0 {
			t.Errorf("features at %d of the superblock: %#x", at, bits)
		}
	}
	dir := filepath.Join(t.TempDir(), "xfs")
	mustPass(t, "mount", host.Mount(t.Context(), ssdTwo, dir, "xfs", nil))
	mustPass(t, "unmount", host.Unmount(t.Context(), dir))
}

// TestKernelMoveCold: where the kernel cannot do a warm move, a volume that moves has a
// cold cache, and its data (I6): after the plugin has said so, and if it believed that
// the kernel could.
func TestKernelMoveCold(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "cold", cached(volume.ModeWriteback, 64*mib))
	v.stage()
	data := v.warmUp(1)
	v.unstage()
	problem := "the kernel has no target clone"
	for _, says := range []string{problem, ""} {
		if says == "" && !guest.Lacks("clone") {
			break // it would be a warm move
		}
		v.b.WarmProblem = func(context.Context) string { return says }
		v.publishTo(v.b, otherName)
		v.stage()
		v.wantReport(v1alpha1.ReasonCacheActive)
		if e, err := v.b.Journal.Load(string(v.req.ID)); err != nil || e.Hydration != nil {
			t.Errorf("a hydration without a clone: %+v, %v", e.Hydration, err)
		}
		check(t, v.device(), data, 0)
		late := pattern(2, mib)
		write(t, v.device(), late, 3*mib, true)
		copy(data[3*mib:], late)
		v.unstage()
		v.publishTo(v.a, nodeName)
		v.a.WarmProblem = v.b.WarmProblem
		v.stage()
		check(t, v.device(), data, 0)
		v.unstage()
	}
	v.checkUncached(data)
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}
