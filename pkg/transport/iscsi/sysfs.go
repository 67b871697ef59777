package iscsi

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/transport"
)

const sectorSize = 512

// sysfs reads what the kernel's iSCSI transport class shows
// (drivers/scsi/scsi_transport_iscsi.c).
type sysfs struct{ root string }

// session is one session: name "session3", and its device below the host.
type session struct {
	name, device string
	host         string // "host2"
	state        string
	root         string
}

// lunDevice is one LUN of a session: a SCSI device that is a disk.
type lunDevice struct {
	dir   string
	block string // "sda"; "" while sd has not attached
	root  string
}

// session finds the session with a target through a portal.
func (s sysfs) session(iqn, portal string) (session, bool, error) {
	dirs, err := filepath.Glob(filepath.Join(s.root, "class/iscsi_session/session*"))
	if err != nil {
		return session{}, false, err
	}
	for _, dir := range dirs {
		if readLine(dir, "targetname") != iqn {
			continue
		}
		device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is going away
		}
		if err != nil {
			return session{}, false, err
		}
		if !s.usesPortal(filepath.Base(dir), portal) {
			continue
		}
		return session{
			name: filepath.Base(dir), device: device, host: filepath.Base(filepath.Dir(device)),
			state: readLine(dir, "state"), root: s.root,
		}, true, nil
	}
	return session{}, false, nil
}

// lost reports whether the kernel knows that the portal does not answer.
func (s session) lost() bool { return s.state == "FAILED" || s.state == "FREE" }

// usesPortal compares with the address that was asked for at login, which is
// not the one in use after a redirect. connection3:0 is of session3.
func (s sysfs) usesPortal(name, portal string) bool {
	conns, _ := filepath.Glob(filepath.Join(s.root, "class/iscsi_connection", "connection"+strings.TrimPrefix(name, "session")+":*"))
	return slices.ContainsFunc(conns, func(dir string) bool {
		host, port := readLine(dir, "persistent_address"), readLine(dir, "persistent_port")
		return net.JoinHostPort(strings.Trim(host, "[]"), port) == portal
	})
}

// lunDirs returns all SCSI devices of the session.
func (s session) lunDirs() ([]string, error) {
	return filepath.Glob(filepath.Join(s.device, "target*", "*:*:*:*"))
}

// lunDevice finds one LUN.
func (s session) lunDevice(lun int) (lunDevice, bool, error) {
	dirs, err := s.lunDirs()
	if err != nil {
		return lunDevice{}, false, err
	}
	for _, dir := range dirs {
		if !strings.HasSuffix(dir, ":"+strconv.Itoa(lun)) {
			continue
		}
		u := lunDevice{dir: dir, root: s.root}
		blocks, err := filepath.Glob(filepath.Join(dir, "block", "*"))
		if err != nil {
			return lunDevice{}, false, err
		}
		if len(blocks) > 0 {
			u.block = filepath.Base(blocks[0])
		}
		return u, true, nil
	}
	return lunDevice{}, false, nil
}

// scan asks the kernel for one LUN, synchronously. Channel and target are
// always 0 in software iSCSI.
func (s session) scan(lun int) error {
	path := filepath.Join(s.root, "class/scsi_host", s.host, "scan")
	return writeFile(path, fmt.Sprintf("0 0 %d", lun))
}

// ready reports whether the disk driver has the LUN and shows all of it: the
// kernel adds the disk's attributes one after the other.
func (u lunDevice) ready() bool {
	if u.block == "" {
		return false
	}
	for _, name := range []string{"dev", "size", "queue/logical_block_size"} {
		if readLine(filepath.Join(u.dir, "block", u.block), name) == "" {
			return false
		}
	}
	return true
}

// opens reports whether the disk can be opened. For a moment after it has shown
// everything in sysfs it cannot (device_add_disk in block/genhd.c).
func (u lunDevice) opens(dev string) bool {
	f, err := os.Open(filepath.Join(dev, u.block))
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil {
		_ = f.Close() // nothing was written
	}
	return true
}

func (u lunDevice) remove() error {
	err := writeFile(filepath.Join(u.dir, "delete"), "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (u lunDevice) rescan() error { return writeFile(filepath.Join(u.dir, "rescan"), "1") }

// lookup finds the paths of a target.
func (s sysfs) lookup(t transport.Target) (transport.Origin, bool, error) {
	var o transport.Origin
	for _, portal := range t.Portals {
		sess, up, err := s.session(t.IQN, portal)
		if err != nil {
			return transport.Origin{}, false, err
		}
		if !up {
			continue
		}
		u, found, err := sess.lunDevice(t.LUN)
		if err != nil {
			return transport.Origin{}, false, err
		}
		if !found || !u.ready() {
			continue
		}
		if err := addPath(&o, u); err != nil {
			return transport.Origin{}, false, fmt.Errorf("%s: %w", t, err)
		}
	}
	return o, len(o.Paths) > 0, nil
}

// addPath adds a path to an origin, or refuses one that leads elsewhere.
func addPath(o *transport.Origin, u lunDevice) error {
	block := filepath.Join(u.dir, "block", u.block)
	sectors, err := strconv.ParseInt(readLine(block, "size"), 10, 64)
	if err != nil {
		return fmt.Errorf("size of %s: %w", u.block, err)
	}
	logical, err := strconv.Atoi(readLine(block, "queue/logical_block_size"))
	if err != nil {
		return fmt.Errorf("logical block size of %s: %w", u.block, err)
	}
	wwid := readLine(u.dir, "wwid")
	if len(o.Paths) > 0 {
		if wwid == "" || wwid != o.WWID {
			return fmt.Errorf("%w: %s is %q, %s is %q", transport.ErrMismatch, o.Paths[0], o.WWID, u.block, wwid)
		}
		if sectors*sectorSize < o.SizeBytes {
			// While a resize is under way the paths differ; the smaller size is
			// the one that every path can serve.
			o.SizeBytes = sectors * sectorSize
		}
	} else {
		o.SizeBytes, o.LogicalBlock, o.WWID = sectors*sectorSize, logical, wwid
	}
	o.Paths = append(o.Paths, "/dev/"+u.block)
	o.DevNos = append(o.DevNos, readLine(block, "dev"))
	o.Products = append(o.Products, readLine(u.dir, "model"))
	return nil
}

// readLine returns the trimmed content of an attribute, "" if it cannot be read:
// attributes go away with their device at any moment.
func readLine(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// writeFile writes to an attribute that exists; it never makes a file.
func writeFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
