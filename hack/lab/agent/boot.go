package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
)

// rootDevice is the guest's own copy-on-write root.
const rootDevice = "/dev/ubda"

type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
	// optional mounts may be refused by a kernel built without them.
	optional bool
}

// boot leaves the kernel's first root, which lies on the host, for the guest's
// own, mounts all kernel file systems, and returns the path of the share on the
// host. The kernel hands unknown NAME=VALUE parameters to init as environment.
func boot() (string, error) {
	share := os.Getenv(agentapi.ShareEnv)
	if share == "" {
		return "", fmt.Errorf("kernel parameter %s is missing", agentapi.ShareEnv)
	}
	// The kernel may have mounted it already.
	if err := unix.Mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return "", fmt.Errorf("mount /dev: %w", err)
	}
	if err := enterRoot(); err != nil {
		return "", err
	}
	if err := mountAll(kernelMounts(share)); err != nil {
		return "", err
	}
	return share, nil
}

// pivot makes dir the root and forgets the old one. The old root is stacked
// below the new one first, so no folder for it is needed (pivot_root(2), NOTES).
func pivot(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("new root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("new root: %w", err)
	}
	return nil
}

func kernelMounts(share string) []mount {
	return []mount{
		{source: "proc", target: "/proc", fstype: "proc"},
		{source: "sysfs", target: "/sys", fstype: "sysfs"},
		{source: "devtmpfs", target: "/dev", fstype: "devtmpfs"},
		{source: "devpts", target: "/dev/pts", fstype: "devpts", data: "mode=620,ptmxmode=666"},
		{source: "tmpfs", target: "/dev/shm", fstype: "tmpfs"},
		{source: "tmpfs", target: "/run", fstype: "tmpfs", data: "mode=755"},
		{source: "tmpfs", target: "/tmp", fstype: "tmpfs"},
		{source: "cgroup2", target: "/sys/fs/cgroup", fstype: "cgroup2"},
		{source: "bpf", target: "/sys/fs/bpf", fstype: "bpf", optional: true},
		hostMount(share, agentapi.ShareDir),
	}
}

// hostMount mounts a folder of the host. To mount(2), hostfs takes the bare path
// as its data; NAME=VALUE is for fsconfig(2) alone.
func hostMount(source, target string) mount {
	if os.Getenv(agentapi.RootEnv) != "" {
		return mount{source: source, target: target, fstype: "9p", data: "trans=virtio,version=9p2000.L,msize=262144"}
	}
	return mount{source: "none", target: target, fstype: "hostfs", data: source}
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil && !m.optional {
			return fmt.Errorf("mount point %s: %w", m.target, err)
		}
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil && !m.optional {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	// Kubelet and CSI mounts propagate from containers to here and back.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the root's mounts: %w", err)
	}
	return nil
}

// mountConfigfs mounts configfs, which may come as a module.
func mountConfigfs() error {
	const dir = "/sys/kernel/config"
	if err := unix.Mount("configfs", dir, "configfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// enableControllers makes all cgroup controllers available below the root. The
// kernel refuses that while processes are in a cgroup that has controllers for
// its children (cgroup-v2.rst, "No Internal Process Constraint"; the root is
// exempt but the kubelet's children are not), so all move into a child first.
func enableControllers() error {
	const root = "/sys/fs/cgroup"
	child := filepath.Join(root, "init")
	if err := os.MkdirAll(child, 0o755); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	procs, err := os.ReadFile(filepath.Join(root, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, pid := range strings.Fields(string(procs)) {
		// Kernel threads, which have no program, stay: among them are real-time
		// ones, and with those in a child the cpu controller cannot be enabled.
		if _, err := os.Readlink("/proc/" + pid + "/exe"); err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(child, "cgroup.procs"), []byte(pid), 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, c := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			return fmt.Errorf("cgroup controller %s: %w", c, err)
		}
	}
	return nil
}

// completeCPUInfo mounts a copy of /proc/cpuinfo over it that has the lines
// without which cAdvisor, and so kubelet, refuses to start. User-Mode Linux does
// not print them.
func completeCPUInfo() error {
	const file, copyFile = "/proc/cpuinfo", "/run/cpuinfo"
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cpuinfo: %w", err)
	}
	if err := os.WriteFile(copyFile, completedCPUInfo(b), 0o644); err != nil {
		return fmt.Errorf("cpuinfo: %w", err)
	}
	if err := unix.Mount(copyFile, file, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cpuinfo: %w", err)
	}
	return nil
}

// completedCPUInfo adds the missing lines to each processor's paragraph.
func completedCPUInfo(in []byte) []byte {
	var out bytes.Buffer
	core := 0
	for para := range strings.SplitSeq(strings.TrimSpace(string(in)), "\n\n") {
		out.WriteString(strings.TrimSpace(para) + "\n")
		for _, extra := range [][2]string{
			{"cpu MHz", "2000.000"}, {"cache size", "1024 KB"}, {"physical id", "0"}, {"core id", strconv.Itoa(core)},
		} {
			if !strings.Contains(para, extra[0]) {
				fmt.Fprintf(&out, "%s\t\t: %s\n", extra[0], extra[1])
			}
		}
		out.WriteString("\n")
		core++
	}
	return out.Bytes()
}
