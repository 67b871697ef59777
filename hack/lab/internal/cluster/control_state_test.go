package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestBackupNames(t *testing.T) {
	l := newTestLab(t, "t1")
	for _, name := range []string{"", "..", "a/b", "A", "-x"} {
		if dir, err := l.backup(name); err == nil {
			t.Errorf("%q became the folder %s", name, dir)
		}
	}
	if dir, err := l.backup("before-move-2"); err != nil || filepath.Dir(dir) != l.Paths.Root {
		t.Errorf("got %s, %v", dir, err)
	}
}

func TestStopControlRefusesStrangers(t *testing.T) {
	l := newTestLab(t, "t1")
	if err := l.stopControl(context.Background(), []string{apiServer, "init"}, 0); err == nil {
		t.Error("no error for a program that is not of the control plane")
	}
	if err := l.stopControl(context.Background(), nil, 0); err != nil {
		t.Errorf("nothing runs: %v", err)
	}
}

func TestReplaceFolder(t *testing.T) {
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "etcd")
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(src, "member/wal/0.wal"), "new")
	write(filepath.Join(dst, "member/wal/1.wal"), "old")
	if err := replaceFolder(dst, src); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dst, "member/wal/0.wal")); err != nil || string(b) != "new" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(dst, "member/wal/1.wal")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old data are still there: %v", err)
	}
	if info, err := os.Stat(dst); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
