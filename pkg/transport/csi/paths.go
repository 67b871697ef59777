package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// dirMode is that of the directories kubelet makes for drivers.
const dirMode = 0o750

var (
	// driverPattern is a driver's name by the CSI specification (GetPluginInfo).
	driverPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$`)
	// pvPattern is a name of an object of Kubernetes (RFC 1123 subdomain). It becomes a part
	// of paths.
	pvPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
)

// uidSpace is the space of the UIDs that stand where kubelet has a pod's. RFC 9562 makes them
// of names (version 5), while the API server makes random ones (version 4): no pod has one.
var uidSpace = uuid.MustParse("8a2f6f0a-6c9b-5d0e-9d2b-3f5a1c7e4b60")

// vol is a volume of another driver, with its paths on this node.
type vol struct {
	source  *volume.CSISource
	staging string
	target  string
}

// volume checks a target.
func (t *Transport) volume(at transport.Target) (vol, error) {
	s := at.CSI
	switch {
	case s == nil:
		return vol{}, fmt.Errorf("%w: %s is no volume of a CSI driver", transport.ErrInvalid, at)
	case !driverPattern.MatchString(s.Driver):
		return vol{}, fmt.Errorf("%w: CSI driver %q", transport.ErrInvalid, s.Driver)
	case !pvPattern.MatchString(s.PV):
		return vol{}, fmt.Errorf("%w: PersistentVolume %q", transport.ErrInvalid, s.PV)
	case s.Handle == "" || !utf8.ValidString(s.Handle):
		return vol{}, fmt.Errorf("%w: volume handle %q", transport.ErrInvalid, s.Handle)
	case s.CapacityBytes < 0:
		return vol{}, fmt.Errorf("%w: a size of %d bytes", transport.ErrInvalid, s.CapacityBytes)
	}
	dir := filepath.Join(t.kubelet, "plugins/kubernetes.io/csi/volumeDevices")
	return vol{
		source:  s,
		staging: filepath.Join(dir, "staging", s.PV),
		target:  filepath.Join(dir, "publish", s.PV, uuid.NewSHA1(uidSpace, []byte(s.PV)).String()),
	}, nil
}

// String is for errors.
func (v vol) String() string { return v.source.String() }

func (v vol) publishDir() string { return filepath.Dir(v.target) }

// record is the file that tells of the last successful Connect.
func (v vol) record() string { return v.target + ".json" }

// identity stands for that of a disk which has none: of a loop device, an RBD image or an NBD
// the kernel knows no serial number. It is the same on every node and after each reboot, and
// another one for another volume; that it is the right device is the driver's word.
func (v vol) identity() string { return "csi:" + v.source.Driver + ":" + v.source.Handle }

// touched reports whether something may have been asked of the driver.
func (v vol) touched() (bool, error) {
	for _, dir := range []string{v.staging, v.publishDir()} {
		_, err := os.Lstat(dir)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

// removeTarget removes what a driver has left of the target. One that is mounted still does
// not go away: the error is that of rmdir or unlink, EBUSY.
func (v vol) removeTarget() error {
	if err := os.Remove(v.target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has unpublished the volume, and its target stays: %w", v.source.Driver, err)
	}
	return nil
}

// removeStaging removes the staging directory with what a driver has left in it, as kubelet
// does, and never goes into another file system: that would be somebody's data.
func (v vol) removeStaging() error {
	if err := removeTree(v.staging); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has unstaged the volume, and its staging directory stays: %w", v.source.Driver, err)
	}
	return nil
}

func removeTree(dir string) error {
	own, err := fileSystem(dir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		if inner, err := fileSystem(path); err != nil || inner != own {
			return errors.Join(err, fmt.Errorf("%s: %w: a file system is mounted there", path, unix.EBUSY))
		}
		if err := removeTree(path); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}

// fileSystem is the device of the file system that a directory is in.
func fileSystem(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return 0, &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	return st.Dev, nil
}

// statDevice is Stat by the kernel.
func statDevice(path string) (string, bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", false, nil
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), true, nil
}

// readAttr is an attribute of sysfs, "" for one that the kernel does not have. Any other
// failure is an error: an identity must not change because a file could not be read.
func readAttr(dir, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	// A SCSI disk without an identity (VPD page 0x83) answers that it has none (scsi_vpd_lun_id in
	// drivers/scsi/scsi_lib.c).
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}
