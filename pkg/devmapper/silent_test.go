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

// TestCloneStatusOfEach: nor does a clone, and nothing else is asked whether it is one.
func TestCloneStatusOfEach(t *testing.T) {
	name, status, _ := strings.Cut(strings.SplitN(golden(t, "status-clone-all.txt"), "\n", 2)[0], ": ")
	run := hostexectest.New(t)
	hang := func(context.Context, hostexectest.Call) (string, error) { return "", context.DeadlineExceeded }
	run.On("dmsetup status --noflush --target clone").Do(hang)
	run.On("dmsetup status --noflush nf-hangs.data").Do(hang)
	run.On("dmsetup status --noflush nf-fill.data").Return(status + "\n")
	run.On("dmsetup status --noflush nf-whole.data").Return("0 8 linear\n")
	k := &kernel{order: []string{"nf-hangs", "nf-hangs.data", "nf-fill.data", "nf-fill.path", "nf-whole.data"}}
	d := &dmsetup{run: run, control: func() (kernelControl, error) { return k, nil }}
	all, err := d.CloneStatusAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known, err := parseCloneStatusAll(name + ": " + status)
	if err != nil {
		t.Fatal(err)
	}
	silent := CloneStatus{Silent: true}
	want := map[string]CloneStatus{"nf-hangs": silent, "nf-hangs.data": silent, "nf-fill.path": silent, "nf-fill.data": known[name]}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if silent.Complete() || silent.HydrationEnabled() {
		t.Error("a clone that does not answer is taken for one that has copied everything, or copies")
	}
}
