package epoch

import (
	"fmt"
	"sync"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Names are the storage servers' own names, by those that the controller's configuration gives
// them, as far as they are known (states.md, Several storage servers).
type Names struct {
	mu  sync.Mutex
	own map[string]string
}

// claim notes a server's own name. It fails if a server that comes before it, by the name of the
// configuration, calls itself the same: their records of epochs would be one, and so may they be.
// Errors: ErrUnavailable.
func (n *Names) claim(name, own string) error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.own == nil {
		n.own = map[string]string{}
	}
	n.own[name] = own
	for other, is := range n.own {
		if is == own && other < name {
			return fmt.Errorf("%w: target %q and %s are one storage server, or two with one name: both call themselves %s (serverID of nearflash-target); nothing is ordered by the name %q until one of them is taken out of the configuration, or is named otherwise",
				volume.ErrUnavailable, name, configured(other), own, name)
		}
	}
	return nil
}

// configured is a name of the configuration, in words.
func configured(name string) string {
	if name == "" {
		return "the default storage server"
	}
	return fmt.Sprintf("target %q", name)
}
