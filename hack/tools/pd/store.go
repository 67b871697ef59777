package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	compute "google.golang.org/api/compute/v0.beta"
)

// record is what the cloud knows of a disk.
type record struct {
	Disk        *compute.Disk `json:"disk"`
	Attachments []attachment  `json:"attachments,omitempty"`
}

// attachment is a disk's place in a machine.
type attachment struct {
	Instance string `json:"instance"`
	// Mode is READ_WRITE or READ_ONLY.
	Mode string `json:"mode"`
	// Changing is set while the disk is being plugged in or out: what a killed
	// program left so is neither certain.
	Changing bool `json:"changing,omitempty"`
}

// find returns the attachment to a machine, or nil.
func (r *record) find(instance string) *attachment {
	if i := slices.IndexFunc(r.Attachments, func(a attachment) bool { return a.Instance == instance }); i >= 0 {
		return &r.Attachments[i]
	}
	return nil
}

func (r *record) forget(instance string) {
	r.Attachments = slices.DeleteFunc(r.Attachments, func(a attachment) bool { return a.Instance == instance })
}

// store keeps the cloud's disks: a sparse file NAME.img for each, and one file with
// all that is known of them. A disk's name is unique in it, over all zones.
type store struct {
	dir   string
	disks map[string]*record
}

const storeFile = "cloud.json"

// machineDisks is how many disks a machine of the lab takes beside its own two. The lab may write
// less into limitsFile, by the machine's name.
const (
	machineDisks = 14
	limitsFile   = "limits.json"
)

// limit is how many disks a machine takes.
func (s *store) limit(machine string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, limitsFile))
	if errors.Is(err, os.ErrNotExist) {
		return machineDisks, nil
	}
	limits := map[string]int64{}
	if err == nil {
		err = json.Unmarshal(b, &limits)
	}
	if err != nil {
		return 0, fmt.Errorf("limits of machines: %w", err)
	}
	if limit, found := limits[machine]; found {
		return limit, nil
	}
	return machineDisks, nil
}

func openStore(dir string) (*store, error) {
	s := &store{dir: dir, disks: map[string]*record{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, storeFile))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if err := json.Unmarshal(b, &s.disks); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return s, nil
}

func (s *store) save() error {
	b, err := json.MarshalIndent(s.disks, "", "  ")
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	path := filepath.Join(s.dir, storeFile)
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// image is the file of a disk.
func (s *store) image(name string) string { return filepath.Join(s.dir, name+".img") }

// makeImage makes a disk's file, with the data of another disk unless source is "".
// What a killed program left of it is replaced.
func (s *store) makeImage(name, source string, size int64) (err error) {
	f, err := os.OpenFile(s.image(name), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("disk %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if source != "" {
		if err := copyData(f, s.image(source)); err != nil {
			return fmt.Errorf("disk %s, copy of %s: %w", name, source, err)
		}
	}
	if err := f.Truncate(size); err != nil {
		return fmt.Errorf("disk %s: %w", name, err)
	}
	return nil
}

// copyData copies what is written of a sparse file.
func copyData(to *os.File, path string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	for at := int64(0); ; {
		start, err := from.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // nothing but a hole follows
		}
		if err != nil {
			return err
		}
		end, err := from.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(to, start), io.NewSectionReader(from, start, end-start)); err != nil {
			return err
		}
		at = end
	}
}

// growImage gives a disk's file its new size.
func (s *store) growImage(name string, size int64) error {
	if err := os.Truncate(s.image(name), size); err != nil {
		return fmt.Errorf("disk %s: %w", name, err)
	}
	return nil
}

// removeImage removes a disk's file, if there is one.
func (s *store) removeImage(name string) error {
	if err := os.Remove(s.image(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("disk %s: %w", name, err)
	}
	return nil
}
