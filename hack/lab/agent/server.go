package main

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// listen serves the host's requests in the background.
func (g *guest) listen(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(plan.AgentPort)))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+agentapi.StatusPath, g.handleStatus)
	mux.HandleFunc("POST "+agentapi.ExecPath, handleExec)
	mux.HandleFunc("POST "+agentapi.RestartPath+"{service}", handleService(func(_ context.Context, name string) error { return g.sup.restart(name) }))
	mux.HandleFunc("POST "+agentapi.StopPath+"{service}", handleService(g.sup.stop))
	mux.HandleFunc("POST "+agentapi.StartPath+"{service}", handleService(g.sup.start))
	mux.HandleFunc("POST "+agentapi.PowerOffPath, g.handlePowerOff)
	srv := &http.Server{Handler: g.authorize(mux), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		// Only a broken listener ends it; the guest is then seen as dead.
		fmt.Fprintln(os.Stderr, "agent: server:", srv.Serve(l))
	}()
	return nil
}

// authorize lets only bearers of the lab's token pass: pods share the network.
func (g *guest) authorize(next http.Handler) http.Handler {
	want := []byte("Bearer " + g.cfg.Token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.cfg.Token == "" || subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			http.Error(w, "not the token of this lab", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (g *guest) handleStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(g.status())
}

// handleService does something to the service in a request's path.
func handleService(do func(ctx context.Context, name string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := do(r.Context(), r.PathValue("service")); err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
		}
	}
}

func (g *guest) handlePowerOff(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusOK)
	// The answer goes out before the guest does.
	time.AfterFunc(100*time.Millisecond, g.powerOff)
}

func handleExec(w http.ResponseWriter, r *http.Request) {
	var req agentapi.ExecRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Argv) == 0 {
		http.Error(w, "want a JSON object with argv", http.StatusBadRequest)
		return
	}
	rc := http.NewResponseController(w)
	frames := agentapi.NewFrameWriter(w, func() { _ = rc.Flush() })
	code, err := exitCode(execute(r.Context(), req, frames))
	if err != nil {
		_ = frames.Write(agentapi.FrameError, []byte(err.Error()))
		return
	}
	_ = frames.Exit(code)
}

// execute runs the command in a session of its own, and kills that when the
// client goes away.
func execute(ctx context.Context, req agentapi.ExecRequest, frames *agentapi.FrameWriter) error {
	cmd := exec.CommandContext(ctx, req.Argv[0], req.Argv[1:]...)
	cmd.Env = append(environment(), req.Env...)
	cmd.Dir = req.Dir
	cmd.Stdin = bytes.NewReader(req.Stdin)
	cmd.Stdout = frames.Stream(agentapi.FrameStdout)
	cmd.Stderr = frames.Stream(agentapi.FrameStderr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// What it left running in the background must not hold the answer back.
	cmd.WaitDelay = 2 * time.Second
	return cmd.Run()
}
