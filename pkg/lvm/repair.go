package lvm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// RepairCopies implements Client. The kernel is told as lvchange --syncaction does it, which refuses
// to while another device of the group is missing.
func (t *tools) RepairCopies(ctx context.Context, vg, name string) error {
	cmd := hostexec.Change(group, "dmsetup", "message", kernelName(vg, name), "0", SyncRepair)
	if _, err := t.run.Run(ctx, cmd); err != nil {
		return fmt.Errorf("compare the copies of logical volume %s/%s: %w", vg, name, ofMessage(err))
	}
	return nil
}

// kernelName is what LVM calls the device of a logical volume.
func kernelName(vg, name string) string {
	return strings.ReplaceAll(vg, "-", "--") + "-" + strings.ReplaceAll(name, "-", "--")
}

// ofMessage gives an error of dmsetup message, which names that of the kernel, one of this package's
// sentinels.
func ofMessage(err error) error {
	var exit *hostexec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	switch text := string(exit.Stderr); {
	case strings.Contains(text, "No such device or address"):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case strings.Contains(text, "Device or resource busy"):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}
