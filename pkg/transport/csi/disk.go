package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

const sectorSize = 512

// disks reads what the kernel says of block devices.
type disks struct {
	sysfs, dev string
	stat       Stat
}

// disk is a block device.
type disk struct {
	// name is that in /dev, devno "major:minor".
	name, devno string
	// dir is the folder of the whole disk in sysfs.
	dir     string
	size    int64 // bytes
	logical int   // bytes
	product string
	// own is the identity that the disk has of itself, "" if it has none; identity is that,
	// or the one that stands for it.
	own, identity string
	// sequence is another one for each disk, also of the same number.
	sequence string
}

func (d disk) origin() transport.Origin {
	return transport.Origin{
		Paths: []string{"/dev/" + d.name}, DevNos: []string{d.devno}, Products: []string{d.product},
		SizeBytes: d.size, LogicalBlock: d.logical, WWID: d.identity,
	}
}

// devnoPattern is "major:minor", and namePattern a device's name in uevents, where some have
// a folder.
var (
	devnoPattern = regexp.MustCompile(`^[0-9]{1,10}:[0-9]{1,10}$`)
	namePattern  = regexp.MustCompile(`^[A-Za-z0-9_:.+-]+(/[A-Za-z0-9_:+-][A-Za-z0-9_:.+-]*)?$`)
)

// describe reads a device; substitute is the identity of one that has none. found is false if
// the kernel does not have it, as behind a device node whose disk was taken away.
func (k disks) describe(devno, substitute string) (d disk, found bool, err error) {
	if !devnoPattern.MatchString(devno) {
		return disk{}, false, fmt.Errorf("device number %q", devno)
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(k.sysfs, "dev/block", devno))
	if errors.Is(err, fs.ErrNotExist) {
		return disk{}, false, nil
	}
	if err != nil {
		return disk{}, false, err
	}
	d = disk{devno: devno, dir: dir}
	part, err := readAttr(dir, "partition")
	if err != nil {
		return disk{}, false, err
	}
	if part != "" {
		d.dir = filepath.Dir(dir)
	}
	if err := k.measure(&d, dir); err != nil {
		return disk{}, false, fmt.Errorf("device %s: %w", devno, err)
	}
	if err := identify(&d, part, substitute); err != nil {
		return disk{}, false, fmt.Errorf("device %s: %w", devno, err)
	}
	return d, true, nil
}

// measure reads name and sizes; dir is the folder of the disk or of its partition.
func (k disks) measure(d *disk, dir string) error {
	uevent, err := readAttr(dir, "uevent")
	if err != nil {
		return err
	}
	if d.name = deviceName(uevent); d.name == "" {
		return errors.New("the kernel names no device node")
	}
	// The path is opened later: it must not be another's by then.
	node, block, err := k.stat(filepath.Join(k.dev, d.name))
	if err != nil {
		return err
	}
	if !block || node != d.devno {
		return fmt.Errorf("%w: /dev/%s is %q", transport.ErrMismatch, d.name, node)
	}
	size, err := readAttr(dir, "size")
	if err != nil {
		return err
	}
	sectors, err := strconv.ParseInt(size, 10, 64)
	if err != nil || sectors <= 0 || sectors > math.MaxInt64/sectorSize {
		return fmt.Errorf("%w: a size of %q sectors", transport.ErrNoLUN, size)
	}
	block512, err := readAttr(d.dir, "queue/logical_block_size")
	if err != nil {
		return err
	}
	d.size = sectors * sectorSize
	d.logical, err = strconv.Atoi(block512)
	if err != nil || d.logical < sectorSize || d.logical&(d.logical-1) != 0 {
		return fmt.Errorf("a logical block size of %q", block512)
	}
	return nil
}

// deviceName is the DEVNAME of a uevent, "" if there is none that makes sense.
func deviceName(uevent string) string {
	for line := range strings.Lines(uevent) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok && namePattern.MatchString(name) && !strings.HasPrefix(name, ".") {
			return name
		}
	}
	return ""
}

// identify reads who the disk is. SCSI disks and NVMe namespaces have an identity that the
// kernel shows as wwid. A virtio disk has a serial number, of which the kernel shows 20
// characters: two volumes may have the same, so that it only tells beside the volume's name.
// A disk without any is as good as its driver's word for it (vol.identity).
func identify(d *disk, part, substitute string) error {
	var err error
	for _, name := range []string{"wwid", "device/wwid"} {
		if d.own, err = readAttr(d.dir, name); err != nil {
			return err
		}
		if d.own != "" {
			break
		}
	}
	if d.own == "" {
		serial, err := readAttr(d.dir, "serial")
		if err != nil {
			return err
		}
		if serial != "" {
			d.own = serial + " " + substitute
		}
	}
	if d.own != "" && part != "" {
		d.own += "-part" + part
	}
	if d.identity = d.own; d.identity == "" {
		d.identity = substitute
	}
	if d.product, err = readAttr(d.dir, "device/model"); err != nil {
		return err
	}
	if _, ours := volume.LUNGeneration(d.product); ours {
		// The word of a nearflash-target, for a volume that is not this one.
		d.product = ""
	}
	d.sequence, err = sequence(d.dir)
	return err
}

// sequence is the number of the disk among all that the kernel has had: diskseq, which kernels
// before 5.15 have not, or the inode of its folder.
func sequence(dir string) (string, error) {
	seq, err := readAttr(dir, "diskseq")
	if err != nil {
		return "", err
	}
	if seq != "" {
		return "diskseq " + seq, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return fmt.Sprintf("inode %d", st.Ino), nil
}
