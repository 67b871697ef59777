package observe_test

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestSampleReuse: what is known of a volume's reuse comes with its figures, while it is attached.
func TestSampleReuse(t *testing.T) {
	m := newMachine(t)
	m.cached("a", "1")
	m.cached("unknown", "1")
	m.volumes = append(m.volumes, observe.Volume{ID: "left"})
	s, err := observe.Open(observe.Config{
		Kernel: m, Dir: t.TempDir(), Now: m.clock.Now, Volumes: func() ([]observe.Volume, error) { return m.volumes, nil },
		Reuse: func(id volume.ID) (reuse.Summary, bool) { return reuse.Summary{AreaBytes: 1}, id != "unknown" },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range s.Current(t.Context()).Volumes {
		if (v.Reuse != nil) != (v.ID == "a") {
			t.Errorf("volume %s: %+v", v.ID, v.Reuse)
		}
	}
}
