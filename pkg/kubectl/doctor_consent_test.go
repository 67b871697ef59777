package kubectl

import (
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// TestConsentProblems: each mode goes with its own consent, and with no other.
func TestConsentProblems(t *testing.T) {
	const none, node, power = "", v1alpha1.DirtyLossNodeLoss, v1alpha1.DirtyLossPowerLoss
	for name, c := range map[string]struct {
		mode v1alpha1.CacheMode
		loss v1alpha1.DirtyLoss
		want string
	}{
		"writethrough":             {"", none, ""},
		"writeback":                {v1alpha1.CacheModeWriteback, node, ""},
		"unsafe":                   {v1alpha1.CacheModeWritebackUnsafe, power, ""},
		"writeback without":        {v1alpha1.CacheModeWriteback, none, "cacheMode writeback needs acceptDirtyLoss node-loss"},
		"unsafe without":           {v1alpha1.CacheModeWritebackUnsafe, none, "cacheMode writeback-unsafe needs acceptDirtyLoss power-loss"},
		"unsafe with less":         {v1alpha1.CacheModeWritebackUnsafe, node, "cacheMode writeback-unsafe needs acceptDirtyLoss power-loss; acceptDirtyLoss node-loss is for cacheMode writeback only"},
		"writethrough with either": {v1alpha1.CacheModeWritethrough, power, "acceptDirtyLoss power-loss is for cacheMode writeback-unsafe only"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(consentProblems(c.mode, c.loss), "; "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
