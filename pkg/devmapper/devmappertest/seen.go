package devmappertest

import (
	"context"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// Seen is a kernel that says something else of one cache than it is.
type Seen struct {
	devmapper.Client

	Device string
	Change func(*devmapper.CacheStatus)
}

// Status implements devmapper.Client.
func (s Seen) Status(ctx context.Context, name string) (devmapper.CacheStatus, bool, error) {
	st, found, err := s.Client.Status(ctx, name)
	if name == s.Device {
		s.Change(&st)
	}
	return st, found, err
}
