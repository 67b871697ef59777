package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// guest is the serving process's state.
type guest struct {
	cfg agentapi.Config
	// bootID tells this boot from all others.
	bootID string
	sup    *supervisor
	// powerOff ends the guest.
	powerOff context.CancelFunc

	mu       sync.Mutex
	ready    bool
	failure  string
	timeline []agentapi.Step
}

// serve is the child of process 1. Its result is the child's exit status.
func serve() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	g := &guest{sup: newSupervisor(), powerOff: cancel}
	if err := g.configure(); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	if g.cfg.Role == plan.RoleScript {
		if err := g.runScript(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			return 1
		}
		return exitPowerOff
	}
	if err := g.listen(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	// A failed set-up leaves the guest running: it can be looked into.
	if err := g.setup(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		g.fail(err)
	} else {
		g.setReady()
	}
	<-ctx.Done()
	g.sup.wg.Wait()
	return exitPowerOff
}

// configure reads the configuration and does what every role needs.
func (g *guest) configure() error {
	b, err := os.ReadFile(filepath.Join(agentapi.ShareDir, agentapi.ConfigFile))
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := json.Unmarshal(b, &g.cfg); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("identity of the boot: %w", err)
	}
	g.bootID = strings.TrimSpace(string(id))
	if err := setupNetwork(g.cfg.Node, g.cfg.Network); err != nil {
		return err
	}
	mounts := make([]mount, 0, len(g.cfg.Mounts))
	for _, m := range g.cfg.Mounts {
		mounts = append(mounts, hostMount(m.Source, m.Target))
	}
	return mountAll(mounts)
}

func (g *guest) setup(ctx context.Context) error {
	if err := g.setupCommon(ctx); err != nil {
		return err
	}
	var err error
	switch g.cfg.Role {
	case plan.RoleWorker:
		err = g.setupWorker(ctx)
	case plan.RoleStorage:
		err = g.setupStorage(ctx)
	default:
		err = fmt.Errorf("role %q is unknown", g.cfg.Role)
	}
	if err != nil {
		return err
	}
	for _, svc := range g.cfg.Services {
		if err := g.runService(ctx, svc); err != nil {
			return err
		}
	}
	return nil
}

// runService starts a service and waits until it is usable.
func (g *guest) runService(ctx context.Context, svc agentapi.Service) error {
	if svc.Stopped {
		g.sup.hold(svc.Name)
	}
	if err := g.sup.run(ctx, svc); err != nil || svc.Stopped {
		return err
	}
	if err := awaitService(ctx, svc); err != nil {
		return err
	}
	g.step(svc.Name)
	return nil
}

// awaitService waits until a service is usable.
func awaitService(ctx context.Context, svc agentapi.Service) error {
	if svc.Address == "" {
		return nil
	}
	return waitFor(ctx, svc.Name, startLimit, func() bool {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", svc.Address)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

func (g *guest) step(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timeline = append(g.timeline, agentapi.Step{Name: name, Seconds: uptime()})
}

func (g *guest) setReady() {
	g.step("ready")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready = true
}

func (g *guest) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failure = err.Error()
}

func (g *guest) status() agentapi.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return agentapi.Status{
		Node: g.cfg.Node, BootID: g.bootID, Ready: g.ready, Error: g.failure,
		Services: g.sup.counts(), Running: g.sup.runs(), Timeline: append([]agentapi.Step(nil), g.timeline...),
	}
}

// uptime returns the seconds since the kernel started, or 0 when unreadable.
func uptime() float64 {
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	s, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return s
}
