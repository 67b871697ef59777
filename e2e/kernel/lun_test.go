//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
)

// Portals and initiators of a LUN that several nodes of this kernel use at a time: the
// transport tells sessions apart by their portals.
const (
	portalA, portalB, portalB2 = "127.0.1.1:3260", "127.0.1.2:3260", "127.0.1.3:3260"

	initiatorA = "iqn.2026-11.io.nearflash.test:node-a"
	initiatorB = "iqn.2026-11.io.nearflash.test:node-b"
)

// aptplDir is where the kernel's target keeps registrations.
const aptplDir = "/var/target/pr"

// lun is a LUN that nearflash-target knows nothing of, as an array would show it.
type lun struct {
	m                 *machine
	name, iqn, serial string
	groups            [][]string
}

// newLUN exports a logical volume. Each group of portals is a portal group of the target.
func (m *machine) newLUN(name string, size int64, groups ...[]string) *lun {
	m.t.Helper()
	l := &lun{m: m, name: name, iqn: "iqn.2026-11.com.example:" + name, serial: fmt.Sprintf("%x", name+"-of-the-test"), groups: groups}
	m.must("lvcreate", "--yes", "--type", "thin", "--thinpool", "pool", "--virtualsize", fmt.Sprintf("%db", size), "--name", name, storageVG)
	mustPass(m.t, "place for registrations", os.MkdirAll(aptplDir, 0o700))
	l.export("")
	m.t.Cleanup(l.remove)
	return l
}

// device is what the LUN's content is on.
func (l *lun) device() string { return "/dev/" + storageVG + "/" + l.name }

func (l *lun) core() string { return "/sys/kernel/config/target/core/iblock_7777/" + l.name }

func (l *lun) target() string { return "/sys/kernel/config/target/iscsi/" + l.iqn }

// export makes the target, with the registrations that an earlier one has had.
func (l *lun) export(registrations string) {
	l.m.t.Helper()
	script := fmt.Sprintf(`set -e
mkdir -p %[1]s
echo udev_path=%[2]s >%[1]s/control
echo %[3]s >%[1]s/wwn/vpd_unit_serial
echo 1 >%[1]s/enable
`, l.core(), l.device(), l.serial)
	for _, r := range strings.Fields(registrations) {
		script += fmt.Sprintf("printf %%s '%s' >%s/pr/res_aptpl_metadata\n", r, l.core())
	}
	for i, portals := range l.groups {
		script += fmt.Sprintf(`tpg=%s/tpgt_%d
mkdir -p $tpg/lun/lun_0
ln -s %s $tpg/lun/lun_0/unit
echo 0 >$tpg/attrib/authentication
`, l.target(), i+1, l.core())
		for _, p := range portals {
			script += "mkdir $tpg/np/" + p + "\n"
		}
		for _, who := range []string{initiatorA, initiatorB} {
			script += fmt.Sprintf("mkdir -p $tpg/acls/%[1]s/lun_0\nln -s $tpg/lun/lun_0 $tpg/acls/%[1]s/lun_0/unit\n", who)
		}
		script += "echo 1 >$tpg/enable\n"
	}
	l.m.must("sh", "-c", script)
}

// unexport ends the target with all that it knows.
func (l *lun) unexport() error {
	_, err := l.m.run.Run(context.Background(), hostexec.Command("sh", "-c", fmt.Sprintf(`set -e
for tpg in %[1]s/tpgt_*; do
  [ -d $tpg ] || continue
  echo 0 >$tpg/enable
  for acl in $tpg/acls/*/; do rm -f $acl/lun_0/unit; rmdir $acl/lun_0 $acl; done
  rm -f $tpg/lun/lun_0/unit
  rmdir $tpg/lun/lun_0 $tpg/np/* $tpg
done
[ ! -d %[1]s ] || rmdir %[1]s
[ ! -d %[2]s ] || rmdir %[2]s
[ ! -d %[3]s ] || rmdir %[3]s`, l.target(), l.core(), filepath.Dir(l.core()))))
	return err
}

func (l *lun) remove() {
	err := l.unexport()
	_, lv := l.m.run.Run(context.Background(), hostexec.Command("lvremove", "--yes", storageVG+"/"+l.name))
	state := os.Remove(filepath.Join(aptplDir, "aptpl_"+l.serial))
	if errors.Is(state, fs.ErrNotExist) {
		state = nil
	}
	if err := errors.Join(err, lv, state); err != nil {
		l.m.t.Errorf("remove the LUN: %v", err)
	}
}

// restart ends the target and makes it again. If it keeps its registrations, it has those
// that the kernel has saved: that is left to programs, of which the guest has none.
func (l *lun) restart(keep bool) {
	l.m.t.Helper()
	saved := ""
	if keep {
		b, err := os.ReadFile(filepath.Join(aptplDir, "aptpl_"+l.serial))
		mustPass(l.m.t, "saved registrations", err)
		for line := range strings.Lines(strings.TrimRight(string(b), "\x00")) {
			switch line = strings.TrimSpace(line); {
			case strings.HasPrefix(line, "PR_REG_START"):
				saved += " "
			case strings.HasPrefix(line, "PR_REG_END"):
			case strings.HasSuffix(saved, " ") || saved == "":
				saved += line
			default:
				saved += "," + line
			}
		}
		if strings.TrimSpace(saved) == "" {
			l.m.t.Fatalf("the target has saved no registration: %q", b)
		}
	}
	mustPass(l.m.t, "end the target", l.unexport())
	l.export(saved)
}

// support makes the LUN one with or without persistent reservations.
func (l *lun) support(on bool) {
	l.m.t.Helper()
	value := "0"
	if on {
		value = "1"
	}
	mustPass(l.m.t, "support of reservations", os.WriteFile(l.core()+"/attrib/emulate_pr", []byte(value), 0))
}

// initiatorAs is one with a name of its own.
func (m *machine) initiatorAs(name string) *iscsi.Initiator {
	return iscsi.New(m.run, iscsi.Config{InitiatorName: name})
}
