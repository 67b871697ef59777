package cluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// machineLab is a lab whose state is that of one that is up, with the disks of a machine.
func machineLab(t *testing.T, n plan.Node, content string) *Lab {
	t.Helper()
	l := newTestLab(t, "image")
	if err := errors.Join(os.MkdirAll(l.Paths.Node(n.Name), 0o700), l.save(state{Complete: true})); err != nil {
		t.Fatal(err)
	}
	writeDisks(t, l, n, content)
	return l
}

func writeDisks(t *testing.T, l *Lab, n plan.Node, content string) {
	t.Helper()
	for _, disk := range diskFiles(n) {
		if err := os.WriteFile(l.Paths.Disk(n.Name, disk), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMachineImage(t *testing.T) {
	ctx := context.Background()
	for _, n := range []plan.Node{plan.Workers()[0], plan.Storage()} {
		l := machineLab(t, n, "before")
		if err := l.RestoreMachine(ctx, n.Name, "x"); !errors.Is(err, ErrNoImage) {
			t.Errorf("an image that was not made: %v", err)
		}
		if err := l.SaveMachine(ctx, n.Name, "x"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			writeDisks(t, l, n, "after")
			if err := l.RestoreMachine(ctx, n.Name, "x"); err != nil {
				t.Fatal(err)
			}
			for _, disk := range diskFiles(n) {
				if b, err := os.ReadFile(l.Paths.Disk(n.Name, disk)); err != nil || string(b) != "before" {
					t.Errorf("%s is %q, %v", disk, b, err)
				}
			}
		}
		if err := l.mustBeOfOneTime(n); err != nil {
			t.Error(err)
		}
	}
}

func TestMachineImageRefusals(t *testing.T) {
	ctx := context.Background()
	n := plan.Workers()[0]
	l := machineLab(t, n, "before")
	for _, name := range []string{"", "..", "a/b"} {
		if err := l.SaveMachine(ctx, n.Name, name); err == nil {
			t.Errorf("%q became an image", name)
		}
	}
	if err := l.SaveMachine(ctx, "node-z", "x"); !errors.Is(err, plan.ErrUnknownNode) {
		t.Errorf("a machine that no lab has: %v", err)
	}
	rec, err := l.Procs.Start(func(fn func() error) error { return fn() }, proc.Spec{Name: n.Name, Path: "/bin/sleep", Args: []string{"600"}, Dir: t.TempDir(), Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Procs.Stop(ctx, rec, 0) }()
	if err := l.SaveMachine(ctx, n.Name, "x"); !errors.Is(err, ErrRunning) {
		t.Errorf("save while it runs: %v", err)
	}
	if err := l.RestoreMachine(ctx, n.Name, "x"); !errors.Is(err, ErrRunning) {
		t.Errorf("restore while it runs: %v", err)
	}
}

// TestHalfRestored: a restore that ends between two disks leaves a machine that neither
// boots nor is saved, until one has come to its end.
func TestHalfRestored(t *testing.T) {
	ctx := context.Background()
	n := plan.Workers()[0]
	l := machineLab(t, n, "before")
	if err := l.SaveMachine(ctx, n.Name, "x"); err != nil {
		t.Fatal(err)
	}
	writeDisks(t, l, n, "after")
	// The rename of the second disk fails: a folder that is not empty is in its place.
	second := l.Paths.Disk(n.Name, secondDisk(n))
	if err := errors.Join(os.Remove(second), os.MkdirAll(filepath.Join(second, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := l.RestoreMachine(ctx, n.Name, "x"); err == nil {
		t.Fatal("the restore did not fail")
	}
	if err := l.bootGuest(ctx, state{}, n); !errors.Is(err, ErrHalfRestored) {
		t.Errorf("boot: %v", err)
	}
	if err := l.SaveMachine(ctx, n.Name, "y"); !errors.Is(err, ErrHalfRestored) {
		t.Errorf("save: %v", err)
	}
	if err := os.RemoveAll(second); err != nil {
		t.Fatal(err)
	}
	if err := l.RestoreMachine(ctx, n.Name, "x"); err != nil {
		t.Fatal(err)
	}
	if err := l.mustBeOfOneTime(n); err != nil {
		t.Error(err)
	}
}

func TestCopySparse(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	const size = 64 << 20
	f, err := os.Create(src)
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("nearflash"), 1000)
	_, first := f.WriteAt(data, 1<<20)
	_, second := f.WriteAt(data, size/2+1)
	if err := errors.Join(first, second, f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dst, bytes.Repeat([]byte("x"), 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copySparse(dst, src); err != nil {
		t.Fatal(err)
	}
	want, wantErr := os.ReadFile(src)
	got, gotErr := os.ReadFile(dst)
	if err := errors.Join(wantErr, gotErr); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d, same %t, %v", len(got), len(want), bytes.Equal(got, want), err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dst, &st); err != nil || st.Blocks*512 > size/2 {
		t.Errorf("the copy takes %d bytes, %v", st.Blocks*512, err)
	}
}
