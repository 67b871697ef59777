//go:build kernel

package kernel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
)

// TestKernelDeviceInfo: what the control device says of the devices is what dmsetup
// says of them.
func TestKernelDeviceInfo(t *testing.T) {
	run := hostexec.New()
	dmsetup := func(stdin string, args ...string) string {
		t.Helper()
		cmd := hostexec.Command("dmsetup", args...)
		cmd.Stdin = strings.NewReader(stdin)
		res, err := run.Run(t.Context(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		return string(res.Stdout)
	}
	t.Cleanup(func() {
		// The test's own context has ended by then.
		for _, name := range []string{"nf-live", "nf-ro", "nf-none"} {
			if _, err := run.Run(context.Background(), hostexec.Command("dmsetup", "remove", "--retry", name)); err != nil {
				t.Error(err)
			}
		}
	})
	dmsetup("0 8 error\n", "create", "nf-live", "--uuid", "NEARFLASH-live")
	dmsetup("0 8 error\n", "create", "nf-ro", "--readonly")
	dmsetup("", "create", "nf-none", "--notable")
	dm := devmapper.New(run)
	for _, change := range [][]string{nil, {"suspend", "nf-live"}, {"load", "nf-live"}, {"resume", "nf-live"}} {
		if change != nil {
			dmsetup("0 16 error\n", change...)
		}
		// udev opens what has changed, for a moment: it may be there in one look alone.
		for diff, tries := "?", 100; diff != ""; tries-- {
			var got, want []string
			infos, err := dm.Info(t.Context(), "nf-")
			mustPass(t, "info", err)
			for _, i := range infos {
				attr := []byte("---w")
				for at, on := range []bool{i.HasLive, i.HasInactive, i.Suspended, i.ReadOnly} {
					if on {
						attr[at] = "LIsr"[at]
					}
				}
				got = append(got, fmt.Sprintf("%s|%s|%d|%d|%d|%s", i.Name, i.UUID, i.Major, i.Minor, i.OpenCount, attr))
			}
			for line := range strings.Lines(dmsetup("", "info", "--columns", "--noheadings", "--separator", "|", "--options", "name,uuid,major,minor,open,attr")) {
				if strings.HasPrefix(line, "nf-") {
					want = append(want, strings.TrimSpace(line))
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if diff = cmp.Diff(want, got); tries == 0 || len(want) != 3 {
				t.Fatalf("after %v (-dmsetup +Info):\n%s", change, diff)
			}
		}
	}
}
