package node

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestUsesISCSI: a node that has a LUN to leave does not go without iSCSI.
func TestUsesISCSI(t *testing.T) {
	entries, err := journal.Open[state.Entry](t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if usesISCSI(entries) {
		t.Error("of no volume")
	}
	save := func(id volume.ID, s volume.Source) {
		t.Helper()
		if err := entries.Save(string(id), state.Entry{ID: id, State: state.Staged, Mode: volume.ModeNone, Source: s}); err != nil {
			t.Fatal(err)
		}
	}
	save("over", volume.Source{CSI: &volume.CSISource{Driver: "d", Handle: "h", PV: "p", Admission: "a"}})
	if usesISCSI(entries) {
		t.Error("of a volume of another driver")
	}
	save("lun", volume.Source{ISCSI: volume.ISCSI{IQN: "iqn.x"}})
	if !usesISCSI(entries) {
		t.Error("of a LUN")
	}
}
