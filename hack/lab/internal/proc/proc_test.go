package proc

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	tests := map[string]struct {
		line    string
		want    stat
		wantErr bool
	}{
		"plain": {
			line: "42 (etcd) S 1 42 42 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 12345 1 1",
			want: stat{state: 'S', ppid: 1, session: 42, threads: 1, start: 12345},
		},
		"name with blanks and parentheses": {
			line: "7 (a ) S 9 (b) R 3 7 6 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 99 1 1",
			want: stat{state: 'R', ppid: 3, session: 6, threads: 1, start: 99},
		},
		"leader of threads that still end": {
			line: "42 (etcd) Z 1 42 42 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 9 0 12345 1 1",
			want: stat{state: 'Z', ppid: 1, session: 42, threads: 9, start: 12345},
		},
		"short":   {line: "7 (a) R 3 7", wantErr: true},
		"no name": {line: "7 a R 3 7", wantErr: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(tc.line)
			if (err != nil) != tc.wantErr {
				t.Fatalf("error %v, wanted one: %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(stat{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseNsLink(t *testing.T) {
	if got, err := parseNsLink("net:[4026531840]"); err != nil || got != 4026531840 {
		t.Errorf("got %d, %v", got, err)
	}
	if _, err := parseNsLink("mnt:[1]"); err == nil {
		t.Error("a mount namespace is accepted")
	}
}

func here(f func() error) error { return f() }

func TestStopEndsTheWholeSession(t *testing.T) {
	dir := t.TempDir()
	table := NewTable(dir)
	log := filepath.Join(dir, "log")
	rec, err := table.Start(here, Spec{
		Name: "sh", Path: "/bin/sh", Log: log, Env: os.Environ(),
		// A child in the background, and a leader that ignores the first signal.
		Args: []string{"-c", "trap '' TERM; sleep 300 & echo started; wait; wait"},
	})
	if err != nil {
		t.Fatal(err)
	}
	poll(t.Context(), func() bool {
		b, _ := os.ReadFile(log)
		return strings.Contains(string(b), "started") && len(rec.members()) == 2
	})
	if !rec.Alive() {
		t.Fatal("the process is not alive after the start")
	}
	if err := table.Stop(t.Context(), rec, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if left := rec.members(); len(left) != 0 || rec.Alive() {
		t.Errorf("still alive: %v", left)
	}
	if _, err := table.Get("sh"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("record after stop: %v, want none", err)
	}
}

// listenOn is what a process of this test program listens on instead of testing.
const listenOn = "NEARFLASH_TEST_LISTEN"

func TestMain(m *testing.M) {
	if path := os.Getenv(listenOn); path != "" {
		listen(path)
	}
	os.Exit(m.Run())
}

// listen listens at a port, with so many threads that their end takes a while, names
// it in the file at path, and waits to be killed.
func listen(path string) {
	var threads sync.WaitGroup
	for range 1000 {
		threads.Add(1)
		go func() {
			runtime.LockOSThread()
			threads.Done()
			_ = unix.Pause()
		}()
	}
	threads.Wait()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = os.WriteFile(path, []byte(l.Addr().String()), 0o600)
	}
	if err != nil {
		panic(err)
	}
	for { // the runtime's own signals end a pause
		_ = unix.Pause()
	}
}

// What a process held is free once Stop returns, also if its threads end after their
// leader: the next etcd listens where the last one did.
func TestStopFreesThePort(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	table := NewTable(dir)
	for i := range 5 {
		at := filepath.Join(dir, "address-"+strconv.Itoa(i))
		rec, err := table.Start(here, Spec{
			Name: "listener", Path: self, Env: append(os.Environ(), listenOn+"="+at), Log: filepath.Join(dir, "log"),
		})
		if err != nil {
			t.Fatal(err)
		}
		var address []byte
		poll(t.Context(), func() bool {
			address, _ = os.ReadFile(at)
			return len(address) > 0 || !rec.Alive()
		})
		if err := table.Stop(t.Context(), rec, 0); err != nil {
			t.Fatal(err)
		}
		if len(address) == 0 {
			t.Fatal("the listener did not start")
		}
		l, err := net.Listen("tcp", string(address))
		if err != nil {
			t.Fatalf("after the end of round %d: %v", i, err)
		}
		_ = l.Close()
	}
}

func TestStopSparesForeign(t *testing.T) {
	dir := t.TempDir()
	table := NewTable(dir)
	rec, err := table.Start(here, Spec{Name: "s", Path: "/bin/sleep", Args: []string{"300"}, Log: filepath.Join(dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	stranger := rec
	stranger.StartTime-- // same number, another process
	if stranger.Alive() {
		t.Error("a process with another start time counts as the recorded one")
	}
	if err := table.Stop(t.Context(), stranger, time.Second); err != nil {
		t.Fatal(err)
	}
	if !rec.Alive() {
		t.Error("a process that is not the recorded one was ended")
	}
	if err := table.Stop(t.Context(), rec, 0); err != nil {
		t.Fatal(err)
	}
}
