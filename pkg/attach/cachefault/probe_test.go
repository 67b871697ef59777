package cachefault

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
)

// sysfsWith makes a tree as the kernel shows device-mapper devices: names by device,
// and what each lies on.
func sysfsWith(t *testing.T, names map[string]string, lower map[string][]string) string {
	t.Helper()
	sysfs := t.TempDir()
	write := func(dir, file, text string) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for dev, name := range names {
		write(filepath.Join(sysfs, "block", dev, "dm"), "name", name+"\n")
	}
	for dev, below := range lower {
		for _, b := range below {
			write(filepath.Join(sysfs, "block", dev, "slaves"), b, "")
		}
	}
	return sysfs
}

func TestCacheDevices(t *testing.T) {
	names := map[string]string{
		"dm-0": "nf-v", "dm-1": "nf-v.data", "dm-2": "nf-v.origin", "dm-3": "nf-v.source", "dm-4": "nf-v.path",
		"dm-5": "nearflash--x-v.meta", "dm-6": "nearflash--x-v.data", "dm-7": "nearflash--x-v.fill",
	}
	cases := map[string]struct {
		lower map[string][]string
		want  []string
	}{
		"uncached":                              {map[string][]string{"dm-0": {"dm-2"}, "dm-2": {"sda"}}, nil},
		"cached":                                {map[string][]string{"dm-0": {"dm-1", "dm-2", "dm-5"}, "dm-1": {"dm-6"}, "dm-6": {"nvme0n1"}}, []string{"dm-5", "dm-6"}},
		"an origin without a device of its own": {map[string][]string{"dm-0": {"dm-1", "dm-5", "sda"}, "dm-1": {"dm-6"}}, []string{"dm-5", "dm-6"}},
		"being filled": {
			map[string][]string{"dm-0": {"dm-1", "dm-2", "dm-5"}, "dm-1": {"dm-3", "dm-6", "dm-7"}, "dm-3": {"dm-4"}, "dm-4": {"sdb"}},
			[]string{"dm-5", "dm-6", "dm-7"},
		},
		"gone": {nil, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := cacheDevices(sysfsWith(t, names, tc.lower), "dm-0")
			if slices.Sort(got); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	m := &memory{}
	m.record("a", "broken")
	m.setAtRisk("a", true)
	m.record("b", "broken too")
	if m.keep([]*state.Entry{{ID: "b"}}); m.why("a") != "" || m.atRisk("a") || m.why("b") != "broken too" {
		t.Errorf("after a has left: %+v", m)
	}
	if m.record("b", ""); m.why("b") != "" {
		t.Error("b is still broken")
	}
	end, ok := m.begin("b")
	if _, again := m.begin("b"); !ok || again {
		t.Error("a probe is not claimed once")
	}
	end()
	if _, ok := m.begin("b"); !ok {
		t.Error("a probe that ended cannot begin again")
	}
	if m.spread(3) != 3 || m.spread(0) != 3 {
		t.Error("the number of stripes is forgotten with the pool")
	}
}
