package stack_test

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestReadOnlyStays: what a reader's pod reads through cannot be written to, also after its table was
// changed; that of an owner can.
func TestReadOnlyStays(t *testing.T) {
	const size = 16 << 20
	for _, readOnly := range []bool{true, false} {
		m := blockdevtest.New()
		m.Add("8:1", "/dev/sda", blockdevtest.NewDisk(size))
		dm := devmappertest.New(m).Client(nil)
		s := stack.New(stack.Config{DM: dm})
		e := &state.Entry{ID: "v", Fence: volume.Fence{UID: "u", Generation: 1, Node: "a"}, ReadOnly: readOnly}
		o, err := s.JoinPaths(t.Context(), e, transport.Origin{DevNos: []string{"8:1"}, Paths: []string{"/dev/sda"}, SizeBytes: size})
		if err != nil {
			t.Fatal(err)
		}
		table := devmapper.LinearTable(o.Sectors, o.DevNo)
		if err := s.CreateTop(t.Context(), e, table); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			infos, err := dm.Info(t.Context(), "nf-v")
			if err != nil || len(infos) != 2 {
				t.Fatalf("devices %+v, %v", infos, err)
			}
			for name, info := range infos {
				if info.ReadOnly != readOnly {
					t.Errorf("device %s: read-only %v, want %v", name, info.ReadOnly, readOnly)
				}
			}
			if err := s.ReloadTop(t.Context(), e, table); err != nil {
				t.Fatal(err)
			}
		}
	}
}
