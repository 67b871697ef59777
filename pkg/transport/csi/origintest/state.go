package origintest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/durable"
)

// state is all that the driver knows.
type state struct {
	// Volumes are by handle.
	Volumes  map[string]*vol `json:"volumes"`
	Breaches []string        `json:"breaches,omitempty"`
	// Serial numbers attachments: no two have the same publish_context.
	Serial int64 `json:"serial"`
}

type vol struct {
	Name    string            `json:"name"`
	Size    int64             `json:"size"`
	Context map[string]string `json:"context"`
	// Attached is the node, Publish its publish_context.
	Attached string             `json:"attached,omitempty"`
	Publish  map[string]string  `json:"publish,omitempty"`
	Nodes    map[string]*onNode `json:"nodes,omitempty"`
}

// onNode is what a node has of a volume.
type onNode struct {
	Staging string   `json:"staging,omitempty"`
	Targets []string `json:"targets,omitempty"`
	// Stayed are targets that the driver left when it unpublished them.
	Stayed []string `json:"stayed,omitempty"`
}

// node is what a node has of the volume; never nil.
func (v *vol) node(name string) *onNode {
	if v.Nodes == nil {
		v.Nodes = map[string]*onNode{}
	}
	if v.Nodes[name] == nil {
		v.Nodes[name] = &onNode{}
	}
	return v.Nodes[name]
}

// left lists what is attached, staged and published of the volume.
func (v *vol) left(handle string) []string {
	var out []string
	if v.Attached != "" {
		out = append(out, fmt.Sprintf("%s is attached to %s", handle, v.Attached))
	}
	for name, n := range v.Nodes {
		out = append(out, n.left(handle, name)...)
	}
	return out
}

func (n *onNode) left(handle, node string) []string {
	var out []string
	if n.Staging != "" {
		out = append(out, fmt.Sprintf("%s is staged on %s at %s", handle, node, n.Staging))
	}
	for _, target := range n.Targets {
		out = append(out, fmt.Sprintf("%s is published on %s at %s", handle, node, target))
	}
	return out
}

func (n *onNode) published(target string) bool { return slices.Contains(n.Targets, target) }

// store keeps the state in a directory, or in memory.
type store struct {
	dir string
	mu  sync.Mutex
	mem state
}

// do reads the state, has f change it, and keeps the change whatever f returns: a breach is
// one that is refused. Nobody else, in this process or in another, has it meanwhile.
func (s *store) do(f func(*state) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == "" {
		if s.mem.Volumes == nil {
			s.mem.Volumes = map[string]*vol{}
		}
		return f(&s.mem)
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // which unlocks
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock of the state: %w", err)
	}
	path := filepath.Join(s.dir, "state.json")
	var st state
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state: %w", err)
	}
	if st.Volumes == nil {
		st.Volumes = map[string]*vol{}
	}
	result := f(&st)
	if b, err = json.Marshal(st); err != nil {
		return err
	}
	return errors.Join(result, durable.WriteFile(path, b))
}
