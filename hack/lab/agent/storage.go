package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// The storage server's disk, from below: the disk itself, a device-mapper
// device that makes it slow, a volume group, and a thin pool.
const (
	storageDisk = plan.SecondDisk
	slowName    = "slow"
	slowDevice  = "/dev/mapper/" + slowName
	storageVG   = plan.VolumeGroup
	thinPool    = plan.ThinPool
)

// lvmLocal makes LVM look at the slow device alone: the physical volume also
// shows on the disk below it, and what tenants write into their volumes is not
// the server's to read.
const lvmLocal = `devices {
	use_devicesfile = 0
	global_filter = [ "a|^` + slowDevice + `$|", "r|.*|" ]
}
`

// setupStorage makes the slow disk and, at the first boot, the pool on it.
func (g *guest) setupStorage(ctx context.Context) error {
	s := g.cfg.Storage
	if s == nil {
		return fmt.Errorf("configuration of %s has no storage part", g.cfg.Node)
	}
	if err := writeFile("/etc/lvm/lvmlocal.conf", []byte(lvmLocal), 0o644); err != nil {
		return err
	}
	for path, content := range s.Files {
		if err := writeFile(path, content, 0o600); err != nil {
			return err
		}
	}
	sectors, err := blockSize(ctx, storageDisk)
	if err != nil {
		return err
	}
	if _, err := output(ctx, "dmsetup", "create", slowName, "--table", slowTable(sectors, s.DelayMillis)); err != nil {
		return err
	}
	g.step("disk")
	made, err := hasVolumeGroup(ctx)
	if err != nil {
		return err
	}
	if made {
		// After a restart the pool is there and only needs to be activated.
		_, err = output(ctx, "vgchange", "--activate", "y", storageVG)
	} else {
		err = makePool(ctx)
	}
	if err != nil {
		return err
	}
	g.step("pool")
	return nil
}

// slowTable is a device-mapper table over the whole disk. The `delay` target
// takes the delay of reads and writes in milliseconds (dm-delay in the kernel's
// admin guide); without one it is `linear`.
func slowTable(sectors string, delayMillis int) string {
	if delayMillis == 0 {
		return strings.Join([]string{"0", sectors, "linear", storageDisk, "0"}, " ")
	}
	return strings.Join([]string{"0", sectors, "delay", storageDisk, "0", strconv.Itoa(delayMillis)}, " ")
}

func hasVolumeGroup(ctx context.Context) (bool, error) {
	out, err := output(ctx, "vgs", "--noheadings", "-o", "vg_name")
	if err != nil {
		return false, err
	}
	for name := range strings.FieldsSeq(out) {
		if name == storageVG {
			return true, nil
		}
	}
	return false, nil
}

func makePool(ctx context.Context) error {
	var errs []error
	for _, argv := range [][]string{
		{"pvcreate", "--yes", slowDevice},
		{"vgcreate", storageVG, slowDevice},
		// Room is left for the pool's spare metadata and for thick volumes.
		{"lvcreate", "--yes", "--type", "thin-pool", "--extents", "75%FREE", "--name", thinPool, storageVG},
	} {
		if _, err := output(ctx, argv...); err != nil {
			errs = append(errs, err)
			break
		}
	}
	return errors.Join(errs...)
}
