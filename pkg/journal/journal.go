// Package journal keeps one small JSON record per key so that it survives a
// crash of the process or the machine at any instant: a record is either its
// old or its new value, never a mixture, and Save returns only when the new
// value is on stable storage.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/durable"
)

// Errors of a Store; test with errors.Is.
var (
	// ErrNotFound: there is no record of that key.
	ErrNotFound = errors.New("journal record not found")
	// ErrCorrupt: a record exists and cannot be read. Atomic replacement rules
	// this out for crashes; what remains is a failing disk, or a hand.
	ErrCorrupt = errors.New("journal record is corrupt")
	// ErrNewer: a record was written by a newer version of this program, and says what
	// this one does not know. It is kept as it is; whoever can read it goes on from it.
	ErrNewer = errors.New("journal record was written by a newer version of this program")
	// ErrKey: the key cannot be a file name.
	ErrKey = errors.New("invalid journal key")
)

const (
	suffix        = ".json"
	corruptSuffix = ".corrupt"
	// version is that of the envelope below, and of what a record may say. It is raised
	// with a change that an older program must not overlook; a field that it may leave
	// out changes nothing. All versions up to this one are read.
	//
	// 2: caches have a tag of their clean stop, which an older program would leave there
	// while it uses them (states.md, I4).
	// 3: devices have names of their own, below which an older program would not look
	// (states.md, Names on the host).
	// 4: keys, the device of an export and the logical volume of a hydration have other
	// names, which an older program would overlook.
	// 5: a cache may have two levels, which an older program would take for one
	// (states.md, The stream).
	// 6: the first of the two may be there from the beginning, over which an older program
	// would copy.
	// 7: the origin may be a volume of another CSI driver, which an older program would not leave.
	// Only records that say so have it.
	// 8: tables over a recovered cache call its blocks dirty, and an older program would load some.
	// Only records that say so have it.
	// 9: the top device may drop flushes, and an unclean stop may have torn what was flushed, of which an
	// older program would say nothing. Only records that say so have it.
	// 10: the data of a cache may have checksums between them, and an older program would take what the
	// SSD has for the data. Only records that say so have it.
	version = 10
	// usual is the format of a record that asks for none.
	usual = 6
)

var keyPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)

// envelope is the file's content. Key guards against a file copied to another
// name by hand.
type envelope struct {
	Version int             `json:"version"`
	Key     string          `json:"key"`
	Record  json.RawMessage `json:"record"`
}

// Checker is what a record may implement whose values are a closed list.
type Checker interface {
	// Check returns what of the record this program does not know; nil for nothing.
	Check() error
}

// Formatted is what a record may implement that an older program must not overlook.
type Formatted interface {
	// Format returns the format that the record needs, at most this program's.
	Format() int
}

// Store is a directory of records of one type. It is safe for concurrent use
// with different keys; the caller serialises one key.
type Store[T any] struct {
	dir string
}

// Open returns the store in dir, which is made if needed, and removes temporary
// files that a crash left.
func Open[T any](dir string) (*Store[T], error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if err := durable.Sweep(dir); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	return &Store[T]{dir: dir}, nil
}

func (s *Store[T]) path(key string) (string, error) {
	if !keyPattern.MatchString(key) {
		return "", fmt.Errorf("%w: %q", ErrKey, key)
	}
	return filepath.Join(s.dir, key+suffix), nil
}

// Load returns the record of key.
//
// Errors: ErrNotFound; ErrCorrupt, for as long as the file stays as it is: it is
// evidence, and only Save replaces it (and keeps a copy); ErrNewer, until the newer
// program has deleted it: Save and Delete refuse.
func (s *Store[T]) Load(key string) (T, error) {
	var zero T
	path, err := s.path(key)
	if err != nil {
		return zero, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return zero, fmt.Errorf("%w: %s", ErrNotFound, key)
	}
	if err != nil {
		return zero, fmt.Errorf("load journal record %s: %w", key, err)
	}
	return decode[T](key, data)
}

func decode[T any](key string, data []byte) (T, error) {
	var record, zero T
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return zero, fmt.Errorf("%w: %s: %w", ErrCorrupt, key, err)
	}
	if e.Version > version {
		return zero, fmt.Errorf("%w: %s: format %d, known is %d: install that version again", ErrNewer, key, e.Version, version)
	}
	if e.Version < 1 {
		return zero, fmt.Errorf("%w: %s: format %d, known is %d", ErrCorrupt, key, e.Version, version)
	}
	if e.Key != key {
		return zero, fmt.Errorf("%w: %s: it is the record of %q", ErrCorrupt, key, e.Key)
	}
	if len(e.Record) == 0 || string(e.Record) == "null" {
		return zero, fmt.Errorf("%w: %s: empty", ErrCorrupt, key)
	}
	if err := json.Unmarshal(e.Record, &record); err != nil {
		return zero, fmt.Errorf("%w: %s: %w", ErrCorrupt, key, err)
	}
	if c, ok := any(record).(Checker); ok {
		if err := c.Check(); err != nil {
			return zero, fmt.Errorf("%w: %s: %w: install that version again", ErrNewer, key, err)
		}
	}
	return record, nil
}

// Save replaces the record of key durably. A corrupt predecessor is kept beside
// it as <key>.json.corrupt. Errors: ErrNewer, and nothing is written.
func (s *Store[T]) Save(key string, record T) error {
	path, err := s.path(key)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("save journal record %s: %w", key, err)
	}
	format := usual
	if f, ok := any(record).(Formatted); ok {
		format = max(usual, f.Format())
	}
	data, err := json.Marshal(envelope{Version: format, Key: key, Record: raw})
	if err != nil {
		return fmt.Errorf("save journal record %s: %w", key, err)
	}
	switch _, err := s.Load(key); {
	case errors.Is(err, ErrNewer):
		return fmt.Errorf("save journal record %s: %w", key, err)
	case errors.Is(err, ErrCorrupt):
		if err := keepAside(path); err != nil {
			return fmt.Errorf("save journal record %s: %w", key, err)
		}
	}
	if err := durable.WriteFile(path, append(data, '\n')); err != nil {
		return fmt.Errorf("save journal record %s: %w", key, err)
	}
	return nil
}

// keepAside links the corrupt file to a second name; the first keeps existing
// until it is replaced, so that no instant has neither.
func keepAside(path string) error {
	aside := path + corruptSuffix
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(path, aside)
}

// Delete removes the record of key durably; a missing one is success. Errors:
// ErrNewer, and nothing is removed.
func (s *Store[T]) Delete(key string) error {
	path, err := s.path(key)
	if err != nil {
		return err
	}
	if _, err := s.Load(key); errors.Is(err, ErrNewer) {
		return fmt.Errorf("delete journal record %s: %w", key, err)
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("delete journal record %s: %w", key, err)
	}
	return nil
}

// Keys returns the keys of all records, corrupt ones included, sorted.
func (s *Store[T]) Keys() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list journal: %w", err)
	}
	var keys []string
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), suffix)
		if ok && keyPattern.MatchString(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

// List returns all readable records in the order of their keys. If some are
// corrupt or newer, the error wraps ErrCorrupt, ErrNewer or both and names each of
// them, and the others are returned all the same: one bad file must not stop work on
// the rest.
func (s *Store[T]) List() ([]T, error) {
	keys, err := s.Keys()
	if err != nil {
		return nil, err
	}
	var records []T
	var problems []error
	for _, key := range keys {
		r, err := s.Load(key)
		switch {
		case errors.Is(err, ErrNotFound): // deleted meanwhile
		case err != nil:
			problems = append(problems, err)
		default:
			records = append(records, r)
		}
	}
	return records, errors.Join(problems...)
}
