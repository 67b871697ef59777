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
	"strings"
	"sync"
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
	// tools are what the build calls on the host.
	tools []hostTool
	// build fills dir. The directory will be renamed to final, which is for
	// recipes that must write their own location into a file.
	build func(ctx context.Context, dir, final string) error
}

// key returns "<name>-<hash>", the name of the artifact's directory.
func (r recipe) key() string {
	return r.name + "-" + hashInputs(r.inputs)
}

// hashDigits is the length of the hash in a key, in hex digits.
const hashDigits = 12

// hashInputs returns a hash over the inputs. Lengths are hashed too, so
// that moving a byte from one input to its neighbour gives another hash.
func hashInputs(inputs []string) string {
	h := sha256.New()
	for _, in := range inputs {
		h.Write([]byte(strconv.Itoa(len(in)) + ":"))
		h.Write([]byte(in))
	}
	return hex.EncodeToString(h.Sum(nil))[:hashDigits]
}

// store is the cache directory. Several processes may use it at a time.
type store struct {
	root     string
	progress func(format string, args ...any)
	// checkContent makes every verification read all content.
	checkContent bool
	// installing is held while host tools are looked for and installed.
	installing sync.Mutex
}

// ensure returns the directory of a verified artifact. An absent one is built;
// one that fails its verification is discarded and built again.
func (s *store) ensure(ctx context.Context, r recipe) (string, error) {
	final := filepath.Join(s.root, r.key())
	if err := verifyDir(final, s.checkContent); err == nil {
		s.markUsed(r.key())
		return final, nil
	}
	unlock, err := s.lock(ctx, r.key())
	if err != nil {
		return "", err
	}
	defer unlock()

	// The holder of the lock before us may have built it, and whoever reads the
	// directory without a lock sees it whole or not at all.
	err = verifyDir(final, s.checkContent)
	if err == nil {
		return final, nil
	}
	if !errors.Is(err, errNoManifest) {
		s.progress("%s: discarded, will be built again: %v", r.name, err)
	}
	if err := s.rebuild(ctx, r, final); err != nil {
		return "", fmt.Errorf("make %s: %w", r.name, err)
	}
	s.markUsed(r.key())
	return final, s.retire(r)
}

// rebuild makes the artifact in a temporary directory and moves it to final.
// The caller holds the artifact's lock.
func (s *store) rebuild(ctx context.Context, r recipe, final string) error {
	if err := s.ensureHostTools(ctx, r.tools); err != nil {
		return err
	}
	if err := os.RemoveAll(final); err != nil {
		return fmt.Errorf("remove what is left of an earlier build: %w", err)
	}
	tmp, err := os.MkdirTemp(s.root, tmpPrefix+r.key()+"-")
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

const (
	// tmpPrefix and the key begin the name of a directory that is being filled.
	tmpPrefix = ".tmp-"
	locksDir  = ".locks"
	// keepUnused is how long an artifact is kept that a newer one of the same
	// name has replaced: checkouts of several branches share the cache.
	keepUnused = 30 * 24 * time.Hour
)

// sweep removes what killed builders have left: directories whose artifact is
// locked by nobody.
func (s *store) sweep() error {
	stale, err := filepath.Glob(filepath.Join(s.root, tmpPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range stale {
		key := strings.TrimPrefix(filepath.Base(dir), tmpPrefix)
		if i := strings.LastIndexByte(key, '-'); i > 0 {
			key = key[:i]
		}
		if err := s.removeUnlocked(key, dir); err != nil {
			return err
		}
	}
	return nil
}

// retire removes the artifacts of the recipe's name that nobody has asked for
// in a long time.
func (s *store) retire(r recipe) error {
	others, err := filepath.Glob(filepath.Join(s.root, r.name+"-"+strings.Repeat("[0-9a-f]", hashDigits)))
	if err != nil {
		return err
	}
	for _, dir := range others {
		info, err := os.Stat(filepath.Join(s.root, locksDir, filepath.Base(dir)))
		if err != nil || time.Since(info.ModTime()) < keepUnused {
			continue // a directory without a lock file is not from here
		}
		if err := s.removeUnlocked(filepath.Base(dir), dir); err != nil {
			return err
		}
	}
	return nil
}

// removeUnlocked removes a directory unless a process holds the key's lock.
func (s *store) removeUnlocked(key, dir string) error {
	path, err := s.lockPath(key)
	if err != nil {
		return err
	}
	unlock, err := tryFlock(path)
	if errors.Is(err, errLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove what is not needed any more: %w", err)
	}
	return nil
}

// markUsed records the use of an artifact in the time of its lock file. Without
// the record an artifact is only built again sooner.
func (s *store) markUsed(key string) {
	now := time.Now()
	_ = os.Chtimes(filepath.Join(s.root, locksDir, key), now, now)
}

func (s *store) lockPath(key string) (string, error) {
	dir := filepath.Join(s.root, locksDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return filepath.Join(dir, key), nil
}

// lock takes the artifact's lock, shared with every process that uses the same
// cache directory. The kernel drops it when its holder dies.
func (s *store) lock(ctx context.Context, key string) (unlock func(), err error) {
	path, err := s.lockPath(key)
	if err != nil {
		return nil, err
	}
	return flock(ctx, path, func() {
		s.progress("%s: another process is making it, waiting", key)
	})
}

var errLocked = errors.New("locked by another process")

// tryFlock takes an exclusive lock on a file or fails with errLocked at once.
func tryFlock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return func() { _ = f.Close() }, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		err = errLocked
	}
	return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
}

// flock takes an exclusive lock on a file and calls waiting once when it has
// to wait for it.
func flock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	for first := true; ; first = false {
		unlock, err := tryFlock(path)
		if !errors.Is(err, errLocked) {
			return unlock, err
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
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
