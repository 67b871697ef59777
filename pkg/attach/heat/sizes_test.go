package heat

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/iosizes"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

// sampled is a kernel whose samples are all the same.
type sampled struct {
	counts map[string]iosizes.Counts
	err    error
	// during is what happens while one is made.
	during         func()
	made, stopped  int
	deviceOfVolume string
}

func (s *sampled) Sample(context.Context, time.Duration) (map[string]iosizes.Counts, error) {
	s.made++
	if s.during != nil {
		s.during()
	}
	return s.counts, s.err
}

func (s *sampled) Stop() error {
	s.stopped++
	return nil
}

func (s *sampled) device(context.Context, volume.ID) (string, error) { return s.deviceOfVolume, nil }

// TestSamplePass: what samples have of a volume's device is in what is known after the next looks; what is
// of another volume's, or may be, is not.
func TestSamplePass(t *testing.T) {
	// Of 100 reads in a sample, 90 have 4 KiB and 10 have 1 MiB.
	counts := map[string]iosizes.Counts{"253:7": {3: 90, 11: 10}, "253:8": {6: 1000}}
	for name, c := range map[string]struct {
		device string
		during func(*sampled)
		err    error
		known  bool
	}{
		"its device": {device: "253:7", known: true},
		"not read":   {device: "253:9"},
		"no device":  {},
		"came back meanwhile": {device: "253:7", during: func(s *sampled) {
			s.deviceOfVolume = map[string]string{"253:7": "253:8", "253:8": "253:7"}[s.deviceOfVolume]
		}},
		"the kernel cannot": {device: "253:7", err: iosizes.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			k, kernel, _, now := looking(t)
			s := &sampled{counts: counts, err: c.err, deviceOfVolume: c.device}
			if c.during != nil {
				s.during = func() { c.during(s) }
			}
			k.Sampler, k.Device = s, s.device
			for range 12 {
				if err := k.SamplePass(t.Context()); !errors.Is(err, c.err) {
					t.Fatal(err)
				}
				readFor(t, k, kernel, now, lookEvery)
			}
			known, found := k.Reuse("v")
			if !found || len(known.Windows) == 0 {
				t.Fatalf("%+v, %v", known, found)
			}
			w := known.Windows[0]
			if w.AtMostKnown != c.known {
				t.Fatalf("known: %v, %v", w.AtMostKnown, w.AtMost)
			}
			if c.known && (w.AtMost[0] < 0.89 || w.AtMost[0] > 0.91 || w.AtMost[7] > 0.91 || w.AtMost[8] < 0.99) {
				t.Errorf("reads of at most each size: %v", w.AtMost)
			}
		})
	}
}

// TestSampleOfStageBefore: a sample that no look has taken in is not of the volume's next attachment.
func TestSampleOfStageBefore(t *testing.T) {
	k, _, h, _ := looking(t)
	s := &sampled{deviceOfVolume: "253:7", counts: map[string]iosizes.Counts{"253:7": {3: 1000}}}
	k.Sampler, k.Device = s, s.device
	for _, before := range []func(){func() {}, func() { k.Look(t.Context(), h.e) }} {
		before()
		if err := k.SamplePass(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.e.State = state.Retained
		k.Pass(t.Context())
		h.e.State = state.Staged
		k.Look(t.Context(), h.e) // the first one of this attachment
		if got := k.takeSizes("v"); got != ([reuse.SizeBins]uint64{}) {
			t.Errorf("left: %v", got)
		}
	}
}

// TestSampleStops: without a volume there are no samples, and the kernel keeps nothing of them.
func TestSampleStops(t *testing.T) {
	k, _, h, _ := looking(t)
	s := &sampled{deviceOfVolume: "253:7"}
	k.Sampler, k.Device = s, s.device
	h.e.State = state.Retained
	if err := k.SamplePass(t.Context()); err != nil || s.made != 0 || s.stopped != 1 {
		t.Errorf("%v, %+v", err, s)
	}
}

// TestRunSizes: it begins at once, goes on after an error, and ends with its context.
func TestRunSizes(t *testing.T) {
	k, _, _, _ := looking(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &sampled{deviceOfVolume: "253:7", err: errors.New("spoiled")}
	s.during = func() {
		if s.made == 3 {
			cancel()
		}
	}
	k.Sampler, k.Device, k.Every = s, s.device, time.Millisecond
	k.RunSizes(ctx)
	if s.made < 3 {
		t.Errorf("%d samples", s.made)
	}
}
