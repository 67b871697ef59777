package health

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/nearflash/nearflash/pkg/testutil/loopback"
)

// identity is a plugin that answers.
type identity struct {
	csi.UnimplementedIdentityServer
}

func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "test"}, nil
}

// get returns the answer to a request with method at url.
func get(t *testing.T, method, url string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return loopback.Answer(t, http.DefaultClient, req)
}

// serve serves the probes until the test ends, and returns their URL.
func serve(t *testing.T, endpoint string, ready Check) string {
	t.Helper()
	address := loopback.FreeAddress(t)
	ctx, end := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- Serve(ctx, address, endpoint, ready) }()
	t.Cleanup(func() {
		end()
		if err := <-result; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	url := "http://" + address
	for range 100 {
		if code, _ := get(t, http.MethodGet, url+"/nothing"); code == http.StatusNotFound {
			return url
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the probes are not served")
	return ""
}

func wantAnswer(t *testing.T, url string, wantCode int, wantBody string) {
	t.Helper()
	if code, body := get(t, http.MethodGet, url); code != wantCode || !strings.Contains(body, wantBody) {
		t.Errorf("%s answers %d %q, want %d and %q", url, code, body, wantCode, wantBody)
	}
}

func TestReady(t *testing.T) {
	var broken atomic.Bool
	url := serve(t, "unix:///nowhere", func(context.Context) error {
		if broken.Load() {
			return errors.New("the pool is not there")
		}
		return nil
	})
	wantAnswer(t, url+"/readyz", http.StatusOK, "ok\n")
	broken.Store(true)
	wantAnswer(t, url+"/readyz", http.StatusServiceUnavailable, "the pool is not there\n")
	broken.Store(false)
	wantAnswer(t, url+"/readyz", http.StatusOK, "ok\n")
	if code, _ := get(t, http.MethodPost, url+"/readyz"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST answers %d", code)
	}
}

// TestHealthy asks while the CSI services are not there, are there, and are gone.
func TestHealthy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	url := serve(t, "unix://"+path, func(context.Context) error { return errors.New("not ready") })
	wantAnswer(t, url+"/healthz", http.StatusServiceUnavailable, "CSI services on "+path+": ")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, identity{})
	go func() { _ = server.Serve(listener) }() // it ends below
	defer server.Stop()
	wantAnswer(t, url+"/healthz", http.StatusOK, "ok\n")
	wantAnswer(t, url+"/readyz", http.StatusServiceUnavailable, "not ready\n")
	server.Stop()
	wantAnswer(t, url+"/healthz", http.StatusServiceUnavailable, "CSI services on "+path+": ")
	wantAnswer(t, serve(t, "tcp://somewhere", nil)+"/healthz", http.StatusServiceUnavailable, "tcp://somewhere")
}

func TestServe(t *testing.T) {
	if err := Serve(t.Context(), "", "", nil); err != nil {
		t.Errorf("without an address: %v", err)
	}
	if err := Serve(t.Context(), "nonsense", "", nil); err == nil || !strings.Contains(err.Error(), "health endpoint") {
		t.Errorf("with an address that is none: %v", err)
	}
}
