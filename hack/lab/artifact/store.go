package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a process looks again whether another one has finished
// building the same artifact.
const lockPoll = 200 * time.Millisecond

// recipe says what an artifact consists of and how it is made.
type recipe struct {
	// name is the readable part of the directory name.
	name string
	// inputs is everything that decides the content: versions, package lists,
	// file contents, the keys of other artifacts. A change of any of them gives
	// the artifact a new directory.
	inputs []string
	// build fills dir. The directory will be renamed to final, which is for
	// recipes that must write their own location into a file.
	build func(ctx context.Context, dir, final string) error
}

// key returns "<name>-<hash>", the name of the artifact's directory.
func (r recipe) key() string {
	return r.name + "-" + hashInputs(r.inputs)
}

// hashInputs returns 12 hex digits over the inputs. Lengths are hashed too, so
// that moving a byte from one input to its neighbour gives another hash.
func hashInputs(inputs []string) string {
	h := sha256.New()
	for _, in := range inputs {
		h.Write([]byte(strconv.Itoa(len(in)) + ":"))
		h.Write([]byte(in))
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// store is the cache directory. Several processes may use it at a time.
type store struct {
	root     string
	progress func(format string, args ...any)
}

// ensure returns the directory of a verified artifact. An absent one is built;
// one that fails its verification is discarded and built again.
func (s *store) ensure(ctx context.Context, r recipe) (string, error) {
	final := filepath.Join(s.root, r.key())
	if err := verifyDir(final); err == nil {
		return final, nil
	}
	unlock, err := s.lock(ctx, r.key())
	if err != nil {
		return "", err
	}
	defer unlock()

	// The holder of the lock before us may have built it, and whoever reads the
	// directory without a lock sees it whole or not at all.
	err = verifyDir(final)
	if err == nil {
		return final, nil
	}
	if !errors.Is(err, errNoManifest) {
		s.progress("%s: discarded, will be built again: %v", r.name, err)
	}
	if err := s.rebuild(ctx, r, final); err != nil {
		return "", fmt.Errorf("make %s: %w", r.name, err)
	}
	return final, nil
}

// rebuild makes the artifact in a temporary directory and moves it to final.
// The caller holds the artifact's lock.
func (s *store) rebuild(ctx context.Context, r recipe, final string) error {
	if err := s.clean(r.key()); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(s.root, tmpPrefix(r.key()))
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := r.build(ctx, tmp, final); err != nil {
		return err
	}
	if err := writeManifest(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, final)
}

// clean removes the artifact itself and what a killed builder left of it. With
// the lock held no living process uses these.
func (s *store) clean(key string) error {
	stale, err := filepath.Glob(filepath.Join(s.root, tmpPrefix(key)+"*"))
	if err != nil {
		return err
	}
	for _, dir := range append(stale, filepath.Join(s.root, key)) {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove what is left of an earlier build: %w", err)
		}
	}
	return nil
}

func tmpPrefix(key string) string { return ".tmp-" + key + "-" }

// lock takes the artifact's lock, shared with every process that uses the same
// cache directory. The kernel drops it when its holder dies.
func (s *store) lock(ctx context.Context, key string) (unlock func(), err error) {
	dir := filepath.Join(s.root, ".locks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return flock(ctx, filepath.Join(dir, key), func() {
		s.progress("%s: another process is making it, waiting", key)
	})
}

// flock takes an exclusive lock on a file and calls waiting once when it has
// to wait for it.
func flock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// DefaultCacheDir returns where artifacts are kept when nobody says otherwise:
// $NEARFLASH_CACHE, else $XDG_CACHE_HOME/nearflash, else ~/.cache/nearflash.
func DefaultCacheDir() (string, error) {
	if dir := os.Getenv("NEARFLASH_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "nearflash"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory: set NEARFLASH_CACHE: %w", err)
	}
	return filepath.Join(home, ".cache", "nearflash"), nil
}

// exists says whether a path exists; an unreadable one counts as absent.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist) && err == nil
}
