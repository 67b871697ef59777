package pool

import (
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/smart"
)

// TestDeviceHealth: a CachePool's validation takes these words only.
func TestDeviceHealth(t *testing.T) {
	for v, want := range map[smart.Verdict]v1alpha1.DeviceHealth{smart.Passed: "Passed", smart.Failing: "Failing", "": ""} {
		if got := DeviceHealth(v); got != want {
			t.Errorf("verdict %q is %q in the API, want %q", v, got, want)
		}
	}
}
