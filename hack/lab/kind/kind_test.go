package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/target"
)

// TestFiles reads what is written as those do whom it is for.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	s := storage{address: "192.0.2.7", server: "kind-1", group: "kind-1", device: "/dev/loop7"}
	if err := s.write(dir); err != nil {
		t.Fatal(err)
	}
	cfg, err := target.LoadConfig(filepath.Join(dir, "storage", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.ServerID != s.server || cfg.VolumeGroup != s.group || cfg.LVMDevices[0] != s.device || cfg.Portals[0] != "192.0.2.7:3260" {
		t.Errorf("configuration %+v", cfg)
	}
	cfg.TLS.CertFile = filepath.Join(dir, "storage", "tls.crt")
	cfg.TLS.KeyFile = filepath.Join(dir, "storage", "tls.key")
	cfg.TLS.ClientCAFile = filepath.Join(dir, "storage", "client-ca.crt")
	if _, err := target.ServerTLS(cfg.TLS); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Target struct{ Address string }
	}
	if err := json.Unmarshal(b, &values); err != nil || values.Target.Address != cfg.Listen {
		t.Errorf("values have the address %q, the server listens on %q (%v)", values.Target.Address, cfg.Listen, err)
	}
	if st, err := os.Stat(filepath.Join(dir, "values.yaml")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the private key can be read by others: %v, %v", st.Mode(), err)
	}
	if err := (storage{address: "storage"}).write(t.TempDir()); err == nil {
		t.Error("a name was taken for an address")
	}
}

// TestRelay: requests and answers arrive, whichever side ends first, and the end of
// the context ends what hangs.
func TestRelay(t *testing.T) {
	at := fmt.Sprintf("@nearflash-relay-%d", os.Getpid())
	daemon, err := net.Listen("unix", at+"-to")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := daemon.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 5)
			if _, err := io.ReadFull(c, buf); err == nil && string(buf) != "hangs" {
				_, _ = c.Write([]byte(strings.ToUpper(string(buf))))
				_ = c.Close()
			}
		}
	}()
	t.Cleanup(func() { _ = daemon.Close() })
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay(ctx, l, at+"-to") }()
	dial := func(say string) net.Conn {
		t.Helper()
		c, err := net.Dial("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(say)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	hanging := dial("hangs")
	for range 3 {
		if got, err := io.ReadAll(dial("login")); err != nil || string(got) != "LOGIN" {
			t.Errorf("answer %q, %v", got, err)
		}
	}
	cancel()
	_ = l.Close()
	if err := <-ended; err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := hanging.Read(make([]byte, 1)); err == nil {
		t.Error("the connection that hung is still open")
	}
}
