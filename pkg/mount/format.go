package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

// probeBytes is how much of a device's head and of its tail has to be zero before it
// counts as blank. Nothing that libblkid looks for lies further inside.
const probeBytes = 1 << 20

// sbInProgress is the offset of sb_inprogress in the superblock of XFS
// (fs/xfs/libxfs/xfs_format.h): mkfs sets it first and clears it last.
const sbInProgress = 126

// Probe reads what a device holds. blkid alone is no proof: it answers the same to a
// device on which it finds nothing and to one that it cannot read.
//
// Errors: ErrUnavailable if head or tail cannot be read.
func (h *Host) Probe(ctx context.Context, device string) (volume.Content, error) {
	head, tail, err := readEnds(device)
	if err != nil {
		return volume.Content{}, fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	if isZero(head) && isZero(tail) {
		return volume.Content{Blank: true}, nil
	}
	found, err := h.identify(ctx, device)
	if err != nil {
		return volume.Content{}, err
	}
	return volume.Content{Type: found, Unfinished: found == "xfs" && head[sbInProgress] != 0}, nil
}

// readEnds reads the first and the last probeBytes past the page cache; of a smaller
// device all of it, twice.
func readEnds(device string) (head, tail []byte, err error) {
	size, err := blockdev.Size(device)
	if err != nil {
		return nil, nil, err
	}
	f, err := blockdev.OpenDirect(device)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	n := min(size, probeBytes)
	if head, err = readDirect(f, 0, n); err != nil {
		return nil, nil, err
	}
	tail, err = readDirect(f, size-n, n)
	return head, tail, err
}

// readDirect reads n bytes at off, both multiples of the logical block size.
func readDirect(f *os.File, off, n int64) ([]byte, error) {
	const align = 4096
	buf := blockdev.AlignedBuffer(int((n + align - 1) / align * align))[:n]
	if _, err := io.ReadFull(io.NewSectionReader(f, off, n), buf); err != nil {
		return nil, fmt.Errorf("read %d bytes at %d: %w", n, off, err)
	}
	return buf, nil
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// The exit status of blkid -p (blkid(8)).
const (
	blkidNothing   = 2
	blkidAmbiguous = 8
)

// identify returns what blkid calls a device that can be read and is not blank.
func (h *Host) identify(ctx context.Context, device string) (string, error) {
	res, err := h.run.Run(ctx, hostexec.Query("blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device))
	var exit *hostexec.ExitError
	if errors.As(err, &exit) {
		switch exit.ExitCode {
		case blkidNothing:
			return "", nil
		case blkidAmbiguous:
			return "more than one filesystem", nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("identify the content of %s: %w", device, err)
	}
	return parseBlkid(string(res.Stdout)), nil
}

// parseBlkid reads the output of blkid -o export: a filesystem wins over a table of
// partitions.
func parseBlkid(out string) string {
	values := map[string]string{}
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[k] = v
		}
	}
	switch {
	case values["TYPE"] != "":
		return values["TYPE"]
	case values["PTTYPE"] != "":
		return "a table of partitions (" + values["PTTYPE"] + ")"
	}
	return ""
}

// XFSFeatures is the path of mkfs.xfs's own list of what Linux 5.15 understands, which is
// older than any kernel that is supported: xfsprogs turns on by itself what kernels of its
// own age understand, and an older node, to which the volume may move, could not mount it.
const XFSFeatures = "/usr/share/xfsprogs/mkfs/lts_5.15.conf"

// mkfs are the commands that make a filesystem that Linux 5.10 can mount. Discards at that
// time would only cost time: a new volume has nothing to discard.
func mkfs(device, fsType string) (hostexec.Cmd, error) {
	switch fsType {
	case "ext4":
		return hostexec.Command("mkfs.ext4", "-q", "-F", "-m0", "-O", "^orphan_file", "-E", "nodiscard", device), nil
	case "xfs":
		return hostexec.Command("mkfs.xfs", "-q", "-f", "-K", "-c", "options="+XFSFeatures, device), nil
	}
	return hostexec.Cmd{}, fmt.Errorf("%w: fsType %q: accepted are ext4, xfs", volume.ErrInvalid, fsType)
}

// Format makes a filesystem, whatever the device holds, and returns when it is on stable
// storage. Errors: ErrInvalid for an fsType that is neither ext4 nor xfs.
func (h *Host) Format(ctx context.Context, device, fsType string) error {
	cmd, err := mkfs(device, fsType)
	if err != nil {
		return err
	}
	if _, err := h.run.Run(ctx, cmd); err != nil {
		return fmt.Errorf("format %s: %w", device, err)
	}
	f, err := blockdev.Open(device, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("format %s: %w", device, err)
	}
	return nil
}

// Mount mounts a formatted device, after a check that repairs what is safe to repair.
// It never formats.
func (h *Host) Mount(ctx context.Context, device, target, fsType string, options []string) error {
	if fsType == "" {
		fsType = volume.DefaultFSType
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	if fsType == "ext4" && !isReadOnly(options) {
		if err := h.check(ctx, device); err != nil {
			return err
		}
	}
	if err := h.mounter.Mount(device, target, fsType, mountOptions(fsType, options)); err != nil {
		return fmt.Errorf("mount %s: %w", device, err)
	}
	return nil
}

// mountOptions are those of the kernel. XFS mounts no two filesystems of one UUID, as a volume
// and its clone are.
func mountOptions(fsType string, options []string) []string {
	if fsType != "xfs" || slices.Contains(options, "nouuid") {
		return options
	}
	return append([]string{"nouuid"}, options...)
}

func isReadOnly(options []string) bool {
	for _, o := range options {
		if o == "ro" {
			return true
		}
	}
	return false
}

// fsckUncorrected is the exit status of fsck for errors that only a human should repair
// (fsck(8)). Lower ones say that all is well now, higher ones that there was no check.
const fsckUncorrected = 4

// check replays the journal of an ext4 filesystem and repairs what is safe to repair. XFS
// does so at the mount.
func (h *Host) check(ctx context.Context, device string) error {
	_, err := h.run.Run(ctx, hostexec.Command("fsck.ext4", "-a", device))
	var exit *hostexec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return fmt.Errorf("check %s: %w", device, err)
	case exit.ExitCode&fsckUncorrected != 0:
		return fmt.Errorf("%s has errors that fsck does not repair by itself: while the pod waits, fsck.ext4 -f -y %[1]s in the container of this node's plugin repairs them: %w", device, err)
	}
	klog.FromContext(ctx).Info("Filesystem was checked", "device", device, "status", exit.ExitCode, "said", string(exit.Stderr))
	return nil
}
