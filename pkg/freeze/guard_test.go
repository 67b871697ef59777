package freeze

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var errDisk = errors.New("disk")

// course is a guard over a clock of its own.
type course struct {
	clock time.Duration
	said  []string
	// writes are how long each write-out takes, the last for all later ones; freezing is how
	// long FIFREEZE does.
	writes   []time.Duration
	freezing time.Duration
	// withdrawn is when the order goes; 0 is never.
	withdrawn                    time.Duration
	writeErr, freezeErr, thawErr error
	// frozen and thawed are when.
	frozen, thawed time.Duration
}

func (c *course) guard() guard {
	return guard{
		limit:  5 * time.Second,
		now:    func() time.Time { return time.Unix(0, 0).Add(c.clock) },
		pause:  func() { c.clock += 20 * time.Millisecond },
		wanted: func() bool { return c.withdrawn == 0 || c.clock < c.withdrawn },
		writeOut: func() error {
			c.said = append(c.said, "write")
			if len(c.writes) > 0 {
				c.clock += c.writes[0]
				c.writes = c.writes[min(1, len(c.writes)-1):]
			}
			return c.writeErr
		},
		freeze: func() error {
			c.said = append(c.said, "freeze")
			c.frozen = c.clock
			c.clock += c.freezing
			return c.freezeErr
		},
		thaw: func() error {
			c.said = append(c.said, "thaw")
			c.thawed = c.clock
			return c.thawErr
		},
		phase: func(p string) error { c.said = append(c.said, "phase:"+p); return nil },
	}
}

// TestGuard is the course of a guard (states.md, A freeze). Nothing stays frozen longer than the
// limit, and nil is the answer only if the filesystem was frozen until the order was gone.
func TestGuard(t *testing.T) {
	whole := []string{"write", "phase:freezing", "freeze", "phase:frozen", "thaw", "phase:"}
	late := []string{"write", "phase:freezing", "freeze", "thaw", "phase:"}
	for name, tc := range map[string]struct {
		c    course
		want error
		said []string
	}{
		"withdrawn while it is frozen":    {course{withdrawn: 2 * time.Second}, nil, whole},
		"nobody ends it":                  {course{}, errOver, whole},
		"withdrawn too late":              {course{withdrawn: 6 * time.Second}, errOver, whole},
		"withdrawn before":                {course{withdrawn: 1, writes: []time.Duration{2 * time.Second}}, errWithdrawn, []string{"write"}},
		"much to write out":               {course{withdrawn: 20 * time.Second, writes: []time.Duration{9 * time.Second, 9 * time.Second, 0}}, nil, append([]string{"write", "write"}, whole...)},
		"the storage is slow":             {course{writes: []time.Duration{time.Second}}, errSlow, slices.Repeat([]string{"write"}, writesOut)},
		"it cannot be written out":        {course{writeErr: errDisk}, errDisk, []string{"write"}},
		"the freeze takes too long":       {course{freezing: 7 * time.Second}, errOver, late},
		"the freeze takes nearly as long": {course{freezing: 4 * time.Second, withdrawn: 4500 * time.Millisecond}, nil, whole},
		"it cannot be frozen":             {course{freezeErr: errDisk}, errDisk, []string{"write", "phase:freezing", "freeze", "phase:"}},
		"somebody else has frozen it":     {course{freezeErr: unix.EBUSY}, errForeign, []string{"write", "phase:freezing", "freeze", "phase:"}},
		"somebody else has thawed it":     {course{withdrawn: time.Second, thawErr: unix.EINVAL}, errEnded, whole},
		"it cannot be thawed":             {course{withdrawn: time.Second, thawErr: errDisk}, errDisk, whole[:len(whole)-1]},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.c.guard().run()
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if !slices.Equal(tc.c.said, tc.said) {
				t.Errorf("did %q, want %q", tc.c.said, tc.said)
			}
			if lasted := tc.c.thawed - tc.c.frozen; slices.Contains(tc.said, "thaw") && tc.c.freezing < 5*time.Second && lasted > 5*time.Second+look {
				t.Errorf("frozen for %s", lasted)
			}
		})
	}
}

// TestGuardRefuses: a guard freezes nothing for an order that is not its own, nor another device.
func TestGuardRefuses(t *testing.T) {
	dir := t.TempDir()
	h := &Host{Dir: dir, Boot: "b"}
	order := Order{ID: "v", Token: "t", DevNo: "1:2", Path: dir, Boot: "b", Limit: time.Second}
	if err := h.write(order); err != nil {
		t.Fatal(err)
	}
	file := h.orderFile("v")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no file":        {[]string{filepath.Join(dir, "none"), "t"}, "no such file"},
		"no token":       {[]string{file}, "usage"},
		"another token":  {[]string{file, "u"}, errWithdrawn.Error()},
		"another device": {[]string{file, "t"}, "expected 1:2"},
	} {
		var said strings.Builder
		if code := Guard(tc.args, &said); code == 0 || !strings.Contains(said.String(), tc.want) {
			t.Errorf("%s: status %d, %q, want %q", name, code, said.String(), tc.want)
		}
	}
	if !wanted(file, "t") || wanted(file, "u") {
		t.Error("the order is not recognised by its token")
	}
	if err := h.withdraw(order); err != nil {
		t.Fatal(err)
	}
	if wanted(file, "t") {
		t.Error("an order that was withdrawn is wanted")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if wanted(file, "t") {
		t.Error("an order that is gone is wanted")
	}
}
