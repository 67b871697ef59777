// Package exportstate keeps the storage server's exports: one JSON file per volume
// that says who may log in. It is the wanted state; the kernel's target tree is
// made equal to it (after a reboot, after a crash, and in every call).
//
// A file is replaced durably (package durable) and readable for root only: it holds CHAP
// passwords.
package exportstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/nearflash/nearflash/pkg/durable"
)

const (
	version = 1
	// versionReaders is that of a record that lets several initiators read.
	versionReaders = 2

	suffix   = ".json"
	lockFile = ".lock"
	// epochFile is no volume's record: those have the suffix.
	epochFile = "epoch"
)

// ErrLocked says that another process uses the directory.
var ErrLocked = errors.New("state directory is in use by another process")

// Secret is a string that does not print itself. It is written to JSON in full.
type Secret string

// String hides the value.
func (Secret) String() string { return "***stripped***" }

// GoString hides the value.
func (s Secret) GoString() string { return s.String() }

// Export lets one initiator log in to a volume.
type Export struct {
	Initiator  string `json:"initiator"`
	Username   string `json:"username"`
	Password   Secret `json:"password"`
	Generation int64  `json:"generation"`
	// Admission names this export: whoever ends it says which one is meant. Load
	// derives one for an export that an earlier version stored.
	Admission string `json:"admission,omitempty"`
	// Target is what the target's name has behind the volume's; empty for an export that an
	// earlier version stored, whose target has the volume's name alone.
	Target string `json:"target,omitempty"`
	// ReadOnly is true of one that may not write. All exports of a volume are, or none.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// Record is the wanted exports of one volume.
type Record struct {
	Version int `json:"version"`
	// Volume is the name; VolumeUUID ties the record to one incarnation of it.
	Volume     string   `json:"volume"`
	VolumeUUID string   `json:"volumeUUID"`
	Exports    []Export `json:"exports"`
}

// Initiators lists who may log in.
func (r Record) Initiators() []string {
	out := []string{}
	for _, e := range r.Exports {
		out = append(out, e.Initiator)
	}
	return out
}

// Generation is the highest one among the exports, 0 if there are none.
func (r Record) Generation() int64 {
	out := int64(0)
	for _, e := range r.Exports {
		out = max(out, e.Generation)
	}
	return out
}

// Target is that of the export with the highest generation.
func (r Record) Target() string {
	for _, e := range r.Exports {
		if e.Generation == r.Generation() {
			return e.Target
		}
	}
	return ""
}

// ReadOnly reports whether those who may log in may not write.
func (r Record) ReadOnly() bool {
	return slices.ContainsFunc(r.Exports, func(e Export) bool { return e.ReadOnly })
}

// format is the version of the record's file. A server of before there were readers, which would
// let all of them write, refuses the one with readers.
func (r Record) format() int {
	if r.ReadOnly() {
		return versionReaders
	}
	return version
}

// Store is a directory of records. Calls for different volumes may run at the same
// time.
type Store struct {
	dir  string
	lock *os.File
}

// Open creates the directory if needed, locks it, and removes half-written files.
// Errors: ErrLocked.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrLocked, dir, err), lock.Close())
	}
	s := &Store{dir: dir, lock: lock}
	if err := durable.Sweep(dir); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

// Close gives the directory free.
func (s *Store) Close() error {
	return s.lock.Close()
}

func (s *Store) path(volume string) string {
	return filepath.Join(s.dir, volume+suffix)
}

// Load returns the record of a volume, an empty one if there is none.
func (s *Store) Load(volume string) (Record, error) {
	b, err := os.ReadFile(s.path(volume))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{Version: version, Volume: volume}, nil
	}
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		// Not %w: the text of a JSON error may quote the content.
		return Record{}, fmt.Errorf("state file %s is not valid JSON", s.path(volume))
	}
	if r.Version != r.format() || r.Volume != volume {
		return Record{}, fmt.Errorf("state file %s: version %d of volume %q, want version %d of %q", s.path(volume), r.Version, r.Volume, r.format(), volume)
	}
	r.Version = version
	for i := range r.Exports {
		if e := &r.Exports[i]; e.Admission == "" {
			// No random name looks like this, so that the next export is another admission.
			e.Admission = fmt.Sprintf("generation-%d", e.Generation)
		}
	}
	return r, nil
}

// List returns the volumes that have a record, readable or not.
func (s *Store) List() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok && !strings.HasPrefix(name, ".") {
			out = append(out, name)
		}
	}
	return out, nil
}

// Save replaces the record of a volume durably; one without exports is removed.
func (s *Store) Save(r Record) error {
	if len(r.Exports) == 0 {
		return s.Delete(r.Volume)
	}
	r.Version = r.format()
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode state of volume %s: %w", r.Volume, err)
	}
	return durable.WriteFile(s.path(r.Volume), append(b, '\n'))
}

// Delete removes the record of a volume durably; without one it does nothing.
func (s *Store) Delete(volume string) error { return durable.Remove(s.path(volume)) }

// epochRecord is the file of the epoch.
type epochRecord struct {
	Version int    `json:"version"`
	Epoch   string `json:"epoch"`
}

// Epoch returns the epoch of the cluster that uses the server, "" if none has set one.
func (s *Store) Epoch() (string, error) {
	path := filepath.Join(s.dir, epochFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var r epochRecord
	if err := json.Unmarshal(b, &r); err != nil || r.Version != version || r.Epoch == "" {
		return "", fmt.Errorf("state file %s is damaged, or of a newer version", path)
	}
	return r.Epoch, nil
}

// SetEpoch replaces the epoch durably.
func (s *Store) SetEpoch(epoch string) error {
	b, err := json.Marshal(epochRecord{Version: version, Epoch: epoch})
	if err != nil {
		return fmt.Errorf("encode the epoch: %w", err)
	}
	return durable.WriteFile(filepath.Join(s.dir, epochFile), append(b, '\n'))
}
