package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/driver"
	"github.com/nearflash/nearflash/hack/lab/internal/node"
	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// Files that the storage server's guest has.
const (
	targetProgram = "nearflash-target" // in the share
	targetConfig  = driver.ConfigDir + "/config.yaml"
	// FaultDir is where a test arms fault points, in every guest.
	FaultDir = "/var/lib/nearflash/faults"
	faultEnv = "NEARFLASH_FAULT_DIR"
)

// ErrGuestSetup is returned when a guest's agent gave up.
var ErrGuestSetup = errors.New("guest is not usable")

// bootGuest starts a guest, unless it runs, and does not wait for it. Its disks
// are kept from its last run.
func (l *Lab) bootGuest(ctx context.Context, s state, n plan.Node) error {
	if rec, err := l.Procs.Get(n.Name); err == nil && rec.Alive() {
		return nil
	}
	if err := l.mustBeOfOneTime(n); err != nil {
		return err
	}
	share := l.Paths.Share(n.Name)
	for _, dir := range []string{share, l.Paths.NodeLogs(n.Name), l.Paths.Images()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("folder of %s: %w", n.Name, err)
		}
	}
	cfg, err := l.guestConfig(s, n)
	if err != nil {
		return err
	}
	if err := writeConfig(share, cfg); err != nil {
		return err
	}
	disk, size, memory := l.guestDisk(n), s.Sizes.SSDMiB, s.Sizes.WorkerMemoryMiB
	if n.Role == plan.RoleStorage {
		size, memory = s.Sizes.StorageMiB, s.Sizes.StorageMemoryMiB
	}
	if err := node.MakeDisk(disk, size<<20); err != nil {
		return err
	}
	return l.startGuest(ctx, s, n, disk, memory)
}

// guestDisk is a guest's second disk: one for both servers of a pair.
func (l *Lab) guestDisk(n plan.Node) string {
	if n == plan.Spare() {
		n = plan.Storage()
	}
	return l.Paths.Disk(n.Name, secondDisk(n))
}

// startGuest starts the process that is a guest, with what is plugged into it.
func (l *Lab) startGuest(ctx context.Context, s state, n plan.Node, disk string, memoryMiB int) error {
	unlock, err := l.lockPlugged(ctx, n.Name)
	if err != nil {
		return err
	}
	defer unlock()
	plugged, err := l.readPlugged(n.Name)
	if err != nil {
		return err
	}
	console := node.Console{Guest: n.Name, RunDir: l.Paths.Node(n.Name)}
	if err := console.Clear(); err != nil {
		return err
	}
	spec, err := l.Backend.Spec(node.Guest{
		Name: n.Name, Kernel: s.Kernel, Boot: l.Paths.Boot(), Share: l.Paths.Share(n.Name),
		RootBase: s.NodeBase, RootCOW: l.Paths.Disk(n.Name, rootDisk), Disks: []string{disk}, Plugged: plugged,
		Shared:    s.StoragePair && n.Role == plan.RoleStorage,
		MemoryMiB: memoryMiB, Tap: n.Tap, RunDir: l.Paths.Node(n.Name), Console: l.Paths.Console(n.Name),
	})
	if err != nil {
		return err
	}
	return l.startProcess(ctx, spec)
}

// guestConfig is what the agent of a guest is told.
func (l *Lab) guestConfig(s state, n plan.Node) (agentapi.Config, error) {
	hosts := map[string]string{}
	for _, other := range s.nodes() {
		hosts[other.Name] = other.IP
	}
	cfg := agentapi.Config{
		Node: n.Name, Role: n.Role, Token: s.Token,
		Network: &agentapi.Network{
			IP: fmt.Sprintf("%s/%d", n.IP, plan.PrefixBits), MAC: n.MAC, Gateway: plan.HostIP,
			Routes: plan.PodRoutes(n.Name), Hosts: hosts,
		},
		Mounts: []agentapi.Mount{
			{Source: l.Paths.NodeLogs(n.Name), Target: filepath.Join(agentapi.ShareDir, agentapi.LogDir)},
			{Source: l.Paths.Images(), Target: agentapi.ImageDir},
		},
	}
	var err error
	switch n.Role {
	case plan.RoleWorker:
		cfg.Worker, err = l.workerConfig(s, n)
	case plan.RoleStorage:
		cfg.Storage, err = l.storageConfig(s, n)
		cfg.Services = []agentapi.Service{{
			Name: targetProgram, Argv: []string{filepath.Join(agentapi.ShareDir, targetProgram), "--config", targetConfig, "--v=2"},
			Env: []string{faultEnv + "=" + FaultDir}, Address: fmt.Sprintf("%s:%d", s.serverOf(n).ip, plan.TargetPort), Stopped: s.StoragePair,
		}}
	}
	return cfg, err
}

func (l *Lab) workerConfig(s state, n plan.Node) (*agentapi.Worker, error) {
	dir := l.Paths.PKI()
	w := &agentapi.Worker{
		PodCIDR: n.PodCIDR, APIURL: fmt.Sprintf("https://%s:%d", plan.HostIP, plan.APIPort),
		ReadOnlyRoot: s.ReadOnlyRoot,
	}
	if !s.WithoutISCSID {
		w.Initiator = "iqn.2026-01.io.nearflash.lab:" + n.Name
	}
	err := readFiles(map[string]*[]byte{
		l.Paths.Kubeconfig(n.Name):               &w.Kubeconfig,
		pki.Cert(dir, pki.CAName):                &w.CA,
		pki.Cert(dir, pki.KubeletServer(n.Name)): &w.ServingCert,
		pki.Key(dir, pki.KubeletServer(n.Name)):  &w.ServingKey,
	})
	return w, err
}

// server is a storage server: where it is reached, its own name, and its certificate's.
type server struct{ ip, name, pair string }

// serverOf is the storage server that a guest is, or, of a pair, may be.
func (s state) serverOf(n plan.Node) server {
	if n == plan.Second() {
		return server{ip: n.IP, name: n.Name, pair: pki.TargetServer2}
	}
	return server{ip: s.targetIP(), name: plan.Storage().Name, pair: pki.TargetServer}
}

func (l *Lab) storageConfig(s state, n plan.Node) (*agentapi.Storage, error) {
	dir, server := l.Paths.PKI(), s.serverOf(n)
	var cert, key, ca []byte
	err := readFiles(map[string]*[]byte{
		pki.Cert(dir, server.pair):  &cert,
		pki.Key(dir, server.pair):   &key,
		pki.Cert(dir, pki.TargetCA): &ca,
	})
	if err != nil {
		return nil, err
	}
	values := driver.TargetConfiguration(server.ip, server.name, plan.VolumeGroup)
	if s.StoragePair {
		values["stateVolume"] = agentapi.StateVolume
	}
	config, err := json.MarshalIndent(values, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", targetProgram, err)
	}
	return &agentapi.Storage{
		Delay: s.Sizes.StorageDelay, Pair: s.StoragePair, First: n == plan.Storage(),
		Files: map[string][]byte{targetConfig: config, driver.CertFile: cert, driver.KeyFile: key, driver.CAFile: ca},
	}, nil
}

func readFiles(files map[string]*[]byte) error {
	for path, to := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		*to = b
	}
	return nil
}

// awaitGuests waits until these guests have started all that their roles ask
// for, have loaded the staged images, and the cluster lists the workers among
// them as usable.
func (l *Lab) awaitGuests(ctx context.Context, s state, nodes []plan.Node) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		g.Go(func() error {
			st, err := l.awaitAgent(ctx, s, n)
			if err != nil {
				return err
			}
			l.say("%s: services started %.1f s after its boot", n.Name, st.Uptime())
			if n.Role != plan.RoleWorker {
				return nil
			}
			// The kubelet takes some seconds to become Ready, which the import uses.
			if err := l.loadImages(ctx, s, n); err != nil {
				return err
			}
			if err := l.awaitNode(ctx, n, st.BootID); err != nil {
				return err
			}
			l.say("%s: Ready", n.Name)
			return nil
		})
	}
	return g.Wait()
}

func (l *Lab) awaitAgent(ctx context.Context, s state, n plan.Node) (agentapi.Status, error) {
	var st agentapi.Status
	agent := l.agent(n, s.Token)
	err := until(ctx, "the agent of "+n.Name, func(ctx context.Context) (bool, error) {
		if err := l.mustLive(n.Name); err != nil {
			return true, err
		}
		// A guest that is still booting answers neither yes nor no.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var err error
		if st, err = agent.Status(ctx); err != nil {
			return false, err
		}
		if st.Error != "" {
			return true, fmt.Errorf("%w: %s: %s", ErrGuestSetup, n.Name, st.Error)
		}
		return st.Ready, nil
	})
	return st, err
}

func (l *Lab) awaitNode(ctx context.Context, n plan.Node, bootID string) error {
	api, err := l.api()
	if err != nil {
		return err
	}
	return until(ctx, "node "+n.Name+" to become Ready", func(ctx context.Context) (bool, error) {
		list, err := api.Nodes(ctx)
		if err != nil {
			return false, err
		}
		for _, have := range list {
			if have.Name != n.Name {
				continue
			}
			if have.Usable(bootID) {
				return true, nil
			}
			return false, fmt.Errorf("node %s: ready %v (%s), taints %v", n.Name, have.Ready, have.Reason, have.Taints)
		}
		return false, fmt.Errorf("node %s has not registered", n.Name)
	})
}

// Kill ends a guest at once and keeps its disks, like a loss of power.
func (l *Lab) Kill(ctx context.Context, name string) error {
	unlock, err := l.Lock(ctx, lockWait)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := l.load()
	if err != nil {
		return err
	}
	if _, err := s.find(name); err != nil {
		return err
	}
	rec, err := l.Procs.Get(name)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %s", ErrEnded, name)
	}
	if err != nil {
		return err
	}
	return l.Procs.Stop(ctx, rec, 0)
}

// Start boots a guest that was killed and waits until it is usable again.
// Starting one that runs only waits.
func (l *Lab) Start(ctx context.Context, name string) error {
	unlock, err := l.Lock(ctx, lockWait)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := l.load()
	if err != nil {
		return err
	}
	n, err := s.find(name)
	if err != nil {
		return err
	}
	if err := l.bootGuest(ctx, s, n); err != nil {
		return err
	}
	return l.awaitGuests(ctx, s, []plan.Node{n})
}
