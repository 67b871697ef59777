package controller

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/app/health"
	"github.com/nearflash/nearflash/pkg/testutil/loopback"
)

// TestReady asks the probe over HTTP while an API server is there, away, and there again, and
// counts what that is asked.
func TestReady(t *testing.T) {
	const every = time.Second
	var asked atomic.Int32
	var away atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if away.Load() || r.URL.Path != "/version" {
			panic(http.ErrAbortHandler) // the connection is cut
		}
		_, _ = io.WriteString(w, `{"major":"1"}`)
	}))
	defer server.Close()
	check, err := ready(t.Context(), &rest.Config{Host: server.URL}, every)
	if err != nil {
		t.Fatal(err)
	}
	a := &app{result: make(chan error, 1)}
	address := loopback.FreeAddress(t)
	a.url = "http://" + address
	go func() { a.result <- health.Serve(t.Context(), address, "", check) }()
	a.waitFor(t, "/readyz", http.StatusOK)

	begun := time.Now()
	asked.Store(0)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 20 {
				if code, body := a.get(t, "/readyz"); code != http.StatusOK {
					t.Errorf("answers %d %s", code, body)
				}
			}
		})
	}
	all.Wait()
	// One more, as an interval may be over when they begin.
	if most := int32(time.Since(begun)/every) + 1; asked.Load() > most {
		t.Errorf("400 requests within %s asked the API server %d times, want %d at most", time.Since(begun), asked.Load(), most)
	}
	away.Store(true)
	if body := a.waitFor(t, "/readyz", http.StatusServiceUnavailable); !strings.HasPrefix(body, "API server: ") || !strings.Contains(body, "EOF") {
		t.Errorf("without the API server it says %q", body)
	}
	away.Store(false)
	a.waitFor(t, "/readyz", http.StatusOK)
}

// TestReadyUnconfigured wants a configuration that no client can be made of to be said at once.
func TestReadyUnconfigured(t *testing.T) {
	if _, err := ready(t.Context(), &rest.Config{Host: "://"}, time.Second); err == nil || !strings.Contains(err.Error(), "readiness") {
		t.Errorf("%v", err)
	}
}
