package extents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxDepth bounds how deep folders are looked at: each keeps a file open.
const maxDepth = 256

// ErrNotFound: the path is not there, or leads out of the filesystem.
var ErrNotFound = errors.New("no such file or directory in the volume's filesystem")

// ErrStop ends a walk, which then returns nil.
var ErrStop = errors.New("enough")

// Extent is a part of the device, in bytes.
type Extent struct{ Start, Length uint64 }

// Walk calls each with the extents of the file at path, or of all files below it, in the order of their
// folders. root is where the filesystem is mounted, and path begins there; "" is all of it. Files that
// come and go meanwhile are told or not. It returns how many files it has looked at.
// Errors: ErrNotFound, those of each (but ErrStop), those of reading a folder, and the context's.
func Walk(ctx context.Context, root, path string, each func(Extent) error) (files int, err error) {
	return walk(ctx, root, path, func(f *os.File) error { return extentsOf(ctx, f, each) })
}

// walk is Walk that does something with each file.
func walk(ctx context.Context, root, path string, do func(*os.File) error) (files int, err error) {
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", root, err)
	}
	defer func() { _ = unix.Close(top) }()
	if path == "" {
		path = "."
	}
	w := walker{ctx: ctx, do: do}
	err = w.entry(top, path, 0)
	switch {
	case errors.Is(err, ErrStop):
		err = nil
	case w.files == 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOTDIR)):
		err = fmt.Errorf("%w: %s", ErrNotFound, path)
	}
	return w.files, err
}

type walker struct {
	ctx   context.Context
	do    func(*os.File) error
	files int
}

// entry looks at a file or folder below a folder that is open. What is not there is an error at the top
// alone: deeper, it has gone meanwhile.
func (w *walker) entry(below int, name string, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	// Named only, until it is known what it is: a device or a pipe is not opened.
	node, err := unix.Openat2(below, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		if depth > 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV)) {
			return nil
		}
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer func() { _ = unix.Close(node) }()
	var st unix.Stat_t
	if err := unix.Fstat(node, &st); err != nil {
		return fmt.Errorf("stat %s: %w", name, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK && depth == 0 {
		return fmt.Errorf("open %s: %w", name, unix.ELOOP)
	}
	if kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil
	}
	// By its number, so that it is what was looked at.
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(node), unix.O_RDONLY|unix.O_NOATIME|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
	case depth > 0 && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOKEY)):
		return nil // somebody has a lease of it, or it is encrypted and the key is not there: nobody reads it now
	default:
		return fmt.Errorf("open %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }()
	if kind == unix.S_IFDIR {
		return w.folder(f, depth)
	}
	w.files++
	return w.do(f)
}

// folderBatch is how many names are read at once.
const folderBatch = 1024

func (w *walker) folder(f *os.File, depth int) error {
	if depth >= maxDepth {
		return nil
	}
	for {
		names, err := f.Readdirnames(folderBatch)
		for _, name := range names {
			if err := w.entry(int(f.Fd()), name, depth+1); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case len(names) == 0 && errors.Is(err, os.ErrNotExist): // deleted meanwhile
			return nil
		case errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("folder %s: %w", f.Name(), err)
		}
	}
}
