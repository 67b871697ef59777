package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// ErrNoImage is returned for an image of a machine that was not made.
var ErrNoImage = errors.New("there is no such image of the machine's disks")

// ErrRunning is returned for what cannot be done to a machine that runs.
var ErrRunning = errors.New("the machine runs")

// ErrHalfRestored is returned for a machine whose disks are of different times.
var ErrHalfRestored = errors.New("an image was put back in part: restore it again")

// rootDisk is what a machine wrote over its root.
const rootDisk = "root.cow"

// diskFiles are the disks of a machine.
func diskFiles(n plan.Node) []string { return []string{rootDisk, secondDisk(n)} }

func secondDisk(n plan.Node) string {
	if n.Role == plan.RoleStorage {
		return "storage.img"
	}
	return "ssd.img"
}

// image is the folder of an image of a machine's disks.
func (l *Lab) image(node, name string) (string, error) {
	if !backupName.MatchString(name) {
		return "", fmt.Errorf("image %q: a name of a-z, 0-9 and - is wanted", name)
	}
	return l.Paths.Disk(node, "image-"+name), nil
}

// halfRestored exists while a machine's disks are of different times.
func (l *Lab) halfRestored(node string) string { return l.Paths.Disk(node, "half-restored") }

// SaveMachine copies the disks of a machine that does not run.
func (l *Lab) SaveMachine(ctx context.Context, node, name string) error {
	return l.withImage(ctx, node, name, l.saveDisks)
}

// RestoreMachine gives a machine that does not run the disks that it had when an image
// was made.
func (l *Lab) RestoreMachine(ctx context.Context, node, name string) error {
	return l.withImage(ctx, node, name, l.restoreDisks)
}

func (l *Lab) withImage(ctx context.Context, node, name string, do func(n plan.Node, dir string) error) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	n, err := s.find(node)
	if err != nil {
		return err
	}
	if s.StoragePair && n.Role == plan.RoleStorage {
		return fmt.Errorf("%w: %s shares its disk with the other server of the pair", ErrNoImage, node)
	}
	dir, err := l.image(node, name)
	if err != nil {
		return err
	}
	rec, err := l.Procs.Get(node)
	if err == nil && rec.Alive() {
		return fmt.Errorf("%w: %s", ErrRunning, node)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return do(n, dir)
}

func (l *Lab) saveDisks(n plan.Node, dir string) error {
	if err := l.mustBeOfOneTime(n); err != nil {
		return err
	}
	beside := dir + ".new"
	if err := errors.Join(os.RemoveAll(beside), os.MkdirAll(beside, 0o700)); err != nil {
		return fmt.Errorf("image of %s: %w", n.Name, err)
	}
	for _, disk := range diskFiles(n) {
		if err := copySparse(filepath.Join(beside, disk), l.Paths.Disk(n.Name, disk)); err != nil {
			return fmt.Errorf("image of %s: %w", n.Name, err)
		}
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(beside, dir)); err != nil {
		return fmt.Errorf("image of %s: %w", n.Name, err)
	}
	return nil
}

// restoreDisks may be killed at any time: the machine has all disks of one time then, or
// does not boot.
func (l *Lab) restoreDisks(n plan.Node, dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%w: %s of %s", ErrNoImage, filepath.Base(dir), n.Name)
	}
	const beside = ".new"
	for _, disk := range diskFiles(n) {
		if err := copySparse(l.Paths.Disk(n.Name, disk)+beside, filepath.Join(dir, disk)); err != nil {
			return fmt.Errorf("restore %s: %w", n.Name, err)
		}
	}
	if err := os.WriteFile(l.halfRestored(n.Name), nil, 0o600); err != nil {
		return fmt.Errorf("restore %s: %w", n.Name, err)
	}
	for _, disk := range diskFiles(n) {
		path := l.Paths.Disk(n.Name, disk)
		if err := os.Rename(path+beside, path); err != nil {
			return fmt.Errorf("restore %s: %w", n.Name, err)
		}
	}
	return os.Remove(l.halfRestored(n.Name))
}

// mustBeOfOneTime fails for a machine that a killed restore has left.
func (l *Lab) mustBeOfOneTime(n plan.Node) error {
	_, err := os.Stat(l.halfRestored(n.Name))
	if err == nil {
		return fmt.Errorf("%w (%s)", ErrHalfRestored, n.Name)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("disks of %s: %w", n.Name, err)
	}
	return nil
}

// copySparse makes dst a copy of src with the same holes.
func copySparse(dst, src string) (err error) {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	for end := int64(0); ; {
		first, err := in.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only holes follow
		}
		if err != nil {
			return err
		}
		if end, err = in.Seek(first, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, first), io.NewSectionReader(in, first, end-first)); err != nil {
			return err
		}
	}
}
