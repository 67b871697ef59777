package openiscsi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// Host finds open-iscsi on the host, for a container in the host's PID namespace. A nil Host is
// what is in the container itself.
type Host struct {
	// Proc is procfs of the host's PID namespace, /proc outside tests.
	Proc string
}

// Place is where open-iscsi is: a mount namespace. It has to be closed.
type Place struct {
	// dir is the folder of a process in procfs, which stays that process's whatever becomes of
	// its number; nil is this process.
	dir *os.File
	// mounts is that process's mount namespace.
	mounts *os.File
	// daemon is the program of iscsid, as its namespace names it; "" if none was found.
	daemon string
}

// Open finds the mount namespace of iscsid, or of the host's first process if no iscsid runs. Some
// systems run iscsid in a container of its own, which alone has its files (Talos).
func (h *Host) Open() (*Place, error) {
	if h == nil {
		return &Place{}, nil
	}
	p, err := h.daemonsPlace()
	if err != nil || p != nil {
		return p, err
	}
	return h.place("1")
}

// daemonsPlace is nil if no iscsid waits for orders, or none that can be trusted.
func (h *Host) daemonsPlace() (*Place, error) {
	first, err := readStatus(filepath.Join(h.Proc, "1"))
	if err != nil {
		return nil, fmt.Errorf("the host's first process: %w; remedy: hostPID: true in the pod", err)
	}
	listening, err := h.listening()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(h.Proc, "[0-9]*/comm"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(text)) != "iscsid" {
			continue
		}
		p, err := h.place(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue // it has ended
		}
		if p.has(listening) && h.trusted(p, first) {
			p.daemon, _ = os.Readlink(p.own("exe")) // the name is for people
			return p, nil
		}
		p.Close()
	}
	return nil, nil
}

// listening are the sockets at which an iscsid waits for orders in the host's network namespace, as
// the descriptors of processes name them (proc_net(5)).
func (h *Host) listening() (out []string, err error) {
	const accepts = "00010000" // the flag of a socket that listens
	text, err := os.ReadFile(filepath.Join(h.Proc, "1/net/unix"))
	if err != nil {
		return nil, fmt.Errorf("sockets of the host: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 8 && f[3] == accepts && f[7] == socket {
			out = append(out, "socket:["+f[6]+"]")
		}
	}
	return out, nil
}

// has reports whether the process has one of these sockets. One that has just begun, or that another
// one keeps from its socket, is not the daemon.
func (p *Place) has(sockets []string) bool {
	fds, _ := os.ReadDir(p.own("fd")) // none, if it has ended
	return slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
		link, err := os.Readlink(p.own("fd/" + fd.Name()))
		return err == nil && slices.Contains(sockets, link)
	})
}

// trusted: any pod may call a process iscsid. Programs are run with all rights from the files of
// one only that has these rights itself: those of the host's first process, in its user namespace,
// but for what Talos gives to nobody.
func (h *Host) trusted(p *Place, first status) bool {
	const neverGiven = 1<<unix.CAP_SYS_MODULE | 1<<unix.CAP_SYS_BOOT
	s, err := readStatus(p.own(""))
	if err != nil || s.name != "iscsid" || s.uid != 0 || (s.capabilities|neverGiven)&first.capabilities != first.capabilities {
		return false
	}
	users, err := os.Readlink(filepath.Join(h.Proc, "1/ns/user"))
	if err != nil {
		return false
	}
	theirs, err := os.Readlink(p.own("ns/user"))
	return err == nil && theirs == users
}

// place opens what is needed of a process.
func (h *Host) place(pid string) (*Place, error) {
	dir, err := os.Open(filepath.Join(h.Proc, pid))
	if err != nil {
		return nil, err
	}
	p := &Place{dir: dir}
	if p.mounts, err = os.Open(p.own("ns/mnt")); err != nil {
		p.Close()
		return nil, fmt.Errorf("mount namespace of process %s: %w", pid, err)
	}
	return p, nil
}

// own is a file of the process in procfs. By the descriptor it is never that of another process.
func (p *Place) own(name string) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(p.dir.Fd())), name)
}

// Path is the name by which this process reaches a file of the place. Links within the place that
// begin with a slash are not followed there.
func (p *Place) Path(name string) string {
	if p.dir == nil {
		return name
	}
	return filepath.Join(p.own("root"), name)
}

// In is a command that is run in the place, whose programs are meant.
func (p *Place) In(cmd hostexec.Cmd) hostexec.Cmd {
	cmd.Mounts = p.mounts
	return cmd
}

// Daemon is the program of the iscsid that runs, "" if it is not known, and whether it was replaced
// on the disk since.
func (p *Place) Daemon() (program string, replaced bool) {
	return strings.CutSuffix(p.daemon, " (deleted)")
}

// Close gives the place back.
func (p *Place) Close() {
	for _, f := range []*os.File{p.dir, p.mounts} {
		if f != nil {
			_ = f.Close() // nothing was written
		}
	}
}

// status is what counts of proc_pid_status(5).
type status struct {
	name         string
	uid          int
	capabilities uint64
}

func readStatus(dir string) (s status, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return s, err
	}
	var uidErr, capErr error
	found := 0
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		switch key {
		case "Name":
			s.name = fields[0]
		case "Uid":
			s.uid, uidErr = strconv.Atoi(fields[min(1, len(fields)-1)]) // the effective one
		case "CapEff":
			s.capabilities, capErr = strconv.ParseUint(fields[0], 16, 64)
		default:
			continue
		}
		found++
	}
	if found < 3 {
		return s, fmt.Errorf("%s/status has not the lines that are needed", dir)
	}
	return s, errors.Join(uidErr, capErr)
}
