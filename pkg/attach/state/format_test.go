package state_test

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ journal.Formatted = state.Entry{}

// TestFormat: an earlier version must not take a volume of another driver for one that was never
// attached, nor load a table over a recovered cache, nor overlook dropped flushes or checksums, and reads all others.
func TestFormat(t *testing.T) {
	lun := state.Entry{Source: volume.Source{ISCSI: volume.ISCSI{IQN: "iqn.x"}}}
	over := state.Entry{Source: volume.Source{CSI: &volume.CSISource{Driver: "d"}}}
	recovered := over
	recovered.Recovered = true
	unsafe, torn := recovered, lun
	unsafe.Unsafe, torn.Torn = true, true
	checked := torn
	checked.Checked = true
	if checked.Format() != 10 {
		t.Errorf("format of checksums %d", checked.Format())
	}
	if unsafe.Format() != 9 || torn.Format() != 9 {
		t.Errorf("formats of dropped flushes %d and %d", unsafe.Format(), torn.Format())
	}
	if lun.Format() != 0 || over.Format() != 7 || recovered.Format() != 8 {
		t.Errorf("formats %d, %d and %d", lun.Format(), over.Format(), recovered.Format())
	}
}
