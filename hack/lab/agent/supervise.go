package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
)

// restartDelay is waited before a service that ended is started again.
const restartDelay = time.Second

// stopGrace is how long a service may take to end when asked to.
const stopGrace = 5 * time.Second

// supervisor keeps services running and remembers how often it started each.
type supervisor struct {
	wg sync.WaitGroup

	mu     sync.Mutex
	starts map[string]int
	// running has the process of each service that runs.
	running map[string]*os.Process
	// stopped has a channel for each service that is not to run, closed when it is again.
	stopped map[string]chan struct{}
	// known has the services that there are.
	known map[string]bool
}

func newSupervisor() *supervisor {
	return &supervisor{starts: map[string]int{}, running: map[string]*os.Process{}, stopped: map[string]chan struct{}{}, known: map[string]bool{}}
}

// run keeps the service running until ctx ends.
func (s *supervisor) run(ctx context.Context, svc agentapi.Service) error {
	logDir := filepath.Join(agentapi.ShareDir, agentapi.LogDir)
	log, err := os.OpenFile(filepath.Join(logDir, svc.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("log of %s: %w", svc.Name, err)
	}
	s.know(svc.Name)
	s.wg.Go(func() {
		defer log.Close()
		for s.awaitStart(ctx, svc.Name) == nil {
			err := s.runOnce(svc.Name, command(ctx, svc, log))
			if ctx.Err() != nil {
				return
			}
			fmt.Fprintf(log, "agent: %s ended (%v), starting it again\n", svc.Name, err)
			select {
			case <-ctx.Done():
			case <-time.After(restartDelay):
			}
		}
	})
	return nil
}

// know has a service that may be stopped and started.
func (s *supervisor) know(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[name] = true
}

// hold keeps a service from running until start.
func (s *supervisor) hold(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped[name] == nil {
		s.stopped[name] = make(chan struct{})
	}
}

// awaitStart waits while a service is stopped.
func (s *supervisor) awaitStart(ctx context.Context, name string) error {
	for ctx.Err() == nil {
		s.mu.Lock()
		stopped := s.stopped[name]
		s.mu.Unlock()
		if stopped == nil {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-stopped:
		}
	}
	return ctx.Err()
}

// errStopped is returned for a service that was stopped before it was started.
var errStopped = errors.New("stopped")

// runOnce runs the service's program to its end.
func (s *supervisor) runOnce(name string, cmd *exec.Cmd) error {
	s.mu.Lock()
	if s.stopped[name] != nil {
		s.mu.Unlock()
		return errStopped
	}
	s.starts[name]++
	err := cmd.Start()
	if err == nil {
		s.running[name] = cmd.Process
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	err = cmd.Wait()
	s.mu.Lock()
	delete(s.running, name)
	s.mu.Unlock()
	return err
}

// errNotRunning is returned for a service that is unknown or just not running.
var errNotRunning = errors.New("service does not run")

// restart asks a service to end; its loop then starts it again.
func (s *supervisor) restart(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.running[name]
	if p == nil {
		return fmt.Errorf("%w: %s", errNotRunning, name)
	}
	return p.Signal(syscall.SIGTERM)
}

// stop ends a service and keeps it from running until start.
func (s *supervisor) stop(ctx context.Context, name string) error {
	s.mu.Lock()
	known := s.known[name]
	s.mu.Unlock()
	if !known {
		return fmt.Errorf("%w: %s", errNotRunning, name)
	}
	s.hold(name)
	asked := time.Now()
	for {
		s.mu.Lock()
		p := s.running[name]
		s.mu.Unlock()
		if p == nil {
			return nil
		}
		signal := syscall.SIGTERM
		if time.Since(asked) > stopGrace {
			signal = syscall.SIGKILL
		}
		if err := p.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("end %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// start lets a service run that was stopped.
func (s *supervisor) start(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known[name] {
		return fmt.Errorf("%w: %s", errNotRunning, name)
	}
	if stopped := s.stopped[name]; stopped != nil {
		close(stopped)
		delete(s.stopped, name)
	}
	return nil
}

// runs are the services that run.
func (s *supervisor) runs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.running))
}

func command(ctx context.Context, svc agentapi.Service, log *os.File) *exec.Cmd {
	cmd := exec.CommandContext(ctx, svc.Argv[0], svc.Argv[1:]...)
	cmd.Env = append(environment(), svc.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	return cmd
}

func (s *supervisor) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.starts)
}

// output runs a set-up command to its end. Its output is in the error.
func output(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", filepath.Base(argv[0]), err, out)
	}
	return string(out), nil
}

// errTimeout is returned when something awaited did not come.
var errTimeout = errors.New("timed out")

// waitFor polls until ok holds.
func waitFor(ctx context.Context, what string, limit time.Duration, ok func() bool) error {
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: waiting %v for %s", errTimeout, limit, what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}
