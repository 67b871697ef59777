package attach

import (
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

func asksChecksums(f *stageFacts) { f.PoolChecked = true }
func hasChecksums(f *stageFacts)  { f.Cache.Checked = true }
func noIntegrity(f *stageFacts) {
	f.IntegrityProblem, f.IntegrityReason = "no target integrity", "KernelTargetMissing"
}

// TestDecideChecked: in a pool that asks for checksums a cache has them, or there is none; unflushed writes
// come first.
func TestDecideChecked(t *testing.T) {
	const wt, wb = volume.ModeWritethrough, volume.ModeWriteback
	kept := func() *situation {
		return newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true)
	}
	lost := func() *situation {
		return newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(asksChecksums)
	}
	for name, c := range map[string]struct {
		s      *situation
		want   cachePlan
		wipe   bool
		reason string
	}{
		"a new one":                      {newSituation(wt).with(asksChecksums), planCreate, false, ""},
		"kept with them":                 {kept().with(asksChecksums).with(hasChecksums), planReuse, false, ""},
		"kept without":                   {kept().with(asksChecksums), planCreate, true, ""},
		"kept with them, asked no more":  {kept().with(hasChecksums), planReuse, false, ""},
		"the kernel cannot":              {newSituation(wt).with(asksChecksums).with(noIntegrity), planUncached, false, "KernelTargetMissing"},
		"the kernel cannot, one is kept": {kept().with(asksChecksums).with(hasChecksums).with(noIntegrity), planUncached, true, "KernelTargetMissing"},
		"unflushed writes without them":  {lost(), planRecover, false, ""},
		"the same, the kernel cannot":    {lost().with(noIntegrity), planRecover, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := decideStage(c.s.f)
			if got.Refuse != nil || got.Cache != c.want || got.Wipe != c.wipe || got.Reason != c.reason {
				t.Errorf("got %+v, want %s, wipe %t, reason %q", got, c.want, c.wipe, c.reason)
			}
		})
	}
}

// TestIntegrityProblem: SSDs whose blocks are too large are told from kernels that cannot.
func TestIntegrityProblem(t *testing.T) {
	a := &Attacher{}
	if got := a.integrityProblem(t.Context(), pool.View{LogicalBlock: 512}); got != "" {
		t.Errorf("nobody knows of a problem: %q", got)
	}
	if got := a.integrityProblem(t.Context(), pool.View{LogicalBlock: 4096}); !strings.Contains(got, "4096") || integrityReason(pool.View{LogicalBlock: 4096}) != "BlockSizeTooLarge" {
		t.Errorf("large blocks: %q", got)
	}
}
