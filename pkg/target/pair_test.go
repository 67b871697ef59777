package target

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/target/exportstate"
)

func TestStateVolume(t *testing.T) {
	const device, dir = "/dev/vg/state", "/var/lib/state"
	mounted := map[string]unix.Stat_t{device: {Rdev: 7}, dir: {Dev: 7}}
	for name, tc := range map[string]struct {
		have map[string]unix.Stat_t
		want string
	}{
		"mounted":             {mounted, ""},
		"not active":          {map[string]unix.Stat_t{dir: {Dev: 7}}, "activate the volume group"},
		"not mounted":         {map[string]unix.Stat_t{device: {Rdev: 7}, dir: {Dev: 1}}, "is not mounted at /var/lib/state: another filesystem"},
		"no directory at all": {map[string]unix.Stat_t{device: {Rdev: 7}}, "is not mounted at /var/lib/state: no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{VolumeGroup: "vg", StateVolume: "state", StateDir: dir}
			err := c.checkStateVolume(func(path string, st *unix.Stat_t) error {
				s, ok := tc.have[path]
				if !ok {
					return unix.ENOENT
				}
				*st = s
				return nil
			})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	none := Config{VolumeGroup: "vg", StateDir: dir}
	if err := none.checkStateVolume(func(string, *unix.Stat_t) error { return errors.New("asked") }); err != nil {
		t.Errorf("without stateVolume: %v", err)
	}
}

// TestWithdrawBesideServer: the exports of a server that runs are not ended.
func TestWithdrawBesideServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	store, err := exportstate.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	cfg := Config{ServerID: "withdraw-test", StateDir: dir}
	if err := Withdraw(context.Background(), cfg); !errors.Is(err, exportstate.ErrLocked) {
		t.Errorf("%v, want ErrLocked", err)
	}
}

// TestWithdrawNothing: a cluster manager stops what does not run, to be sure.
func TestWithdrawNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "absent")
	if err := Withdraw(context.Background(), Config{ServerID: "withdraw-test", StateDir: dir}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory was made: %v", err)
	}
}
