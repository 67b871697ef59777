package ioerrors

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/tracefs"
)

const (
	devA, devB = "253:3", "253:8"
	numberA    = 253<<20 | 3
	format     = "name: block_bio_complete\n\tfield:dev_t dev;\toffset:8;\n\tfield:sector_t sector;\n\tfield:int error;\toffset:28;\n"
	stats      = "entries: %d\noverrun: 0\ncommit overrun: 0\nbytes: 0\noldest event ts:     0.000000\nnow ts:     7.123456\ndropped events: %d\nread events: 0\n"
)

// hist is what a kernel shows of a histogram with these entries.
func hist(dropped int, entries ...string) string {
	return "# event histogram\n#\n# trigger info: hist:keys=dev:vals=hitcount:sort=hitcount:size=1024 if error != 0 [active]\n#\n\n" +
		strings.Join(append(entries, ""), "\n") + fmt.Sprintf("\nTotals:\n    Hits: 9\n    Entries: %d\n    Dropped: %d\n", len(entries), dropped)
}

// fake is a tree of files that answers as tracefs does.
type fake struct {
	*Counter

	t         *testing.T
	histogram bool
	// writes is how many writes are left until one fails, as if the process had ended there.
	writes int
	format string
}

func newFake(t *testing.T, histogram bool) *fake {
	t.Helper()
	f := &fake{t: t, histogram: histogram, writes: -1, format: format}
	f.Counter = New(t.TempDir(), t.TempDir())
	f.kernel = kernel{
		mount: func(string) error { return nil },
		mkdir: f.mkdir,
		drop:  os.RemoveAll,
		write: f.write,
	}
	f.put(filepath.Join(f.tracefs, tracefs.Instances, "somebody-else", "trace"), "")
	for _, devno := range []string{devA, devB} {
		f.put(filepath.Join(f.sysfs, "dev/block", devno, "dm/name"), "nf-x.origin")
	}
	return f
}

func (f *fake) put(path, text string) {
	f.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	files := map[string]string{
		event + "/format": f.format, event + "/trigger": "# Available triggers:\n", event + "/filter": "none", event + "/enable": "0", "buffer_size_kb": "1408",
		"tracing_on": "1", "options/overwrite": "1", "options/pause-on-trace": "1", "options/context-info": "1", "options/hex": "0",
		"trace": "# tracer: nop\n#\n", "per_cpu/cpu0/stats": fmt.Sprintf(stats, 0, 0), "per_cpu/cpu1/stats": fmt.Sprintf(stats, 0, 0),
	}
	if f.histogram {
		files[event+"/hist"] = ""
	}
	for file, text := range files {
		f.put(filepath.Join(dir, file), text)
	}
	return nil
}

var errKilled = errors.New("killed")

func (f *fake) write(file, text string) error {
	if f.writes == 0 {
		return errKilled
	}
	f.writes--
	if filepath.Base(file) == "trigger" {
		return tracefs.Write(filepath.Join(filepath.Dir(file), "hist"), hist(0))
	}
	return os.WriteFile(file, []byte(text+"\n"), 0o600)
}

// another is the Counter of a later process.
func (f *fake) another() *Counter {
	c := New(f.tracefs, f.sysfs)
	c.kernel = f.kernel
	return c
}

func (f *fake) want(c *Counter, devno string, n uint64) (id string) {
	f.t.Helper()
	got, id, err := c.Count(f.t.Context(), devno)
	if err != nil || got != n || !strings.HasSuffix(id, " "+devno) {
		f.t.Errorf("count of %s: %d, %q, %v, want %d", devno, got, id, err, n)
	}
	return id
}

// dirs are our instances.
func (f *fake) dirs() []string {
	f.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(f.tracefs, tracefs.Instances, prefix+"*"))
	if err != nil {
		f.t.Fatal(err)
	}
	return dirs
}

func (f *fake) only() string {
	f.t.Helper()
	dirs := f.dirs()
	if len(dirs) != 1 {
		f.t.Fatalf("instances: %v, want one", dirs)
	}
	return dirs[0]
}

// fails lets bios of A fail: one is known, as many as lost are not.
func (f *fake) fails(lost int) {
	dir := f.only()
	f.put(filepath.Join(dir, event, "hist"), hist(lost, fmt.Sprintf("{ dev: %10d } hitcount: %10d", numberA, 1), "{ dev:          7 } hitcount:          5"))
	if !f.histogram {
		f.put(filepath.Join(dir, "trace"), "# tracer: nop\n#\nblock_bio_complete: 253,3 WS 0 + 8 [-5]\nblock_bio_complete: 0,7 RA 0 + 8 [-61]\nCPU:1 [LOST 4 EVENTS]\n")
		f.put(filepath.Join(dir, "per_cpu/cpu0/stats"), fmt.Sprintf(stats, 2, 0))
		f.put(filepath.Join(dir, "per_cpu/cpu1/stats"), fmt.Sprintf(stats, 0, lost))
		if err := os.Remove(filepath.Join(dir, event, "hist")); err != nil {
			f.t.Fatal(err)
		}
	}
}

func eachFake(t *testing.T, test func(t *testing.T, f *fake)) {
	t.Helper()
	for name, histogram := range map[string]bool{"histogram": true, "ring": false} {
		t.Run(name, func(t *testing.T) { test(t, newFake(t, histogram)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCount(t *testing.T) {
	eachFake(t, func(t *testing.T, f *fake) {
		if _, _, err := f.Count(t.Context(), devA); !errors.Is(err, ErrNotCounting) {
			t.Errorf("count before a start: %v", err)
		}
		must(t, f.Start(t.Context(), devA))
		id := f.want(f.Counter, devA, 0)
		f.fails(0)
		must(t, f.another().Start(t.Context(), devB))
		if again := f.want(f.another(), devA, 1); again != id {
			t.Errorf("id %s, later %s", id, again)
		}
		f.want(f.Counter, devB, 0)
		f.fails(4)
		f.want(f.Counter, devA, 5)
		f.want(f.Counter, devB, 4)
		must(t, f.Stop(t.Context()))
		if dirs := f.dirs(); len(dirs) > 0 {
			t.Errorf("after a stop there is %v", dirs)
		}
		must(t, f.Start(t.Context(), devA))
		if again := f.want(f.Counter, devA, 0); again == id {
			t.Errorf("a count that began anew has the old id %s", id)
		}
		if _, err := os.Stat(filepath.Join(f.tracefs, tracefs.Instances, "somebody-else/trace")); err != nil {
			t.Errorf("the instance of somebody else: %v", err)
		}
	})
}

// A process that ends at any write leaves nothing that counts too little.
func TestStartCutShort(t *testing.T) {
	eachFake(t, func(t *testing.T, f *fake) {
		drop := f.kernel.drop
		for at := 0; ; at++ {
			f.kernel.drop = func(string) error { return errKilled } // nor does it clean up
			f.writes = at
			err := f.Start(t.Context(), devA)
			if err == nil {
				if at < 2 {
					t.Errorf("%d writes", at)
				}
				break
			}
			if !errors.Is(err, errKilled) || !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
			f.only()
			if n, id, err := f.Count(t.Context(), devA); !errors.Is(err, ErrNotCounting) && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after %d writes: %d, %s, %v", at, n, id, err)
			}
			f.kernel.drop, f.writes = drop, -1
			must(t, f.another().Start(t.Context(), devA))
			f.want(f.Counter, devA, 0)
			f.only()
			must(t, f.another().Stop(t.Context()))
		}
	})
}

// What somebody has changed is no count any more.
func TestChanged(t *testing.T) {
	for file, text := range map[string]string{
		event + "/hist": strings.Replace(hist(0), "[active]", "[paused]", 1), event + "/enable": "0", event + "/filter": "none", "tracing_on": "0",
		"options/overwrite": "1", "options/context-info": "1", "options/pause-on-trace": "1", "per_cpu/cpu1/stats": "entries: 1\n", "trace": "tracing_mark_write: x\n",
		"per_cpu/cpu0/stats": fmt.Sprintf(stats, 3, 0), // and none of them in the trace
	} {
		t.Run(file, func(t *testing.T) {
			f := newFake(t, file == event+"/hist")
			must(t, f.Start(t.Context(), devA))
			id := f.want(f.Counter, devA, 0)
			f.put(filepath.Join(f.only(), file), text)
			if n, _, err := f.Count(t.Context(), devA); !errors.Is(err, ErrNotCounting) {
				t.Errorf("count: %d, %v", n, err)
			}
			must(t, f.Start(t.Context(), devA))
			if again := f.want(f.Counter, devA, 0); again == id {
				t.Errorf("the id is still %s", id)
			}
			f.only()
		})
	}
}

func TestUnavailable(t *testing.T) {
	refuse := func(string) error { return unix.EPERM }
	for name, change := range map[string]func(f *fake){
		"no tracefs":      func(f *fake) { f.kernel.mount = refuse },
		"locked down":     func(f *fake) { must(f.t, os.RemoveAll(filepath.Join(f.tracefs, tracefs.Instances))) },
		"no instance":     func(f *fake) { f.kernel.mkdir = refuse },
		"no write":        func(f *fake) { f.kernel.write = func(string, string) error { return unix.EINVAL } },
		"no such event":   func(f *fake) { f.kernel.mkdir = func(dir string) error { return os.Mkdir(dir, 0o700) } },
		"another event":   func(f *fake) { f.format = "\tfield:dev_t dev;\n\tfield:u8 status;\n" },
		"does not count":  func(f *fake) { f.kernel.write = func(string, string) error { return nil } },
		"no real tracefs": func(f *fake) { f.kernel.mount = tracefs.Mount; f.tracefs += "/none" },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, true)
			change(f)
			if err := f.Start(t.Context(), devA); !errors.Is(err, ErrUnavailable) {
				t.Errorf("start: %v", err)
			}
			if dirs := f.dirs(); len(dirs) > 0 {
				t.Errorf("left are %v", dirs)
			}
			if _, _, err := f.Count(t.Context(), devA); !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotCounting) {
				t.Errorf("count: %v", err)
			}
			must(t, f.Stop(t.Context()))
		})
	}
}

func TestBioBased(t *testing.T) {
	f := newFake(t, true)
	f.put(filepath.Join(f.sysfs, "dev/block/8:0/mq/0/tags"), "")
	f.put(filepath.Join(f.sysfs, "dev/block/253:5/dm/name"), "requests")
	f.put(filepath.Join(f.sysfs, "dev/block/253:5/mq/0/tags"), "")
	for _, devno := range []string{"8:0", "253:5", "253:6"} {
		if err := f.Start(t.Context(), devno); !errors.Is(err, ErrNotBioBased) {
			t.Errorf("%s: %v", devno, err)
		}
	}
	for _, devno := range []string{"", "253", "253:", ":3", "253:x", "4096:0", "1:1048576", "253:3 "} {
		if err := f.Start(t.Context(), devno); err == nil || errors.Is(err, ErrNotBioBased) {
			t.Errorf("%q: %v", devno, err)
		}
		if _, _, err := f.Count(t.Context(), devno); err == nil {
			t.Errorf("%q can be counted", devno)
		}
	}
}

// Many at once make one instance, and nobody waits for ever.
func TestLock(t *testing.T) {
	f := newFake(t, true)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := f.another().Start(t.Context(), devA); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f.only()
	unlock, err := f.open(t.Context())
	must(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	began := time.Now()
	if err := f.another().Start(ctx, devA); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Minute {
		t.Errorf("start while another process changes something: %v", err)
	}
}
