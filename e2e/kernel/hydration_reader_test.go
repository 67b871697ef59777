//go:build kernel

package kernel

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelHydrationReader: whoever reads the device of a hydration that waits for lost paths, as udev
// does at every event of it, does not hold up the end of the hydration, where nothing else would
// bring the path back.
func TestKernelHydrationReader(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "fillreader", cached(volume.ModeWriteback, 32*mib))
	v.stage()
	data := v.warmUp(1)
	v.unstage()
	v.publishTo(v.b, otherName)
	v.stage()
	if !v.killAt("hydration.swapped", order{Lessor: v.a.dir, Hydration: true}) {
		t.Fatal("no hydration was swapped")
	}
	source, path := layout.Device(v.req.ID, layout.Source), layout.Device(v.req.ID, layout.Path)
	devices, err := v.b.DM.Info(t.Context(), layout.DevicePrefix)
	mustPass(t, "devices", err)
	m.must("dmsetup", "message", source, "0", "fail_path", devices[path].DevNo())
	read := make(chan error, 1)
	go func() { // past the page cache
		_, err := hostexec.New().Run(context.Background(), hostexec.Command("dd", "if="+devices[source].DevPath(), "of=/dev/null", "bs=4096", "count=1", "iflag=direct"))
		read <- err
	}()
	soon(t, "somebody reads the device of the hydration", func() bool {
		now, err := v.b.DM.Info(t.Context(), source)
		return err == nil && now[source].OpenCount > 0
	})
	v.wantHydrated()
	if err := <-read; err == nil {
		t.Error("the reader has read from a path that was lost")
	}
	check(t, v.device(), data, 0)
	v.unstage()
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}
