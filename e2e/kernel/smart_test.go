//go:build kernel

package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/smart"
)

// TestKernelSMART asks disks through smartctl itself. The emulated machines of distributions' kernels
// have two of NVMe, one of which says that it fails; the disks of other guests have no SMART.
func TestKernelSMART(t *testing.T) {
	m := newMachine(t)
	want := map[string]smart.Health{"": {}}
	if guest.Kernel() != "" {
		m.must("modprobe", "nvme")
		want = map[string]smart.Health{
			"":        {},
			"well":    {Verdict: smart.Passed, WearPercent: ptr.To(int32(0))},
			"failing": {Verdict: smart.Failing, WearPercent: ptr.To(int32(0))},
		}
	}
	if _, err := m.run.Run(t.Context(), hostexec.Query("smartctl", "--version")); err != nil {
		t.Fatalf("without smartctl nothing is asked: %v", err)
	}
	devices := map[string]string{"": ssdTwo}
	findNVMe(t, devices, len(want))
	for serial, h := range want {
		got, err := smart.Read(t.Context(), m.run, devices[serial])
		if err != nil || got.Verdict != h.Verdict || ptr.Deref(got.WearPercent, -1) != ptr.Deref(h.WearPercent, -1) {
			t.Errorf("disk %q (%s): %+v, %v; want %+v", serial, devices[serial], got, err, h)
		}
	}
}

// findNVMe adds NVMe disks by their serial numbers, until there are so many devices.
func findNVMe(t *testing.T, devices map[string]string, n int) {
	t.Helper()
	for begun := time.Now(); len(devices) < n; time.Sleep(100 * time.Millisecond) {
		found, err := filepath.Glob("/sys/class/nvme/nvme*")
		mustPass(t, "list", err)
		for _, controller := range found {
			serial, err := os.ReadFile(filepath.Join(controller, "serial"))
			device := "/dev/" + filepath.Base(controller) + "n1"
			if _, statErr := os.Stat(device); err == nil && statErr == nil {
				devices[strings.TrimSpace(string(serial))] = device
			}
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("disks: %v, want %d", devices, n)
		}
	}
}
