package devmapper

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
)

// TestStatusOfEach: a cache that does not answer hides no other, and is not taken for a
// device without a cache; nor is one that was not asked.
func TestStatusOfEach(t *testing.T) {
	status := golden(t, "status-writeback.txt")
	for name, stuck := range map[string]error{"killed": context.DeadlineExceeded, "stuck": hostexec.ErrStuck} {
		t.Run(name, func(t *testing.T) {
			run := hostexectest.New(t)
			hang := func(context.Context, hostexectest.Call) (string, error) { return "", stuck }
			run.On("dmsetup status --noflush --target cache").Do(hang)
			run.On("dmsetup status --noflush nf-hangs").Do(hang)
			run.On("dmsetup status --noflush nf-cache").Return(status)
			run.On("dmsetup status --noflush nf-uncached").Return("0 8 linear\n")
			k := &kernel{order: []string{"nf-hangs", "nf-hangs.data", "nf-cache", "nf-uncached", "nf-cache.origin"}}
			d := &dmsetup{run: run, control: func() (kernelControl, error) { return k, nil }}
			all, err := d.StatusAll(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want, err := parseStatusAll("nf-cache: " + strings.TrimSpace(status))
			if err != nil {
				t.Fatal(err)
			}
			for _, silent := range []string{"nf-hangs", "nf-hangs.data", "nf-cache.origin"} {
				want[silent] = CacheStatus{Silent: true}
			}
			if diff := cmp.Diff(want, all); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
