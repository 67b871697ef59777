package stack

import (
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ErrBlockSize: what is below the cache has larger logical blocks than the origin
// (states.md, Logical blocks).
var ErrBlockSize = errors.New("the volume's logical blocks are too small for a cache here")

// Coarse says why no cache with such logical blocks can be before the origin, or "". A
// size of 0 is not known.
func Coarse(cache, origin int) string {
	if cache <= origin || origin == 0 {
		return ""
	}
	return fmt.Sprintf("the SSD has logical blocks of %d bytes, the volume of %d: a filesystem with sectors of %d bytes does not work above larger ones", cache, origin, origin)
}

// BlocksOf is the size of the logical blocks of a device in bytes, 0 if it cannot be
// told, as of a device that is going away.
func (s *Stack) BlocksOf(devno string) int {
	n, err := blockdev.LogicalBlock(s.Sysfs, devno)
	if err != nil {
		return 0
	}
	return n
}

// CheckData judges the data device of a new cache, with everything that is below it: also
// what a peer exports.
func (s *Stack) CheckData(devno string, o Origin) error {
	if why := Coarse(s.BlocksOf(devno), o.LogicalBlock); why != "" {
		return fmt.Errorf("%w: %s", ErrBlockSize, why)
	}
	return nil
}

// LiveBlocks says why a live cache should not be before its origin, or "".
func (s *Stack) LiveBlocks(id volume.ID, infos map[string]devmapper.Info) string {
	top, origin := infos[layout.Device(id, layout.Top)], infos[layout.Device(id, layout.Origin)]
	if !top.HasLive || !origin.HasLive {
		return ""
	}
	return Coarse(s.BlocksOf(top.DevNo()), s.BlocksOf(origin.DevNo()))
}
