package node

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/volume"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// kernel shows one cache, and says what it is told about its volumes.
type kernel struct{ statusErr error }

func (k *kernel) StatusAll(context.Context) (map[string]devmapper.CacheStatus, error) {
	return map[string]devmapper.CacheStatus{"nf-busy": {ChunkSectors: 256, CacheTotal: 100, CacheUsed: 50, Features: []string{"writeback"}}}, k.statusErr
}

func (k *kernel) StatsAll(context.Context, string) (map[string]devmapper.Stats, error) {
	return nil, nil
}

// withSampler is a plugin of one volume that is attached, and one whose cache is kept.
func withSampler(t *testing.T, socket string, k *kernel) *plugin {
	t.Helper()
	s, err := observe.Open(observe.Config{
		Kernel: k, Dir: t.TempDir(), Now: func() time.Time { return noon },
		Volumes: func() ([]observe.Volume, error) {
			return []observe.Volume{{ID: "busy", Attached: true, Cached: true, Mode: volume.ModeWriteback}, {ID: "kept", Cached: true}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &plugin{cfg: Config{FiguresSocket: socket}, sampler: s}
}

// start serves figures until the end of the test.
func (p *plugin) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.serveFigures(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the plugin would end: %v", err)
		}
	})
}

// asked runs the command until the plugin listens.
func asked(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := Figures{Out: &out}
	fs := flag.NewFlagSet(figures.Command, flag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		// In this order: a socket that was there listens, or is about to.
		_, there := os.Stat(c.socket)
		err := c.Run(t.Context())
		if err == nil || there == nil && !strings.Contains(err.Error(), "connection refused") && !strings.Contains(err.Error(), "no such file") || time.Now().After(end) {
			return out.String(), err
		}
	}
}

// TestFiguresSocket: the command has the figures of the plugin, over a socket that root alone can
// reach, also where a plugin that was killed has left one.
func TestFiguresSocket(t *testing.T) {
	for name, stale := range map[string]bool{"first start": false, "after a kill": true} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			socket := filepath.Join(dir, "s")
			if stale {
				leaveSocket(t, socket)
			}
			withSampler(t, socket, &kernel{}).start(t)
			text, err := asked(t, "--figures-socket="+socket)
			if err != nil {
				t.Fatal(err)
			}
			got, err := figures.Parse([]byte(text))
			chunks := func(n int64) *int64 { n *= 128 << 10; return &n }
			var bounds []int64
			for _, b := range devmapper.StatsBounds() {
				bounds = append(bounds, b.Microseconds())
			}
			want := figures.Answer{Version: 1, Time: noon, BoundsMicros: bounds, Volumes: []figures.Volume{{ID: "busy", Totals: &figures.Totals{}, Cache: v1alpha1.CacheStatus{
				Mode: v1alpha1.CacheModeWriteback, Health: v1alpha1.CacheHealthy, ObservedTime: metav1.NewTime(noon),
				SizeBytes: chunks(100), UsedBytes: chunks(50), DirtyBytes: chunks(0),
			}}}}
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			for path, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, socket: 0o600 | os.ModeSocket} {
				if info, err := os.Stat(path); err != nil || info.Mode() != want {
					t.Errorf("%s has %v, %v, want %v", path, info.Mode(), err, want)
				}
			}
		})
	}
}

// leaveSocket makes a socket that nobody serves.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFiguresOfSilentSSD: what could not be measured is said beside what could.
func TestFiguresOfSilentSSD(t *testing.T) {
	a, err := currentFigures(t.Context(), withSampler(t, "", &kernel{statusErr: errors.New("dmsetup hangs")}).sampler)
	if err != nil || a.Problem != "dmsetup hangs" || len(a.Volumes) != 1 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestFiguresTotals: what was counted comes in bytes and nanoseconds, by device.
func TestFiguresTotals(t *testing.T) {
	s := observe.Sample{
		Counts: observe.Counts{ReadHits: 1, ReadMisses: 2, WriteHits: 3, WriteMisses: 4, Promotions: 5, Demotions: 6},
		IO: map[observe.Device]observe.IO{observe.DeviceSSD: {
			Read: devmapper.IOStats{Operations: 7, Sectors: 8, Nanoseconds: 9}, Write: devmapper.IOStats{Operations: 10, Sectors: 11, Nanoseconds: 12},
			Histogram: devmapper.Histogram{13},
		}},
	}
	histogram := make([]uint64, len(devmapper.Histogram{}))
	histogram[0] = 13
	want := &figures.Totals{ReadHits: 1, ReadMisses: 2, WriteHits: 3, WriteMisses: 4, Promotions: 5, Demotions: 6, Devices: map[string]figures.Device{
		"ssd": {Reads: 7, ReadBytes: 4096, Writes: 10, WriteBytes: 5632, Nanos: 21, Histogram: histogram},
	}}
	if diff := cmp.Diff(want, totals(s)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// nothing is a meter that measures nothing.
type nothing struct{}

func (nothing) Current(context.Context) observe.Snapshot {
	return observe.Snapshot{Err: errors.New("the pass before has not ended")}
}

func TestNoFigures(t *testing.T) {
	if _, err := currentFigures(t.Context(), nothing{}); err == nil || !strings.Contains(err.Error(), "the pass before has not ended") {
		t.Errorf("without a measurement: %v", err)
	}
	dir := t.TempDir()
	t.Run("no plugin", func(t *testing.T) {
		c := Figures{Out: &bytes.Buffer{}, socket: filepath.Join(dir, "none"), timeout: time.Second}
		if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a plugin that does not answer", func(t *testing.T) {
		l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "silent"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if out, err := asked(t, "--figures-socket="+l.Addr().String(), "--timeout=50ms"); err == nil || !strings.Contains(err.Error(), "has not answered within 50ms") || out != "" {
			t.Errorf("%q, %v", out, err)
		}
	})
	// The plugin goes on: it has volumes to serve.
	for name, socket := range map[string]string{"no socket is wanted": "", "no place for the socket": "/dev/null/s", "a path that no socket has": filepath.Join(dir, strings.Repeat("x", 120))} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			if err := withSampler(t, socket, &kernel{}).serveFigures(ctx); err != nil || ctx.Err() != nil {
				t.Errorf("%v, %v", err, ctx.Err())
			}
		})
	}
}
