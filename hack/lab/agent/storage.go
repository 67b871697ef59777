package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// The storage server's disk, from below: the disk itself, a linear device-mapper
// device that a test can make fail or hang, a volume group, and a thin pool.
const (
	storageDisk = plan.SecondDisk
	arrayName   = "array"
	arrayDevice = "/dev/mapper/" + arrayName
	storageVG   = plan.VolumeGroup
	thinPool    = plan.ThinPool
)

// lvmLocal makes LVM look at the upper device alone: the physical volume also
// shows on the disk below it, and what tenants write into their volumes is not
// the server's to read. A crash while a block of the pool is given out leaves that block
// leaked, for which LVM would not activate the pool (docs/how-to/storage-server.md).
const lvmLocal = `devices {
	use_devicesfile = 0
	global_filter = [ "a|^` + arrayDevice + `$|", "r|.*|" ]
}
global {
	thin_check_options = [ "-q", "--auto-repair" ]
}
`

// setupStorage makes the disk and, at the first boot, the pool on it.
func (g *guest) setupStorage(ctx context.Context) error {
	s := g.cfg.Storage
	if s == nil {
		return fmt.Errorf("configuration of %s has no storage part", g.cfg.Node)
	}
	lvm := lvmLocal
	if s.Pair {
		lvm += lvmPair
	}
	if err := writeFile("/etc/lvm/lvmlocal.conf", []byte(lvm), 0o644); err != nil {
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
	table := fmt.Sprintf("0 %d linear %s 0", sectors, storageDisk)
	if _, err := output(ctx, "dmsetup", "create", arrayName, "--table", table); err != nil {
		return err
	}
	g.step("disk")
	if err := g.setupPool(ctx); err != nil {
		return err
	}
	g.step("pool")
	if s.Delay == 0 {
		return nil
	}
	_, _ = output(ctx, "modprobe", "--quiet", "sch_netem") // or built in
	return delayNetwork(s.Delay)
}

func (g *guest) setupPool(ctx context.Context) error {
	if g.cfg.Storage.Pair {
		return g.setupPair(ctx)
	}
	made, err := hasVolumeGroup(ctx)
	if err != nil {
		return err
	}
	if made {
		// After a restart the pool is there and only needs to be activated.
		return activatePool(ctx)
	}
	return makePool(ctx)
}

// activatePool activates the pool. LVM says of its metadata only that something is wrong with
// them: what their checker says of them tells whether the pool was damaged, or the checker
// could not read them. The latter passes.
func activatePool(ctx context.Context) error {
	const tries = 3
	var problems []error
	for range tries {
		_, err := output(ctx, "vgchange", "--activate", "y", storageVG)
		if err == nil {
			return nil
		}
		problems = append(problems, err, checkPool(ctx))
		_, _ = output(ctx, "udevadm", "settle")
	}
	return errors.Join(problems...)
}

func checkPool(ctx context.Context) error {
	meta := storageVG + "/" + thinPool + "_tmeta"
	if _, err := output(ctx, "lvchange", "--yes", "--activate", "y", meta); err != nil {
		return err
	}
	out, checked := output(ctx, "thin_check", "/dev/"+meta)
	_, err := output(ctx, "lvchange", "--activate", "n", meta)
	if checked == nil {
		checked = fmt.Errorf("thin_check finds nothing: %s", out)
	}
	return errors.Join(checked, err)
}

func hasVolumeGroup(ctx context.Context, options ...string) (bool, error) {
	out, err := output(ctx, append([]string{"vgs", "--noheadings", "-o", "vg_name"}, options...)...)
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
		{"pvcreate", "--yes", arrayDevice},
		{"vgcreate", storageVG, arrayDevice},
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
