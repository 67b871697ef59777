package iosizes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/tracefs"
)

const format = "name: block_bio_queue\n\tfield:dev_t dev;\n\tfield:sector_t sector;\n\tfield:unsigned int nr_sector;\n\tfield:char rwbs[10];\n"

// hist is what a kernel shows of a histogram with these entries.
func hist(entries ...string) string {
	return "# event histogram\n#\n# trigger info: hist:keys=dev,nr_sector.log2:vals=hitcount:sort=hitcount:size=8192 if rwbs ~ \"R*\" [active]\n#\n\n" +
		strings.Join(append(entries, ""), "\n") + fmt.Sprintf("\nTotals:\n    Hits: 9\n    Entries: %d\n    Dropped: 0\n", len(entries))
}

// fake is a tree of files that answers as tracefs does.
type fake struct {
	*Sampler

	t *testing.T
	// read is what the kernel counts in each sample.
	read []string
	// steps is how many calls are left until the process ends, if not negative.
	steps int
	made  int
}

var errKilled = errors.New("killed")

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, steps: -1, read: []string{"{ dev:  265289735, nr_sector: ~ 2^3  } hitcount:         90"}}
	f.Sampler = New(t.TempDir())
	if err := os.Mkdir(filepath.Dir(f.dir), 0o700); err != nil {
		t.Fatal(err)
	}
	f.offers(format, true)
	f.kernel = kernel{mount: f.step, mkdir: f.mkdir, drop: f.drop, write: f.write}
	f.Wait = f.wait
	return f
}

func (f *fake) step() error {
	if f.steps == 0 {
		return errKilled
	}
	f.steps--
	return nil
}

func (f *fake) put(path, text string) {
	f.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		f.t.Fatal(err)
	}
}

// offers is what the kernel can count.
func (f *fake) offers(format string, histograms bool) {
	dir := filepath.Join(f.tracing, event)
	f.put(filepath.Join(dir, "format"), format)
	if err := os.RemoveAll(filepath.Join(dir, "hist")); err != nil {
		f.t.Fatal(err)
	}
	if histograms {
		f.put(filepath.Join(dir, "hist"), "")
	}
}

func (f *fake) mkdir(dir string) error {
	if err := f.step(); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	f.made++
	for file, text := range map[string]string{"format": format, "trigger": "# Available triggers:\n", "hist": ""} {
		f.put(f.file(file), text)
	}
	f.put(filepath.Join(dir, "buffer_size_kb"), "1408")
	return nil
}

func (f *fake) drop(dir string) error {
	if err := f.step(); err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (f *fake) write(file, text string) error {
	if err := f.step(); err != nil {
		return err
	}
	if _, err := os.Stat(file); err != nil {
		return err
	}
	counts, err := os.ReadFile(f.file("hist"))
	switch {
	case filepath.Base(file) != "trigger":
		f.put(file, text)
	case err != nil:
		return err
	case text == trigger && len(counts) == 0:
		f.put(f.file("hist"), hist())
	case text == "!"+trigger && len(counts) > 0:
		f.put(f.file("hist"), "")
	default:
		f.t.Errorf("%q with %q", text, counts)
	}
	return nil
}

func (f *fake) wait(ctx context.Context, _ time.Duration) error {
	if err := f.step(); err != nil {
		return err
	}
	f.put(f.file("hist"), hist(f.read...))
	return ctx.Err()
}

func (f *fake) wantIdle() {
	f.t.Helper()
	if text, err := os.ReadFile(f.file("hist")); err != nil || len(text) > 0 {
		f.t.Errorf("counted outside of samples: %q, %v", text, err)
	}
}

var want = map[string]Counts{"253:7": {3: 90}}

// TestSample: the instance is made once, small, and counts during samples alone.
func TestSample(t *testing.T) {
	f := newFake(t)
	for range 2 {
		got, err := f.Sample(t.Context(), time.Second)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		f.wantIdle()
	}
	if size, err := os.ReadFile(filepath.Join(f.dir, "buffer_size_kb")); f.made != 1 || string(size) != "4" || err != nil {
		t.Errorf("made %d times, buffers of %s, %v", f.made, size, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := f.Sample(ctx, time.Second); !errors.Is(err, context.Canceled) || got != nil {
		t.Errorf("cut short: %v, %v", got, err)
	}
	f.wantIdle()
	for range 2 {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(f.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after stop: %v", err)
	}
}

// TestSampleKilled: whatever a process that was killed has left, the next one makes samples of its own.
func TestSampleKilled(t *testing.T) {
	for n := 0; ; n++ {
		f := newFake(t)
		f.steps = n
		f.read = append(f.read, "{ dev:          8, nr_sector: ~ 2^11 } hitcount:         10")
		_, err := f.Sample(t.Context(), time.Second)
		ended := err == nil
		if !ended && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		f.steps, f.read = -1, f.read[:1]
		got, err := f.Sample(t.Context(), time.Second)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("after %d steps: %v (-want +got):\n%s", n, err, diff)
		}
		f.wantIdle()
		if ended {
			if n < 5 {
				t.Errorf("killed at %d steps only", n)
			}
			return
		}
	}
}

// TestSampleUnavailable: a kernel that cannot count says so, and has no instance of ours.
func TestSampleUnavailable(t *testing.T) {
	for name, change := range map[string]func(*fake){
		"no tracefs":    func(f *fake) { f.kernel.mount = func() error { return tracefs.Mount(filepath.Join(f.dir, "none")) } },
		"no histograms": func(f *fake) { f.offers(format, false) },
		"other event":   func(f *fake) { f.offers(strings.Replace(format, "nr_sector", "bytes", 1), true) },
		"locked down":   func(f *fake) { f.kernel.mkdir = func(string) error { return os.ErrPermission } },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			change(f)
			if _, err := f.Sample(t.Context(), time.Second); !errors.Is(err, ErrUnavailable) {
				t.Errorf("%v, want ErrUnavailable", err)
			}
			if f.made > 0 {
				t.Error("an instance was made, which costs memory, to find out")
			}
			if _, err := os.Stat(f.dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left: %v", err)
			}
			if err := f.Stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
	}
}

func TestParse(t *testing.T) {
	const one = "{ dev:  265289735, nr_sector: ~ 2^3  } hitcount:         90"
	for name, c := range map[string]struct {
		text string
		want map[string]Counts
		err  error
	}{
		"empty":           {text: hist(), want: map[string]Counts{}},
		"sizes":           {text: hist(one, "{ dev:  265289735, nr_sector: ~ 2^11 } hitcount:          1", "{ dev:          7, nr_sector: ~ 2^0  } hitcount: 2"), want: map[string]Counts{"253:7": {3: 90, 11: 1}, "0:7": {0: 2}}},
		"one twice":       {text: hist(one, one), want: map[string]Counts{"253:7": {3: 180}}},
		"no room":         {text: strings.Replace(hist(one), "Dropped: 0", "Dropped: 2", 1), err: errRoom},
		"no trigger":      {err: tracefs.ErrNoHistogram},
		"other trigger":   {text: strings.Replace(hist(), `"R*"`, `"W*"`, 1), err: tracefs.ErrNoHistogram},
		"other key":       {text: hist("{ dev:  265289735 } hitcount: 1"), err: tracefs.ErrFormat},
		"exact sizes":     {text: hist("{ dev:  265289735, nr_sector:          8 } hitcount: 1"), err: tracefs.ErrFormat},
		"too large":       {text: hist("{ dev:  265289735, nr_sector: ~ 2^32 } hitcount: 1"), err: tracefs.ErrFormat},
		"too large a dev": {text: hist("{ dev:  4294967296, nr_sector: ~ 2^3 } hitcount: 1"), err: tracefs.ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(c.text)
			if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, c.err) {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(hist("{ dev:  265289735, nr_sector: ~ 2^3  } hitcount:         90"))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parse(text)
		if known := errors.Is(err, tracefs.ErrFormat) || errors.Is(err, tracefs.ErrNoHistogram) || errors.Is(err, errRoom); (err != nil) != known || err != nil && got != nil {
			t.Errorf("%v, %v", got, err)
		}
	})
}
