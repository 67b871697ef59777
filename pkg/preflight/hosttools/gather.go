package hosttools

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// Host looks at the tools of the host.
type Host struct {
	Run hostexec.Runner
	// Proc is procfs of the host's PID namespace, by whose first process the host's files are
	// reached; /proc outside tests.
	Proc string
	// Multipathd asks multipathd for its configuration; for tests, nil asks the host's.
	Multipathd func(context.Context) (string, error)
}

// Look gathers and judges; see [Facts.Problems] and [Facts.Note].
func (h Host) Look(ctx context.Context) (note string, problems error) {
	f, err := h.gather(ctx)
	if err != nil {
		return "", fmt.Errorf("the host's tools cannot be looked at: %w; remedy: a privileged container with hostPID: true", err)
	}
	return f.Note(), f.Problems()
}

func (h Host) gather(ctx context.Context) (f Facts, err error) {
	root, err := os.OpenRoot(h.root())
	if err != nil {
		return f, err
	}
	defer func() { _ = root.Close() }()
	_, err = root.Lstat("run/udev/control")
	f.Udev = err == nil
	if f.Rules, err = rules(root); err != nil {
		return f, err
	}
	f.Multipath = h.multipath(ctx)
	tool := has(root, "lvm")
	if tool || f.Udev { // nobody else shows LVM anything
		f.LVM = h.lvm(ctx, root)
		f.LVM.Tool = tool
	}
	f.MD = md(root)
	return f, nil
}

// has reports whether the host has a program of an administrator.
func has(root *os.Root, name string) bool {
	for _, dir := range []string{"usr/sbin", "sbin", "usr/bin", "bin", "usr/local/sbin"} {
		if _, err := root.Lstat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// md reads the configuration of the host's mdadm, in the place of either kind of distribution.
func md(root *os.Root) (f MDFacts) {
	if f.Tool = has(root, "mdadm"); !f.Tool {
		return f
	}
	for _, name := range []string{"etc/mdadm/mdadm.conf", "etc/mdadm.conf"} {
		if text, err := root.ReadFile(name); err == nil {
			f.Config += string(text)
		}
	}
	return f
}

// root is the host's root directory.
func (h Host) root() string { return filepath.Join(h.Proc, "1/root") }

// ruleDirs are where udev reads rules (udev(7)). Of files with one name the first is in force.
var ruleDirs = []string{"etc/udev/rules.d", "run/udev/rules.d", "usr/local/lib/udev/rules.d", "usr/lib/udev/rules.d", "lib/udev/rules.d"}

// rules reads the rules that are in force. A link to /dev/null takes a file out of force, and
// leads out of the host's root for whoever reads it from elsewhere: such a file is empty here.
func rules(root *os.Root) (map[string]string, error) {
	out := map[string]string{}
	for _, dir := range ruleDirs {
		d, err := root.Open(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		entries, err := d.ReadDir(-1)
		if err = errors.Join(err, d.Close()); err != nil {
			return nil, err
		}
		for _, e := range entries {
			if _, known := out[e.Name()]; known || filepath.Ext(e.Name()) != ".rules" {
				continue
			}
			text, _ := root.ReadFile(filepath.Join(dir, e.Name())) // what cannot be read says nothing
			out[e.Name()] = string(text)
		}
	}
	return out, nil
}

// multipath asks multipathd only if it runs: systemd would start it for whoever connects.
func (h Host) multipath(ctx context.Context) (m MultipathFacts) {
	comms, _ := filepath.Glob(filepath.Join(h.Proc, "[0-9]*/comm"))
	for _, file := range comms {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == "multipathd" {
			m.Runs = true
			break
		}
	}
	if !m.Runs {
		return m
	}
	ask := h.Multipathd
	if ask == nil {
		ask = func(ctx context.Context) (string, error) { return askMultipathd(ctx, multipathdSocket) }
	}
	m.Config, m.Err = ask(ctx)
	return m
}

const (
	// multipathdSocket is where multipathd listens, in the abstract namespace of the host's
	// network namespace (multipath-tools, libmpathcmd/mpath_cmd.h).
	multipathdSocket = "@/org/kernel/linux/storage/multipathd"
	// maxConfig bounds its answer. With the table of all known arrays it is 60 KB.
	maxConfig = 4 << 20
	// askTimeout is how long it may take.
	askTimeout = 10 * time.Second
)

// askMultipathd has multipathd show its configuration. Request and answer are strings that end
// with a zero, after their length with it, in the machine's own order of bytes.
func askMultipathd(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return "", err
		}
	}
	const request = "show config\x00"
	if _, err := conn.Write(append(binary.NativeEndian.AppendUint64(nil, uint64(len(request))), request...)); err != nil {
		return "", err
	}
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return "", fmt.Errorf("multipathd's answer: %w", err)
	}
	size := binary.NativeEndian.Uint64(head[:])
	if size > maxConfig {
		return "", fmt.Errorf("multipathd's answer has %d bytes, accepted are %d", size, maxConfig)
	}
	answer := make([]byte, size)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return "", fmt.Errorf("multipathd's answer: %w", err)
	}
	return strings.TrimRight(string(answer), "\x00"), nil
}

// lvm asks the image's own lvmconfig about the host's files; it changes nothing.
func (h Host) lvm(ctx context.Context, root *os.Root) (f LVMFacts) {
	if _, err := root.Stat("etc/lvm"); err != nil {
		f.Err = err
		return f
	}
	ask := func(args ...string) (string, error) {
		cmd := hostexec.Query("lvm", append([]string{"lvmconfig"}, args...)...)
		cmd.Env = []string{"LVM_SYSTEM_DIR=" + filepath.Join(h.root(), "etc/lvm")}
		res, err := h.Run.Run(ctx, cmd)
		return string(res.Stdout), err
	}
	f.Config, f.Err = ask("--type", "full", "devices/filter", "devices/global_filter", "global/event_activation")
	if text, err := ask("devices/use_devicesfile"); err == nil { // it fails if no file has the setting
		f.UseDevicesFile = strings.TrimPrefix(strings.TrimSpace(text), "use_devicesfile=")
	}
	_, err := root.Stat("etc/lvm/devices/system.devices")
	f.DevicesFile = err == nil
	return f
}
