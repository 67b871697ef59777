package node

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/openiscsi"
)

// TestISCSID: it becomes iscsid with a name, and not beside another one.
func TestISCSID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "initiatorname.iscsi")
	var became []string
	d := ISCSID{InitiatorNameFile: file, daemon: openiscsi.Daemon{Socket: filepath.Join(t.TempDir(), "s")}, become: func(name string, args ...string) error {
		became = append([]string{name}, args...)
		return nil
	}}
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), "InitiatorName=iqn.") {
		t.Errorf("the name is %q, %v", b, err)
	}
	if want := []string{"iscsid", "--foreground", "--initiatorname", file}; !slices.Equal(became, want) {
		t.Errorf("became %q, want %q", became, want)
	}

	became = nil
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", d.daemon.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "node.iscsid.run: host") || became != nil {
		t.Errorf("beside another iscsid: %v, became %q", err, became)
	}
}
