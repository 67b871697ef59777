package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// commonModules are needed by every role. A kernel may have them built in.
var commonModules = []string{
	"configfs", "loop",
	"dm-mod", "dm-cache", "dm-cache-smq", "dm-clone", "dm-delay", "dm-flakey", "dm-dust",
	"dm-multipath", "dm-round-robin", "dm-raid", "raid1", "dm-thin-pool",
	"iscsi_tcp", "target_core_mod", "target_core_iblock", "iscsi_target_mod", "tcm_loop", "sd_mod",
}

// workerModules are needed by containers and their network.
var workerModules = []string{"overlay", "veth", "bridge", "br_netfilter"}

// setupCommon does what every role needs: modules, devices, configfs, cgroups.
func (g *guest) setupCommon(ctx context.Context) error {
	modules := commonModules
	if g.cfg.Role == plan.RoleWorker {
		modules = append(append([]string{}, modules...), workerModules...)
	}
	// A built-in feature has no module, so a failure proves nothing: whoever
	// needs a feature says so when it is missing.
	_, _ = output(ctx, append([]string{"modprobe", "--all", "--quiet"}, modules...)...)
	g.step("modules")
	if err := mountConfigfs(); err != nil {
		return err
	}
	for _, dir := range []string{"/run/lock/iscsi", "/run/lock/lvm", "/run/lvm"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("folder: %w", err)
		}
	}
	if err := g.startUdev(ctx); err != nil {
		return err
	}
	if err := addDisks(ctx); err != nil {
		return err
	}
	if err := enableControllers(); err != nil {
		return err
	}
	return completeCPUInfo()
}

// startUdev runs the device manager and lets it see what is there already.
func (g *guest) startUdev(ctx context.Context) error {
	if err := writeFile(plugRules, []byte(plugRule), 0o644); err != nil {
		return err
	}
	if _, err := output(ctx, "/usr/lib/systemd/systemd-udevd", "--daemon"); err != nil {
		return err
	}
	if _, err := output(ctx, "udevadm", "trigger", "--subsystem-match=block", "--subsystem-match=misc"); err != nil {
		return err
	}
	// It also asks the device manager whether it answers, and waits for that no longer
	// than it likes: too short where many guests boot at the same time.
	settle := []string{"udevadm", "settle", fmt.Sprintf("--timeout=%d", int(settleLimit.Seconds()))}
	var failure error
	err := waitFor(ctx, "the device manager", settleLimit, func() bool {
		_, failure = output(ctx, settle...)
		return failure == nil
	})
	if err != nil {
		return errors.Join(err, failure)
	}
	g.step("udev")
	return nil
}

// settleLimit is how long the devices that are there may take to be seen.
const settleLimit = 2 * time.Minute

// startISCSI names this host as an initiator and runs the initiator's daemon.
func (g *guest) startISCSI(ctx context.Context, initiator string) error {
	const file = "/etc/iscsi/initiatorname.iscsi"
	if err := writeFile(file, []byte("InitiatorName="+initiator+"\n"), 0o600); err != nil {
		return err
	}
	return g.sup.run(ctx, agentapi.Service{Name: "iscsid", Argv: []string{"iscsid", "-f"}})
}

func writeFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.WriteFile(path, content, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// blockSize returns the size of a block device in 512-byte sectors.
func blockSize(ctx context.Context, dev string) (int64, error) {
	out, err := output(ctx, "blockdev", "--getsz", dev)
	if err != nil {
		return 0, err
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", dev, err)
	}
	return sectors, nil
}

// exists tells whether a path is there.
func exists(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
}

// startLimit is how long a service may take until it is usable.
const startLimit = 60 * time.Second
