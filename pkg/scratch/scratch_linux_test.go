package scratch

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/figures"
)

func task() Task {
	return Task{BlockBytes: 4096, ReadPercent: 70, Random: true, SyncEvery: 8, Depths: []int{1, 16}, Time: time.Second}
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Task)
		wantErr string
	}{
		"as it is":            {func(*Task) {}, ""},
		"large requests":      {func(t *Task) { t.BlockBytes = 1 << 20 }, ""},
		"no block":            {func(t *Task) { t.BlockBytes = 0 }, "block-bytes 0: accepted is a multiple of 4096"},
		"half a block":        {func(t *Task) { t.BlockBytes = 6144 }, "block-bytes 6144"},
		"more than it has":    {func(t *Task) { t.BlockBytes = 128 << 20 }, "block-bytes 134217728"},
		"reads":               {func(t *Task) { t.ReadPercent = 101 }, "read-percent 101: accepted is 0 to 100"},
		"flushes":             {func(t *Task) { t.SyncEvery = -1 }, "sync-every -1"},
		"no depth":            {func(t *Task) { t.Depths = nil }, "depths []"},
		"depth 0":             {func(t *Task) { t.Depths = []int{0} }, "depth 0: accepted is 1 to 1024"},
		"many requests":       {func(t *Task) { t.Depths = []int{1, 1025} }, "depth 1025"},
		"too much memory":     {func(t *Task) { t.BlockBytes = 1 << 20; t.Depths = []int{65} }, "depth 65: accepted is 1 to 64"},
		"no time":             {func(t *Task) { t.Time = 0 }, "time 0s"},
		"nobody would end it": {func(t *Task) { t.Time = time.Hour }, "time 1h0m0s: accepted is up to 1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			task := task()
			c.change(&task)
			err := task.Check()
			if c.wantErr == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrTask) || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("got %v, want %q", err, c.wantErr)
			}
		})
	}
}

// device is one in memory, which notes what was done to it.
type device struct {
	mu                   sync.Mutex
	written              []bool
	reads, writes, syncs int
	unwritten            bool
	fails                error
}

func (d *device) at(n int, off int64, write bool) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails != nil {
		return 0, d.fails
	}
	for b := off / 4096; b < (off+int64(n))/4096; b++ {
		d.unwritten = d.unwritten || !write && !d.written[b]
		d.written[b] = d.written[b] || write
	}
	if write {
		d.writes++
	} else {
		d.reads++
	}
	return n, nil
}

func (d *device) ReadAt(p []byte, off int64) (int, error)  { return d.at(len(p), off, false) }
func (d *device) WriteAt(p []byte, off int64) (int, error) { return d.at(len(p), off, true) }
func (d *device) Close() error                             { return nil }
func (d *device) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syncs++
	return nil
}

func TestMeasure(t *testing.T) {
	const size = 3<<20 + 8192 // no whole number of the blocks that it is filled by
	d := &device{written: make([]bool, size/4096)}
	it := task()
	it.Time = 30 * time.Millisecond
	runs, err := Measure(t.Context(), d, size, it, func() string { return "cpu 1" })
	if err != nil {
		t.Fatal(err)
	}
	if d.unwritten {
		t.Error("something was read that was never written: an SSD answers that without its flash")
	}
	var all, reads, syncs uint64
	for i, r := range runs {
		all, reads, syncs = all+r.Reads.Total()+r.Writes.Total(), reads+r.Reads.Total(), syncs+r.Syncs.Total()
		if r.Depth != it.Depths[i] || r.Seconds < it.Time.Seconds() || r.Bytes != 4096*(r.Reads.Total()+r.Writes.Total()) || r.CPU != [2]string{"cpu 1", "cpu 1"} {
			t.Errorf("run %d: depth %d, %f s, %d bytes, %v", i, r.Depth, r.Seconds, r.Bytes, r.CPU)
		}
		if r.Syncs.Total() != r.Writes.Total()/8 {
			t.Errorf("%d flushes for %d writes", r.Syncs.Total(), r.Writes.Total())
		}
	}
	fills := uint64(4)
	if uint64(d.reads) != reads || uint64(d.writes) != all-reads+fills || uint64(d.syncs) != syncs+1 {
		t.Errorf("counted %d reads of %d requests and %d flushes; the device had %d reads, %d writes, %d flushes", reads, all, syncs, d.reads, d.writes, d.syncs)
	}
	if share := 100 * float64(reads) / float64(all); share < 60 || share > 80 {
		t.Errorf("%.0f%% were reads, of 70 that were asked for", share)
	}
}

func TestMeasureFails(t *testing.T) {
	d := &device{written: make([]bool, 1024), fails: unix.EIO}
	if _, err := Measure(t.Context(), d, 4<<20, task(), func() string { return "" }); !errors.Is(err, unix.EIO) {
		t.Errorf("a device that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.fails = nil
	if _, err := Measure(ctx, d, 4<<20, task(), func() string { return "" }); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// A sequential task has each worker take the next block.
func TestInOrder(t *testing.T) {
	d := &device{written: make([]bool, 4096)}
	it := task()
	it.Random, it.ReadPercent, it.Time, it.SyncEvery = false, 0, 5*time.Millisecond, 0
	l := &load{f: d, size: 16 << 20, task: it}
	r, err := l.run(t.Context(), 4)
	if err != nil {
		t.Fatal(err)
	}
	first := min(int(r.Writes.Total()), len(d.written))
	for i, w := range d.written[:first] {
		if !w {
			t.Fatalf("block %d of the first %d was left out", i, first)
		}
	}
}

func TestBin(t *testing.T) {
	for d := time.Duration(0); d < 2*time.Second; d = d*17/16 + 1 {
		if b := bin(d); float64(b) < 0.99*float64(d) || float64(b) > 1.01*float64(d) {
			t.Errorf("%d is counted as %d", d, b)
		}
	}
}

// Only the device that was lent is used.
func TestOther(t *testing.T) {
	sysfs := fstest.MapFS{"dev/block/254:7/dm/uuid": {Data: []byte("LVM-abc\n")}}
	for name, c := range map[string]struct {
		uuid  string
		minor uint32
		ok    bool
	}{
		"it is":               {"LVM-abc", 7, true},
		"another one":         {"LVM-def", 7, false},
		"nothing was lent":    {"", 7, false},
		"no device of mapper": {"LVM-abc", 8, false},
	} {
		if err := check(Device{Path: "/dev/dm-7", UUID: c.uuid}, unix.Mkdev(254, c.minor), sysfs); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrOther) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(Device{Path: filepath.Join(t.TempDir(), "none"), UUID: "LVM-abc"}, sysfs); err == nil {
		t.Error("a path without a device was opened")
	}
}

func TestParse(t *testing.T) {
	want := Answer{Version: 1, Bytes: 1 << 30, Place: "on one SSD", Runs: []Run{{Depth: 1, Seconds: 1, Reads: Counts{1000: 7}, Writes: Counts{}, Syncs: Counts{}}}}
	text, err := Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, text := range []string{`{"version":2}`, `{}`} {
		if _, err := Parse([]byte(text)); !errors.Is(err, figures.ErrVersion) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"", "{", `{"version":1,"runs":7}`} {
		if _, err := Parse([]byte(text)); err == nil || errors.Is(err, figures.ErrVersion) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// lender lends once.
type lender struct {
	err  error
	lent chan int64
	back chan struct{}
}

func (l *lender) LendScratch(_ context.Context, bytes int64) (Device, func(context.Context) error, error) {
	if l.err != nil {
		return Device{}, nil, l.err
	}
	l.lent <- bytes
	return Device{Path: "/dev/dm-7", UUID: "LVM-abc", Bytes: bytes, Place: "on one SSD"}, func(ctx context.Context) error {
		close(l.back)
		return ctx.Err() // that of the request has ended
	}, nil
}

// served serves a lender until stop is called, at the latest at the end of the test.
func served(t *testing.T, l Lender) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+Path, Handler(l))
	// Shorter than a measurement.
	s := &http.Server{Handler: mux, WriteTimeout: 50 * time.Millisecond, ReadHeaderTimeout: time.Second}
	s.SetKeepAlivesEnabled(false)
	go func() { _ = s.Serve(listener) }()
	stop = func() { _ = s.Close() }
	t.Cleanup(stop)
	return socket, stop
}

func TestBorrow(t *testing.T) {
	for name, end := range map[string]func(back, stop func()){
		"it is given back":   func(back, _ func()) { back() },
		"the plugin is over": func(_, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			l := &lender{lent: make(chan int64, 1), back: make(chan struct{})}
			socket, stop := served(t, l)
			d, back, err := Borrow(t.Context(), socket, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			if want := (Device{Path: "/dev/dm-7", UUID: "LVM-abc", Bytes: 1 << 30, Place: "on one SSD"}); d != want || <-l.lent != 1<<30 {
				t.Errorf("lent: %+v, want %+v", d, want)
			}
			select {
			case <-l.back:
				t.Error("it was taken back while somebody had it")
			case <-time.After(200 * time.Millisecond):
			}
			end(back, stop)
			select {
			case <-l.back:
			case <-time.After(10 * time.Second):
				t.Error("it is not taken back")
			}
			back()
		})
	}
}

func TestBorrowRefused(t *testing.T) {
	socket, _ := served(t, &lender{err: errors.New("no scratch volume: the pool is full")})
	if _, _, err := Borrow(t.Context(), socket, 1<<30); err == nil || err.Error() != "no scratch volume: the pool is full" {
		t.Errorf("got %v", err)
	}
	if _, _, err := Borrow(t.Context(), socket, 0); err == nil || !strings.Contains(err.Error(), `bytes "0": accepted`) {
		t.Errorf("got %v", err)
	}
	if _, _, err := Borrow(t.Context(), filepath.Join(t.TempDir(), "none"), 1<<30); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
}
