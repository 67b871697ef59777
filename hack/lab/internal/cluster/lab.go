// Package cluster brings a lab up, changes it and takes it down: a control plane
// as host processes in a network namespace, and guests as nodes and as storage
// server.
package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/netns"
	"github.com/nearflash/nearflash/hack/lab/internal/node"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// ErrNotUp is returned for a command that needs a lab when there is none.
var ErrNotUp = errors.New("the lab is not up")

// ErrBusy is returned when another command is changing the lab.
var ErrBusy = errors.New("another command is changing this lab")

// lockWait is how long a short command waits for another one to end.
const lockWait = 2 * time.Minute

// ErrEnded is returned when a process of the lab is not running though it should.
var ErrEnded = errors.New("process has ended")

// Lab is one lab, up or not.
type Lab struct {
	ID string
	// Checkout is the source tree; empty until the state is read for a lab that is
	// used from outside of one.
	Checkout string
	Paths    plan.Paths
	NS       netns.NS
	Procs    proc.Table
	Backend  node.Backend
	// Out takes progress.
	Out io.Writer

	sayMu sync.Mutex
	began time.Time
}

// New returns the lab with that identity; its state lies below base (see
// [plan.NewPaths]).
func New(id, checkout, base string, out io.Writer) (*Lab, error) {
	paths, err := plan.NewPaths(base, id)
	if err != nil {
		return nil, err
	}
	return &Lab{
		ID: id, Checkout: checkout, Paths: paths, NS: netns.NS{Name: plan.NetnsName(id)},
		Procs: proc.NewTable(paths.Procs()), Backend: node.UML{}, Out: out, began: time.Now(),
	}, nil
}

// Sizes are the sizes of a lab's disks and guests.
type Sizes struct {
	SSDMiB           int64 `json:"ssdMiB"`
	StorageMiB       int64 `json:"storageMiB"`
	WorkerMemoryMiB  int   `json:"workerMemoryMiB"`
	StorageMemoryMiB int   `json:"storageMemoryMiB"`
	// StorageDelay is how far away the storage server is, there and back.
	StorageDelay time.Duration `json:"storageDelay"` // nanoseconds
}

// state is what is remembered of a lab between commands.
type state struct {
	Checkout string `json:"checkout"`
	// Token opens the agents.
	Token string `json:"token"`
	// Kernel and NodeBase, the image below every guest's root, are files of the
	// artifact cache.
	Kernel   string `json:"kernel"`
	NodeBase string `json:"nodeBase"`
	// Bin maps the names of host programs to their paths.
	Bin   map[string]string `json:"bin"`
	Sizes Sizes             `json:"sizes"`
	// StoragePair is set when there are two storage servers with one disk.
	StoragePair bool `json:"storagePair,omitempty"`
	// SecondStorage is set when there is a storage server with a name beside the default one.
	SecondStorage bool `json:"secondStorage,omitempty"`
	// WithoutISCSID is set when no iscsid runs on the workers.
	WithoutISCSID bool `json:"withoutISCSID,omitempty"`
	// ReadOnlyRoot is set when nobody can write the root of the workers, but for /var.
	ReadOnlyRoot bool `json:"readOnlyRoot,omitempty"`
	// Complete is set when everything was started once. A lab without it is what
	// a killed command left, and is good for nothing.
	Complete bool `json:"complete"`
	// Driver is set when the driver was installed.
	Driver bool `json:"driver"`
	// Origin is set when an origin driver runs, its name and zones.
	Origin *Origin     `json:"origin,omitempty"`
	Cuts   []netns.Cut `json:"cuts,omitempty"`
}

// nodes are the guests of the lab.
func (s state) nodes() []plan.Node {
	nodes := plan.Nodes()
	if s.StoragePair {
		nodes = append(nodes, plan.Spare())
	}
	if s.SecondStorage {
		nodes = append(nodes, plan.Second())
	}
	return nodes
}

// find returns the guest of that name; [plan.ErrUnknownNode] also for one that this lab has not.
func (s state) find(name string) (plan.Node, error) {
	n, err := plan.FindNode(name)
	if err == nil && n == plan.Spare() && !s.StoragePair {
		return plan.Node{}, fmt.Errorf("%w: the lab has no %s: `up --storage-pair`", plan.ErrUnknownNode, name)
	}
	if err == nil && n == plan.Second() && !s.SecondStorage {
		return plan.Node{}, fmt.Errorf("%w: the lab has no %s: `up --second-storage`", plan.ErrUnknownNode, name)
	}
	return n, err
}

// targetIP is where the default storage server is reached.
func (s state) targetIP() string {
	if s.StoragePair {
		return plan.PairIP
	}
	return plan.Storage().IP
}

func newToken() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	return hex.EncodeToString(b), nil
}

// load reads the lab's state; it returns [ErrNotUp] when there is none.
func (l *Lab) load() (state, error) {
	b, err := os.ReadFile(l.Paths.State())
	if errors.Is(err, os.ErrNotExist) {
		return state{}, fmt.Errorf("%w (lab %s)", ErrNotUp, l.ID)
	}
	if err != nil {
		return state{}, fmt.Errorf("state: %w", err)
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return state{}, fmt.Errorf("state: %w", err)
	}
	if l.Checkout == "" {
		l.Checkout = s.Checkout
	}
	return s, nil
}

func (l *Lab) save(s state) error {
	if err := writeJSON(l.Paths.State(), s); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// writeJSON replaces a file whole, or not at all.
func writeJSON(path string, value any) error {
	b, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// lockState locks the lab and reads its state, for a command that changes a lab that is
// up.
func (l *Lab) lockState(ctx context.Context) (s state, unlock func(), err error) {
	unlock, err = l.Lock(ctx, lockWait)
	if err != nil {
		return state{}, nil, err
	}
	if s, err = l.load(); err != nil {
		unlock()
		return state{}, nil, err
	}
	return s, unlock, nil
}

// Lock keeps other commands from changing the lab until the returned function is
// called. While another command holds it, it waits for at most that long, then
// returns [ErrBusy].
func (l *Lab) Lock(ctx context.Context, wait time.Duration) (func(), error) {
	path := l.Paths.Lock()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	limit := time.Now().Add(wait)
	err = until(ctx, "the lab's lock", func(context.Context) (bool, error) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return true, nil
		}
		return time.Now().After(limit), fmt.Errorf("%w (lab %s)", ErrBusy, l.ID)
	})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// say prints one line of progress with the time since the command's start.
func (l *Lab) say(format string, args ...any) {
	l.sayMu.Lock()
	defer l.sayMu.Unlock()
	fmt.Fprintf(l.Out, "%6.1fs  %s\n", time.Since(l.began).Seconds(), fmt.Sprintf(format, args...))
}

// Agent returns a client for a guest's agent.
func (l *Lab) Agent(name string) (*agentapi.Client, error) {
	s, err := l.load()
	if err != nil {
		return nil, err
	}
	n, err := s.find(name)
	if err != nil {
		return nil, err
	}
	return l.agent(n, s.Token), nil
}

func (l *Lab) agent(n plan.Node, token string) *agentapi.Client {
	return agentapi.NewClient(l.NS.DialContext, fmt.Sprintf("%s:%d", n.IP, plan.AgentPort), token)
}

// until calls ok at short intervals until it reports that it is done, with an
// error when nothing will change that any more, or ctx ends; the last passing
// trouble is in the error then.
func until(ctx context.Context, what string, ok func(context.Context) (bool, error)) error {
	for {
		done, err := ok(ctx)
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for %s: %w", what, context.Cause(ctx)), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
