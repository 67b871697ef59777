package lvol

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// Errors of this package; test with errors.Is.
var (
	// ErrNotFound: there is no such volume.
	ErrNotFound = errors.New("volume not found")
	// ErrExists: the name of the logical volume is taken.
	ErrExists = errors.New("logical volume exists")
	// ErrNoSpace: the volume group or the thin pool has not enough room.
	ErrNoSpace = errors.New("not enough space")
	// ErrBusy: somebody on the server has the device open.
	ErrBusy = errors.New("logical volume is in use on the server")
	// ErrForeign: a logical volume of that name exists that is not ours.
	ErrForeign = errors.New("logical volume does not belong to nearflash")
	// ErrNoPool: a thin volume was asked for and no thin pool is configured.
	ErrNoPool = errors.New("no thin pool is configured")
	// ErrThick: only a thin volume has snapshots.
	ErrThick = errors.New("a thick volume has no snapshots")
	// ErrNameTooLong: the device-mapper name would be too long.
	ErrNameTooLong = errors.New("name is too long for this volume group")
)

const (
	tagVolume   = "nearflash.volume="
	tagGen      = "nearflash.gen="
	tagUnzeroed = "nearflash.unzeroed"
	tagDeleting = "nearflash.deleting"
	tagGrow     = "nearflash.grow="

	// lvPrefix keeps volumes apart from other LVs, from the pool, and from names
	// that LVM reserves ("snapshot...", "pvmove...").
	lvPrefix   = "nf-"
	growPrefix = "nfgrow-"

	// maxDMName is the longest device-mapper name (DM_NAME_LEN less the NUL).
	maxDMName = 127
)

// State says how far a volume is.
type State int

// States of a volume.
const (
	Ready State = iota
	// Unzeroed: allocated; a thick one may show old data, one that is made of a snapshot has
	// not its size yet. It was never reported as created.
	Unzeroed
	// Deleting: must not be used any more.
	Deleting
)

// Volume is one logical volume.
type Volume struct {
	// Name is the volume's name; LV that of the logical volume.
	Name, LV string
	// UUID and VGUUID are LVM's, unchanged for the life of the volume.
	UUID, VGUUID string
	// Path is the block device; it exists while Active.
	Path      string
	SizeBytes int64
	Thin      bool
	Active    bool
	State     State
	// Generation is the highest one stored, 0 for none.
	Generation int64
	// UsedBytes is what is allocated for it.
	UsedBytes int64
	// From is the snapshot that it began as, "" for none.
	From string

	generations []string // tags with generations, normally one
}

// Serial is the SCSI unit serial of the volume: 32 hexadecimal digits, stable for
// the volume's life and different for a later volume of the same name, so that an
// initiator can never take one for the other.
func (v Volume) Serial() string {
	sum := sha256.Sum256([]byte("nearflash\x00" + v.VGUUID + "\x00" + v.UUID + "\x00" + v.Name))
	return hex.EncodeToString(sum[:16])
}

// Config says where volumes live.
type Config struct {
	VolumeGroup string
	// ThinPool is the LV name of the pool; empty for thick volumes only.
	ThinPool string
	// Devices limits LVM to these devices (--devices); empty for all.
	Devices []string
	// MaxOvercommit is how many times the pool's size may be promised to thin
	// volumes.
	MaxOvercommit float64
}

// Manager does all work on volumes. Different volumes may be worked on at the same
// time, one volume only by one caller.
type Manager struct {
	cfg Config
	run hostexec.Runner
	dev BlockDevice

	// alloc is held while extents are allocated, so that extents just freed for a
	// growing volume are not given to another one.
	alloc sync.Mutex

	extent int64
	vgUUID string
}

// Open checks the volume group and the pool. It refuses a pool that does not zero
// new blocks.
func Open(ctx context.Context, cfg Config, run hostexec.Runner, dev BlockDevice) (*Manager, error) {
	m := &Manager{cfg: cfg, run: run, dev: dev}
	vg, err := m.readVG(ctx)
	if err != nil {
		return nil, err
	}
	m.extent, m.vgUUID = vg.extent, vg.uuid
	if cfg.ThinPool == "" {
		return m, nil
	}
	rows, err := m.lvs(ctx, cfg.VolumeGroup)
	if err != nil {
		return nil, err
	}
	if _, err := m.readPool(rows); err != nil {
		return nil, err
	}
	return m, nil
}

// ExtentBytes is the allocation unit.
func (m *Manager) ExtentBytes() int64 {
	return m.extent
}

// RoundUp is the size a volume of at least size bytes has.
func (m *Manager) RoundUp(size int64) (int64, error) {
	if size <= 0 || size > math.MaxInt64-m.extent {
		return 0, fmt.Errorf("size %d is out of range", size)
	}
	return (size + m.extent - 1) / m.extent * m.extent, nil
}

// CheckName says whether LVM can hold a volume of that name in this group.
func (m *Manager) CheckName(name string) error { return m.checkLV(growPrefix+name, name) }

// checkLV says whether device-mapper can have the name of a logical volume.
func (m *Manager) checkLV(lv, name string) error {
	dm := len(escapeDM(m.cfg.VolumeGroup)) + 1 + len(escapeDM(lv))
	if dm > maxDMName {
		return fmt.Errorf("%w: %q needs %d characters with the group's name and doubled hyphens, %d are possible",
			ErrNameTooLong, name, dm, maxDMName)
	}
	return nil
}

func escapeDM(s string) string {
	return strings.ReplaceAll(s, "-", "--")
}

// Get returns one volume in whatever state it is.
// Errors: ErrNotFound, ErrForeign.
func (m *Manager) Get(ctx context.Context, name string) (Volume, error) {
	rows, err := m.lvs(ctx, m.cfg.VolumeGroup+"/"+lvPrefix+name)
	if err != nil {
		return Volume{}, err
	}
	if len(rows) == 0 {
		return Volume{}, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	v, ok := rows[0].volume()
	if !ok || v.Name != name {
		return Volume{}, fmt.Errorf("%w: %s/%s", ErrForeign, m.cfg.VolumeGroup, rows[0].LVName)
	}
	return v, nil
}

// List returns all volumes in whatever state they are, in no order.
func (m *Manager) List(ctx context.Context) ([]Volume, error) {
	rows, err := m.lvs(ctx, m.cfg.VolumeGroup)
	if err != nil {
		return nil, err
	}
	return volumesOf(rows), nil
}

func volumesOf(rows []lvRow) (out []Volume) {
	for _, r := range rows {
		if v, ok := r.volume(); ok {
			out = append(out, v)
		}
	}
	return out
}
