package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/transport"
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

// TestReadInitiator: a name that cannot be used is told, keeps LUNs alone from being attached, and
// has the plugin begin anew once it is mended.
func TestReadInitiator(t *testing.T) {
	for name, tc := range map[string]struct {
		text    string // "" is no file
		origins bool
		lun     bool
		finding bool
		name    string
	}{
		"good":                                  {text: "InitiatorName=iqn.2026-11.io.example:a", name: "iqn.2026-11.io.example:a"},
		"no file":                               {finding: true},
		"no file, other origins":                {origins: true},
		"no file, other origins, a LUN is here": {origins: true, lun: true, finding: true},
		"no name":                               {text: "GenerateName=yes", finding: true},
		"no such name, other origins":           {text: "InitiatorName=node-a", origins: true, finding: true},
	} {
		t.Run(name, func(t *testing.T) {
			entries, err := journal.Open[state.Entry](t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if tc.lun {
				if err := entries.Save("lun", state.Entry{ID: "lun", State: state.Staged, Mode: volume.ModeNone, Source: volume.Source{ISCSI: volume.ISCSI{IQN: "iqn.x"}}}); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(t.TempDir(), "initiatorname.iscsi")
			write := func(text string) {
				if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if tc.text != "" {
				write(tc.text)
			}
			p := &plugin{cfg: Config{Origins: tc.origins}, host: host{
				preflight: preflight.Node{InitiatorNameFile: file},
				iscsi:     func(string) transport.Transport { return transport.Mux{NoISCSI: errors.New("no target")} },
			}, findings: &findings{}}
			p.readInitiator(entries)
			if p.initiator != tc.name || (p.noInitiator != nil) != tc.finding {
				t.Fatalf("name %q, finding %v", p.initiator, p.noInitiator)
			}
			p.findings.iscsi.Store(new("no name"))
			if told := strings.Contains(p.problems(), "no name"); told != (tc.finding || tc.name != "") {
				t.Errorf("told: %v", told)
			}
			_, err = p.transports().Connect(t.Context(), transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{IQN: "iqn.x"}}}, nil)
			if tc.name == "" && (err == nil || tc.finding && !errors.Is(err, preflight.ErrInitiatorName)) {
				t.Errorf("a LUN: %v", err)
			}
			if err := p.initiatorFound(); err != nil {
				t.Errorf("as before: %v", err)
			}
			write("InitiatorName=iqn.2026-11.io.example:b")
			if err := p.initiatorFound(); (err != nil) != (tc.name == "") {
				t.Errorf("mended: %v", err)
			}
		})
	}
}
