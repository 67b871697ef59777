package csi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/transport"
)

// record tells which device the last successful Connect has found.
type record struct {
	// Boot is the kernel's boot id.
	Boot string `json:"boot"`
	// Driver and Handle name the volume.
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	// Admission is the attachment that it was found under.
	Admission string `json:"admission,omitempty"`
	// DevNo is "major:minor", Disk what tells disks of one number apart, and WWID the
	// disk's own identity or "".
	DevNo string `json:"devno"`
	Disk  string `json:"disk,omitempty"`
	WWID  string `json:"wwid,omitempty"`
	// Leaving says that Disconnect has begun: the driver may have unpublished the volume, and
	// what is left of the target proves nothing.
	Leaving bool `json:"leaving,omitempty"`
}

// maxRecord is far more than a record has, in bytes.
const maxRecord = 64 << 10

// remember writes the record of a volume.
func (t *Transport) remember(v vol, d disk) error {
	boot, err := t.bootID()
	if err != nil {
		return err
	}
	return record{Boot: boot, Driver: v.source.Driver, Handle: v.source.Handle, Admission: v.source.Admission, DevNo: d.devno, Disk: d.sequence, WWID: d.own}.write(v)
}

func (r record) write(v vol) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.WriteFile(v.record(), b)
}

// recall reads the record of a volume: nil if there is none, of this boot and this volume. One
// that makes no sense is none: then the driver is called, which does no harm.
func (t *Transport) recall(v vol) (*record, error) {
	info, err := os.Lstat(v.record())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return nil, nil
	}
	b, err := os.ReadFile(v.record())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	boot, err := t.bootID()
	if err != nil {
		return nil, err
	}
	return parseRecord(b, v, boot), nil
}

func parseRecord(b []byte, v vol, boot string) *record {
	var r record
	if json.Unmarshal(b, &r) != nil || r.Boot != boot || r.Driver != v.source.Driver || r.Handle != v.source.Handle {
		return nil
	}
	return &r
}

// check refuses a device that has taken the place of the recorded one without the driver.
// Where disks have identities of their own, they decide. Otherwise it is refused only under
// the same number: under another, the driver has published anew, which is its word as it was
// the first time.
func (r *record) check(d disk) error {
	if r == nil || r.Leaving {
		return nil
	}
	replaced := r.DevNo == d.devno && r.Disk != "" && d.sequence != "" && r.Disk != d.sequence
	if r.WWID != "" && d.own != "" {
		replaced = r.WWID != d.own
	}
	if !replaced {
		return nil
	}
	return fmt.Errorf("%w: the target was %s (%s %s) and is %s (%s %s) now: the volume has to leave the node once", transport.ErrMismatch,
		r.DevNo, r.Disk, r.WWID, d.devno, d.sequence, d.own)
}

func (t *Transport) bootID() (string, error) {
	b, err := os.ReadFile(t.boot)
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("boot id: %s is empty", t.boot)
	}
	return id, nil
}
