package figures_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/figures"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		want    figures.Answer
		wantErr string
	}{
		"volumes": {
			text: `{"version":1,"volumes":[{"id":"pvc-1","cache":{"mode":"writeback","health":"Healthy","hitRate":{"readPercent":94}}}]}`,
			want: figures.Answer{Version: 1, Volumes: []figures.Volume{{ID: "pvc-1", Cache: v1alpha1.CacheStatus{
				Mode: v1alpha1.CacheModeWriteback, Health: v1alpha1.CacheHealthy, HitRate: v1alpha1.HitRate{ReadPercent: new(int32(94))},
			}}}},
		},
		"none":                      {text: `{"version":1,"volumes":[]}`, want: figures.Answer{Version: 1, Volumes: []figures.Volume{}}},
		"of a plugin that can more": {text: `{"version":1,"volumes":[],"weather":"fine"}`, want: figures.Answer{Version: 1, Volumes: []figures.Volume{}}},
		"a problem that moves the cursor": {
			text: `{"version":1,"problem":"an SSD\u001b[2J\nhangs","volumes":[]}`, want: figures.Answer{Version: 1, Problem: "an SSD [2J hangs", Volumes: []figures.Volume{}},
		},
		"another version":         {text: `{"version":2,"volumes":{"pvc-1":{}}}`, wantErr: "another version: 2, known is 1"},
		"no version":              {text: `{}`, wantErr: "another version: 0"},
		"no JSON":                 {text: "unexpected\n", wantErr: "figures: invalid character"},
		"half of it":              {text: `{"version":1,"vol`, wantErr: "figures: unexpected end"},
		"nothing":                 {wantErr: "figures: unexpected end"},
		"another type":            {text: `{"version":1,"volumes":[{"id":7}]}`, wantErr: "figures: json: cannot unmarshal"},
		"a mode moves the cursor": {text: `{"version":1,"volumes":[{"id":"a","cache":{"mode":"\u001b[2J"}}]}`, wantErr: "is no word"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := figures.Parse([]byte(c.text))
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("got %v, want %q", err, c.wantErr)
				}
				if strings.HasPrefix(c.wantErr, "another version") != errors.Is(err, figures.ErrVersion) {
					t.Errorf("%v is ErrVersion: %v", err, errors.Is(err, figures.ErrVersion))
				}
				return
			}
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// serve serves a source at a socket, until the end of the test.
func serve(t *testing.T, source figures.Source) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- figures.Serve(ctx, l, source, nil) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("served until %v", err)
		}
	})
	return socket
}

// TestAsk: what the source says comes through, in the version that is spoken.
func TestAsk(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	want := figures.Answer{Version: 1, Problem: "one SSD hangs", Volumes: []figures.Volume{{ID: "pvc-1", Cache: v1alpha1.CacheStatus{Mode: v1alpha1.CacheModeNone, ObservedTime: at}}}}
	socket := serve(t, func(context.Context) (figures.Answer, error) {
		return figures.Answer{Problem: want.Problem, Volumes: want.Volumes}, nil
	})
	text, err := figures.Ask(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	got, err := figures.Parse(text)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// Nothing else is served there.
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	resp, err := (&http.Client{Transport: transport}).Get("http://plugin/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("/metrics: %s, %v", resp.Status, err)
	}
}

func TestAskFails(t *testing.T) {
	t.Run("nobody serves", func(t *testing.T) {
		if _, err := figures.Ask(t.Context(), filepath.Join(t.TempDir(), "s")); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("nothing was measured", func(t *testing.T) {
		socket := serve(t, func(context.Context) (figures.Answer, error) {
			return figures.Answer{}, errors.New("the kernel is silent")
		})
		if _, err := figures.Ask(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "503 Service Unavailable: the kernel is silent") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no answer", func(t *testing.T) {
		ended := make(chan struct{})
		socket := serve(t, func(ctx context.Context) (figures.Answer, error) {
			defer close(ended)
			<-ctx.Done()
			return figures.Answer{}, ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := figures.Ask(ctx, socket); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		<-ended // the plugin does not go on for somebody who has left
	})
	t.Run("an answer without end", func(t *testing.T) {
		socket := serve(t, func(context.Context) (figures.Answer, error) {
			return figures.Answer{Problem: strings.Repeat("x", figures.MaxBytes)}, nil
		})
		if _, err := figures.Ask(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("got %v", err)
		}
	})
}
