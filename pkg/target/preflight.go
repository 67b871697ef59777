package target

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target/lio"
)

// minLVM is the oldest LVM with --devices and the thin-pool "zero" column used.
const minLVM = "2.03.12"

// Host is what Preflight looks at; the zero value of Root is the real machine.
type Host lio.Host

// NewHost returns the machine the process runs on.
func NewHost(run hostexec.Runner) Host { return Host(lio.NewHost(run)) }

// Preflight makes sure that the machine can serve volumes: configfs, the kernel's
// target and its iSCSI fabric, LVM. It loads modules and mounts configfs if it
// can. The error joins everything that is missing, each with the remedy.
func (h Host) Preflight(ctx context.Context) error {
	return errors.Join(lio.Host(h).Prepare(ctx), h.lvm(ctx))
}

func (h Host) lvm(ctx context.Context) error {
	res, err := h.Run.Run(ctx, hostexec.Command("lvm", "version"))
	if errors.Is(err, hostexec.ErrNotInstalled) {
		return fmt.Errorf("LVM is missing: %w; remedy: install the package lvm2", err)
	}
	if err != nil {
		return fmt.Errorf("LVM cannot be used: %w; remedy: run as root with access to /dev", err)
	}
	version := lvmVersion(string(res.Stdout))
	if !atLeast(version, minLVM) {
		return fmt.Errorf("LVM %q is older than %s; remedy: install a newer lvm2", version, minLVM)
	}
	return nil
}

// lvmVersion finds "2.03.31" in "  LVM version:     2.03.31(2) (2025-02-27)".
func lvmVersion(out string) string {
	for _, line := range strings.Split(out, "\n") {
		if _, v, ok := strings.Cut(line, "LVM version:"); ok {
			v, _, _ = strings.Cut(strings.TrimSpace(v), "(")
			return v
		}
	}
	return ""
}

// atLeast compares versions of the form 2.03.31 by their numbers.
func atLeast(version, minimum string) bool {
	var have, want [3]int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &have[0], &have[1], &have[2]); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(minimum, "%d.%d.%d", &want[0], &want[1], &want[2]); err != nil {
		return false
	}
	for i := range have {
		if have[i] != want[i] {
			return have[i] > want[i]
		}
	}
	return true
}
