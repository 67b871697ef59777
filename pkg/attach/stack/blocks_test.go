package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestCoarse(t *testing.T) {
	cases := map[string]struct {
		cache, origin int
		want          bool
	}{
		"as large":                {512, 512, false},
		"4Kn before 512":          {4096, 512, true},
		"512 before 4Kn":          {512, 4096, false},
		"both 4Kn":                {4096, 4096, false},
		"cache not known":         {0, 512, false},
		"origin not known":        {4096, 0, false},
		"larger than both usual":  {16384, 4096, true},
		"nothing is known at all": {0, 0, false},
	}
	for name, tc := range cases {
		why := Coarse(tc.cache, tc.origin)
		if (why != "") != tc.want {
			t.Errorf("%s: %q, want a reason: %t", name, why, tc.want)
		}
	}
	if why := Coarse(4096, 512); !strings.Contains(why, "4096") || !strings.Contains(why, "512") {
		t.Errorf("the reason is %q", why)
	}
}

// TestLiveBlocks: a live cache is judged by the kernel's word on its device and on the
// origin's.
func TestLiveBlocks(t *testing.T) {
	s := New(Config{Sysfs: t.TempDir()})
	for devno, size := range map[string]string{"253:1": "4096\n", "253:2": "512\n", "253:3": "512\n"} {
		dir := filepath.Join(s.Sysfs, "dev/block", devno, "queue")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "logical_block_size"), []byte(size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dev := func(minor int) devmapper.Info { return devmapper.Info{Major: 253, Minor: minor, HasLive: true} }
	id := volume.ID("v")
	cases := map[string]struct {
		infos map[string]devmapper.Info
		want  bool
	}{
		"too large":   {map[string]devmapper.Info{layout.Device(id, layout.Top): dev(1), layout.Device(id, layout.Origin): dev(2)}, true},
		"as large":    {map[string]devmapper.Info{layout.Device(id, layout.Top): dev(3), layout.Device(id, layout.Origin): dev(2)}, false},
		"no origin":   {map[string]devmapper.Info{layout.Device(id, layout.Top): dev(1)}, false},
		"no device":   {map[string]devmapper.Info{layout.Device(id, layout.Origin): dev(2)}, false},
		"not in /sys": {map[string]devmapper.Info{layout.Device(id, layout.Top): dev(4), layout.Device(id, layout.Origin): dev(2)}, false},
	}
	for name, tc := range cases {
		if why := s.LiveBlocks(id, tc.infos); (why != "") != tc.want {
			t.Errorf("%s: %q, want a reason: %t", name, why, tc.want)
		}
	}
}
