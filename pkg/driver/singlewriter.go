package driver

import (
	"fmt"
	"sync"

	"github.com/nearflash/nearflash/pkg/volume"
)

// singleWriters refuses a second target path for a volume whose access mode is
// SINGLE_NODE_SINGLE_WRITER. It knows the paths published by this process; for
// those of an earlier one kubelet and the scheduler, which keep a second pod
// from a ReadWriteOncePod claim in the first place, are the guard.
type singleWriters struct {
	mu      sync.Mutex
	targets map[volume.ID]map[string]struct{}
}

// admit reports ErrInUse when single is asked for and another path has the volume.
func (s *singleWriters) admit(id volume.ID, target string, single bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !single {
		return nil
	}
	for other := range s.targets[id] {
		if other != target {
			return fmt.Errorf("%w: volume %s has access mode SINGLE_NODE_SINGLE_WRITER and is published at %s", volume.ErrInUse, id, other)
		}
	}
	return nil
}

func (s *singleWriters) add(id volume.ID, target string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets == nil {
		s.targets = map[volume.ID]map[string]struct{}{}
	}
	if s.targets[id] == nil {
		s.targets[id] = map[string]struct{}{}
	}
	s.targets[id][target] = struct{}{}
}

func (s *singleWriters) remove(id volume.ID, target string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.targets[id], target)
	if len(s.targets[id]) == 0 {
		delete(s.targets, id)
	}
}
