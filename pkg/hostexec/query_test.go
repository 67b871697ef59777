package hostexec

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestQueriesDoNotPileUp: while a look is stuck, the same one is not begun again.
func TestQueriesDoNotPileUp(t *testing.T) {
	var l queries
	first, err := l.begin(t.Context(), "disk")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.begin(t.Context(), "disk"); err != nil {
		t.Errorf("beside a look that has just begun: %v", err)
	}
	first.since = time.Now().Add(-2 * slowQuery)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.begin(ctx, "disk"); !errors.Is(err, ErrStuck) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside a slow look: %v", err)
	}
	first.since = time.Now().Add(-2 * stuckQuery)
	if _, err := l.begin(t.Context(), "disk"); !errors.Is(err, ErrStuck) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside one that takes very long: %v", err)
	}
	first.since = time.Now()
	close(first.abandoned)
	if _, err := l.begin(t.Context(), "disk"); !errors.Is(err, ErrStuck) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside one that was given up: %v", err)
	}
	if _, err := l.begin(t.Context(), "another"); err != nil {
		t.Errorf("another device: %v", err)
	}
	l.end("disk", first)
	if _, err := l.begin(t.Context(), "disk"); err != nil {
		t.Errorf("after it has ended: %v", err)
	}
}

func TestCgroupMounts(t *testing.T) {
	for name, tc := range map[string]struct {
		mountinfo, unified string
		older              []string
	}{
		"version 2": {
			mountinfo: "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n31 22 0:26 / /mnt rw - cgroup2 cgroup2 rw\n",
			unified:   "/sys/fs/cgroup",
		},
		"both": {
			mountinfo: "30 22 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n31 22 0:27 / /sys/fs/cgroup/systemd rw shared:10 - cgroup cgroup rw,name=systemd\n32 22 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			unified:   "/sys/fs/cgroup/unified", older: []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/memory"},
		},
		"none": {mountinfo: "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"},
	} {
		unified, older := cgroupMounts(tc.mountinfo)
		if unified != tc.unified || !cmp.Equal(older, tc.older) {
			t.Errorf("%s: %q %q", name, unified, older)
		}
	}
}

func TestOutsideNamesTheFirstProcess(t *testing.T) {
	if err := (&outside{proc: "/proc", pid: 1}).check(); err == nil {
		t.Error("the first process of a PID namespace takes its commands along")
	}
	if err := (&outside{proc: t.TempDir(), pid: 2}).check(); err == nil {
		t.Error("without procfs")
	}
}
