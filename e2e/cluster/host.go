package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// StorageMachine is the name of the lab's storage server.
const StorageMachine = "storage"

// Host runs shell scripts as root on the machines of a cluster.
type Host interface {
	// Run returns the standard output of the script; an error holds the end of
	// its standard error.
	Run(ctx context.Context, machine, script string) (string, error)
}

// ErrNoLab is returned for what only a lab can do.
var ErrNoLab = errors.New("this cluster is not a lab (NEARFLASH_LAB is not set: use `lab run`)")

// ErrNoStorage is returned when it is not known where the storage server runs.
var ErrNoStorage = errors.New("no storage server to look at (neither NEARFLASH_LAB nor NEARFLASH_STORAGE_CONTAINER is set)")

// Lab drives the lab program.
type Lab struct{ command []string }

// Run implements Host.
func (l *Lab) Run(ctx context.Context, machine, script string) (string, error) {
	return l.do(ctx, nil, "exec", machine, "--", "bash", "-c", script)
}

// RunInput is Run with standard input.
func (l *Lab) RunInput(ctx context.Context, machine, script string, stdin []byte) (string, error) {
	return l.do(ctx, stdin, "exec", machine, "--", "bash", "-c", script)
}

// Kill ends a machine at once and keeps its disks, like a loss of power.
func (l *Lab) Kill(ctx context.Context, machine string) error {
	_, err := l.do(ctx, nil, "kill", machine)
	return err
}

// Start boots a machine that was killed.
func (l *Lab) Start(ctx context.Context, machine string) error {
	_, err := l.do(ctx, nil, "start", machine)
	return err
}

// ReplaceTarget gives the storage server another program, and restarts it.
func (l *Lab) ReplaceTarget(ctx context.Context, program string) error {
	_, err := l.do(ctx, nil, "target", program)
	return err
}

// AddImage loads an archive of an image on the nodes.
func (l *Lab) AddImage(ctx context.Context, archive string) error {
	_, err := l.do(ctx, nil, "images", "add", archive)
	return err
}

// SaveMachine makes an image of the disks of a machine that was killed.
func (l *Lab) SaveMachine(ctx context.Context, machine, name string) error {
	_, err := l.do(ctx, nil, "machine", "save", machine, name)
	return err
}

// RestoreMachine gives a machine that was killed the disks of an image.
func (l *Lab) RestoreMachine(ctx context.Context, machine, name string) error {
	_, err := l.do(ctx, nil, "machine", "restore", machine, name)
	return err
}

// Cut drops everything between two machines.
func (l *Lab) Cut(ctx context.Context, a, b string) error {
	_, err := l.do(ctx, nil, "net", "cut", a, b)
	return err
}

// CutOneWay drops what goes from one machine to another.
func (l *Lab) CutOneWay(ctx context.Context, from, to string) error {
	_, err := l.do(ctx, nil, "net", "cut", from, to, "--one-way")
	return err
}

// KillControl kills programs of the control plane, or all of it.
func (l *Lab) KillControl(ctx context.Context, programs ...string) error {
	_, err := l.do(ctx, nil, append([]string{"control", "kill"}, programs...)...)
	return err
}

// StartControl starts what does not run of the control plane.
func (l *Lab) StartControl(ctx context.Context) error {
	_, err := l.do(ctx, nil, "control", "start")
	return err
}

// ReplaceControl kills a program of the control plane, and starts the one at a path instead; the lab's own
// without a path.
func (l *Lab) ReplaceControl(ctx context.Context, program string, path ...string) error {
	_, err := l.do(ctx, nil, append([]string{"control", "replace", program}, path...)...)
	return err
}

// SaveEtcd makes a backup of the cluster's objects.
func (l *Lab) SaveEtcd(ctx context.Context, name string) error {
	_, err := l.do(ctx, nil, "control", "save", name)
	return err
}

// RestoreEtcd restarts the control plane with the objects of a backup.
func (l *Lab) RestoreEtcd(ctx context.Context, name string) error {
	_, err := l.do(ctx, nil, "control", "restore", name)
	return err
}

// FreshControl starts a control plane that knows nothing, in the place of this one.
func (l *Lab) FreshControl(ctx context.Context) error {
	_, err := l.do(ctx, nil, "control", "fresh")
	return err
}

// KillOrigin kills processes of the origin, or all of its driver's controller.
func (l *Lab) KillOrigin(ctx context.Context, processes ...string) error {
	_, err := l.do(ctx, nil, append([]string{"origin", "kill"}, processes...)...)
	return err
}

// StartOrigin starts what does not run of the origin.
func (l *Lab) StartOrigin(ctx context.Context) error {
	_, err := l.do(ctx, nil, "origin", "start")
	return err
}

// LimitOrigin has the origin's cloud attach no more disks than that to a machine.
func (l *Lab) LimitOrigin(ctx context.Context, machine string, disks int) error {
	_, err := l.do(ctx, nil, "origin", "limit", machine, strconv.Itoa(disks))
	return err
}

// Ceph runs a command beside the lab's Ceph.
func (l *Lab) Ceph(ctx context.Context, args ...string) (string, error) {
	return l.do(ctx, nil, append([]string{"origin", "exec", "--"}, args...)...)
}

// Unplug takes a disk away from a machine, unless it has it open.
func (l *Lab) Unplug(ctx context.Context, machine, name string) error {
	_, err := l.do(ctx, nil, "disk", "unplug", machine, name)
	return err
}

// Disks lists what is plugged into a machine: device, name and file of each disk.
func (l *Lab) Disks(ctx context.Context, machine string) ([]string, error) {
	out, err := l.do(ctx, nil, "disk", "list", machine)
	return slices.Collect(strings.Lines(out)), err
}

// Heal ends all cuts.
func (l *Lab) Heal(ctx context.Context) error {
	_, err := l.do(ctx, nil, "net", "heal")
	return err
}

func (l *Lab) do(ctx context.Context, stdin []byte, args ...string) (string, error) {
	argv := append(append([]string{}, l.command...), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("lab %s %s: %w: %s", args[0], args[1], err, tail(stderr.String()))
	}
	return stdout.String(), nil
}

// podHost is a Host for any other cluster: the node plugin's container is
// privileged and sees the node's devices and the kubelet's mounts. The storage
// server is looked at in its container.
type podHost struct{ *Cluster }

// Run implements Host.
func (h podHost) Run(ctx context.Context, machine, script string) (string, error) {
	if machine == StorageMachine {
		return h.inStorage(ctx, script)
	}
	pod, err := h.NodePlugin(ctx, machine)
	if err != nil {
		return "", err
	}
	return h.Exec(ctx, pod.Namespace, pod.Name, "", script)
}

// inStorage runs a script in the storage server's container.
func (h podHost) inStorage(ctx context.Context, script string) (string, error) {
	if h.StorageContainer == "" {
		return "", ErrNoStorage
	}
	cmd := exec.CommandContext(ctx, "docker", "exec", h.StorageContainer, "bash", "-c", script)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("script in container %s: %w: %s", h.StorageContainer, err, tail(stderr.String()))
	}
	return stdout.String(), nil
}

// tail returns the last line or two of a tool's output, for an error text.
func tail(s string) string {
	const limit = 600
	s = strings.TrimSpace(s)
	if len(s) > limit {
		s = "..." + s[len(s)-limit:]
	}
	return s
}
