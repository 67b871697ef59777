package scrub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Order says what a guard is to judge. Its file is there as long as the device may be suspended.
type Order struct {
	ID volume.ID `json:"id"`
	// Boot is the kernel's boot id.
	Boot string `json:"boot"`
	// Device is the name of the volume's top device, which nobody changes meanwhile.
	Device string `json:"device"`
	// Meta, Data and Origin are the paths of what the cache is over.
	Meta   string `json:"meta"`
	Data   string `json:"data"`
	Origin string `json:"origin"`
	// BlockBytes is the length of a block of the cache.
	BlockBytes int64   `json:"blockBytes"`
	Pieces     []Piece `json:"pieces"`
	// Discards tells a volume of which parts were discarded, Raw one of which none ever was.
	Discards bool `json:"discards"`
	Raw      bool `json:"raw,omitempty"`
	// Renew has what differs replaced by what the origin has.
	Renew bool `json:"renew"`
}

var (
	// errOrder: an order is not to be carried out.
	errOrder = errors.New("order of a scrub refused")
	// errHeld: another process has the lock of an order.
	errHeld = errors.New("another process has the order of this scrub")
)

// validate refuses pieces that are not all in one block. Errors: errOrder.
func (o Order) validate() error {
	if len(o.Pieces) > MostPieces || o.BlockBytes <= 0 {
		return fmt.Errorf("%w: %d pieces of blocks of %d bytes: accepted are %d", errOrder, len(o.Pieces), o.BlockBytes, MostPieces)
	}
	for _, p := range o.Pieces {
		if p.Offset < 0 || p.Length <= 0 || p.Length > PieceBytes || p.Offset > o.BlockBytes-p.Length {
			return fmt.Errorf("%w: %d bytes from %d on of a block of %d: accepted are 1 to %d that are all in the block", errOrder, p.Length, p.Offset, o.BlockBytes, PieceBytes)
		}
	}
	return nil
}

// matches says how a live table is not that of the order. Errors: errOrder.
func (o Order) matches(t devmapper.Table) error {
	c, ok := t.Cache()
	if !ok {
		return fmt.Errorf("%w: device %s is no cache", errOrder, o.Device)
	}
	for _, d := range []struct{ part, ordered, devno string }{
		{"metadata", o.Meta, c.Metadata}, {"data", o.Data, c.Data}, {"origin", o.Origin, c.Origin},
	} {
		if live, err := devmapper.DevPath(d.devno); err != nil || live != d.ordered {
			return fmt.Errorf("%w: the %s of device %s is %s, and not %s", errOrder, d.part, o.Device, d.devno, d.ordered)
		}
	}
	switch {
	case int64(c.ChunkSectors)*devmapper.SectorSize != o.BlockBytes:
		return fmt.Errorf("%w: device %s has blocks of %d sectors, and not of %d bytes", errOrder, o.Device, c.ChunkSectors, o.BlockBytes)
	case o.Renew && c.Mode != devmapper.Writethrough:
		return fmt.Errorf("%w: nothing is replaced in mode %s", errOrder, c.Mode)
	}
	return nil
}

func readOrder(file string) (o Order, err error) {
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		return o, fmt.Errorf("%s: %w", file, err)
	}
	return o, nil
}

// holdOrder takes the lock of an order (flock(2)), until the file that it returns is closed. Errors:
// fs.ErrNotExist of an order that has gone; errHeld.
func holdOrder(file string) (*os.File, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errHeld
	}
	if err == nil {
		err = stillNamed(f, file)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return f, nil
}

// stillNamed says that a file is not the one of its name any more. Errors: fs.ErrNotExist.
func stillNamed(f *os.File, file string) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(file)
	if err == nil && !os.SameFile(mine, there) {
		err = fs.ErrNotExist
	}
	return err
}
