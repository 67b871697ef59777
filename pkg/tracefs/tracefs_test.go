package tracefs

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
)

func TestNumber(t *testing.T) {
	for devno, want := range map[string]uint32{"0:0": 0, "8:1": 8<<20 | 1, "253:7": 265289735, "4095:1048575": 1<<32 - 1} {
		got, err := Number(devno)
		major, minor := Devno(got)
		if back := fmt.Sprintf("%d:%d", major, minor); err != nil || got != want || back != devno {
			t.Errorf("%s is %d, %v, which is %s", devno, got, err, back)
		}
	}
	for _, devno := range []string{"", "253", "253:", ":7", "253:7:1", "4096:0", "0:1048576", "-1:7", "fd:7"} {
		if got, err := Number(devno); err == nil {
			t.Errorf("%q is %d", devno, got)
		}
	}
}

// TestMountNowhere: where there is no mount point, there is no tracefs, and nothing is made.
func TestMountNowhere(t *testing.T) {
	if err := Mount(filepath.Join(t.TempDir(), "tracing")); err == nil || errors.Is(err, ErrFormat) {
		t.Errorf("mounted: %v", err)
	}
}
