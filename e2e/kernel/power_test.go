//go:build kernel

package kernel

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// stopping is a node that is about to stop uncleanly, as far as one volume is
// concerned.
type stopping struct {
	m    *machine
	n    *node
	name string
	id   volume.ID
	// sources are what the node has sessions with.
	sources []volume.Source
	// origin is another driver that the volume is over, or nil.
	origin *strictOrigin
}

// lvs are the logical volumes of the cache that the kernel has.
func (s stopping) lvs() []lvm.LV {
	s.m.t.Helper()
	all, err := s.n.raw.LVs(s.m.t.Context(), pool.VolumeGroup(s.name))
	mustPass(s.m.t, "logical volumes", err)
	var out []lvm.LV
	for _, lv := range all {
		if lv.Active && strings.HasPrefix(lv.Name, string(s.id)+".") {
			out = append(out, lv)
		}
	}
	return out
}

// dmName is the name by which device-mapper knows a logical volume.
func (m *machine) dmName(lv lvm.LV) string {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join("/sys/dev/block", lv.DevNo(), "dm/name"))
	mustPass(m.t, "name of "+lv.Name, err)
	return strings.TrimSpace(string(b))
}

// swap replaces the table of a device without a flush of anything.
func (m *machine) swap(device, table string) {
	m.t.Helper()
	m.must("dmsetup", "load", device, "--table", table)
	m.must("dmsetup", "resume", "--noflush", "--nolockfs", device)
}

// forgetful makes the SSD forget what is written to it from now on, which is what an
// SSD with a volatile write cache does when its power fails before the next flush.
// Nobody may be told of a flush, and nobody may read, until the power fails.
func (s stopping) forgetful() {
	s.m.t.Helper()
	for _, lv := range s.lvs() {
		name := s.m.dmName(lv)
		var table []string
		for line := range strings.Lines(s.m.must("dmsetup", "table", name)) {
			f := strings.Fields(line)
			if len(f) != 5 || f[2] != "linear" {
				s.m.t.Fatalf("logical volume %s is %q", lv.Name, line)
			}
			table = append(table, fmt.Sprintf("%s %s flakey %s %s 0 3600 1 drop_writes", f[0], f[1], f[3], f[4]))
		}
		s.m.swap(name, strings.Join(table, "\n"))
	}
}

// cut ends all I/O of the node at once.
func (s stopping) cut() {
	s.m.t.Helper()
	for _, lv := range s.lvs() {
		s.m.swap(s.m.dmName(lv), fmt.Sprintf("0 %d error", lv.SizeBytes/512))
	}
	origin := layout.Device(s.id, layout.Origin)
	if f := strings.Fields(s.m.must("dmsetup", "info", "--columns", "--noheadings", "--options", "name")); slices.Contains(f, origin) {
		sectors := strings.Fields(s.m.must("dmsetup", "table", origin))[1]
		s.m.swap(origin, "0 "+sectors+" error")
	}
}

// vanish takes away what only the stopped kernel had: devices, sessions, and the
// identity of its boot. Nobody has the volume open any more.
func (s stopping) vanish() {
	t := s.m.t
	t.Helper()
	ctx := t.Context()
	found, err := s.n.DM.Info(ctx, "nf-"+string(s.id))
	mustPass(t, "devices", err)
	for _, part := range []string{"", ".hot", ".hotdata", ".hotmeta", ".restmeta", ".data", ".source", ".path", ".origin"} {
		name := "nf-" + string(s.id) + part
		if _, ok := found[name]; !ok {
			continue
		}
		if part == ".data" {
			if _, waits := found[layout.Device(s.id, layout.Source)]; waits {
				s.m.try("dmsetup", "message", layout.Device(s.id, layout.Source), "0", "fail_if_no_path")
			}
		}
		mustPass(t, "remove "+name, s.n.DM.Remove(ctx, name))
	}
	mustPass(t, "rest", s.n.LVM.Rest(ctx, pool.VolumeGroup(s.name), layout.MetaLV(s.id), layout.DataLV(s.id)))
	for _, lv := range s.lvs() {
		s.m.must("lvchange", "--activate", "n", pool.VolumeGroup(s.name)+"/"+lv.Name)
	}
	for _, src := range s.sources {
		for _, p := range src.Portals {
			// The record of the session stays on the node's disk.
			s.m.try("iscsiadm", "--mode", "node", "--targetname", src.IQN, "--portal", p, "--logout")
		}
	}
	if s.origin != nil {
		mustPass(t, "stop of the node", s.origin.on[s.name].Reboot())
	}
	mustPass(t, "boot", os.WriteFile(bootFile(s.n.dir), []byte(rand.Text()), 0o600))
}
