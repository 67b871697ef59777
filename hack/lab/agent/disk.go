package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/scsidisk"
)

// plugRule names a disk that is plugged in by its serial number, and its partitions, as Compute
// Engine's guest environment does, where it is one of SCSI.
const (
	plugRules = "/run/udev/rules.d/65-lab-disks.rules"
	plugRule  = `SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", KERNEL=="sd*", KERNELS=="tcm_loop_adapter_*", ENV{ID_SCSI_SERIAL}=="?*", SYMLINK+="disk/by-id/google-$env{ID_SCSI_SERIAL}"` + "\n" +
		`SUBSYSTEM=="block", ENV{DEVTYPE}=="partition", KERNEL=="sd*", KERNELS=="tcm_loop_adapter_*", ENV{ID_SCSI_SERIAL}=="?*", SYMLINK+="disk/by-id/google-$env{ID_SCSI_SERIAL}-part%n"` + "\n"
)

// sysBlock has a folder for each block device.
const sysBlock = "/sys/block"

// plugged describes the disk that was plugged in as a device of User-Mode Linux; found is false
// for one of the guest's own, which has no serial number: the kernel prints that as (null).
func plugged(sys, device string) (d scsidisk.Disk, found bool, err error) {
	serial, err := os.ReadFile(filepath.Join(sys, device, "serial"))
	if errors.Is(err, os.ErrNotExist) {
		return d, false, nil
	}
	readOnly, err2 := os.ReadFile(filepath.Join(sys, device, "ro"))
	if err := errors.Join(err, err2); err != nil {
		return d, false, fmt.Errorf("disk %s: %w", device, err)
	}
	d = scsidisk.Disk{Device: device, Serial: strings.TrimSpace(string(serial)), ReadOnly: strings.TrimSpace(string(readOnly)) == "1"}
	return d, d.Serial != "" && d.Serial != "(null)", nil
}

// addDisks makes what was plugged in before the guest booted disks of SCSI.
func addDisks(ctx context.Context) error {
	found, err := filepath.Glob(filepath.Join(sysBlock, "ubd*"))
	for _, dir := range found {
		err = errors.Join(err, changeDisk(ctx, agentapi.DiskAdd, filepath.Base(dir)))
	}
	return err
}

// disk is the agent as a command; the result is its exit status.
func disk(verb, device string) int {
	err := changeDisk(context.Background(), verb, device)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, scsidisk.ErrInUse):
		fmt.Fprintln(os.Stderr, "agent:", err)
		return agentapi.DiskInUse
	default:
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
}

// changeDisk adds or removes one disk. One call at a time does: that at the boot, and those for
// the host.
func changeDisk(ctx context.Context, verb, device string) error {
	lock, err := os.OpenFile("/run/lab-disks.lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("disk %s: %w", device, err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("disk %s: lock: %w", device, err)
	}
	d, found, err := plugged(sysBlock, device)
	if err != nil || !found {
		return err
	}
	if verb == agentapi.DiskRemove {
		return d.Remove()
	}
	if _, err := d.Add(ctx); err != nil {
		return err
	}
	// Whoever has plugged it in looks for its name.
	_, err = output(ctx, "udevadm", "settle", "--exit-if-exists=/dev/disk/by-id/google-"+d.Serial)
	return err
}
