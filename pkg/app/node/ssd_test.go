package node

import (
	"bytes"
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/scratch"
)

// TestSSDCommand: what cannot be measured is refused before anything is asked for; what nobody lends is not measured.
func TestSSDCommand(t *testing.T) {
	socket := "--figures-socket=" + filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"depths":      {[]string{"--depths=1,x"}, `--depths "1,x": accepted are numbers`},
		"a task":      {[]string{"--block-bytes=5000"}, "block-bytes 5000: accepted is a multiple of 4096"},
		"too long":    {[]string{"--time=1h"}, "time 1h0m0s: accepted is up to 1m0s"},
		"no plugin":   {[]string{"--depths=1,16"}, "ask the plugin: dial unix"},
		"the default": {nil, "ask the plugin: dial unix"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := SSD{Out: &out}
			fs := flag.NewFlagSet(scratch.Command, flag.ContinueOnError)
			cmd.AddFlags(fs)
			if err := fs.Parse(append(c.args, socket)); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || out.Len() > 0 {
				t.Errorf("got %v, printed %q, want %q", err, out.String(), c.want)
			}
		})
	}
}
