package attach

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

func inactive(f *stageFacts) { f.Cache.Inactive = true; badSSD(f) }

// TestDecideStageUnread: what an SSD does not tell is not taken for nothing.
func TestDecideStageUnread(t *testing.T) {
	const none, wt, wb = volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback
	for name, tc := range map[string]struct {
		s                    *situation
		want                 stagePlan
		wantRefuse, wantMark bool
	}{
		"an SSD of which nothing is known is not wiped": {
			s:    newSituation(wt).with(badSSD),
			want: stagePlan{Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonCacheDeviceError},
		},
		"journal lost, tags of unflushed writes on volumes that cannot be activated": {
			s:          newSituation(wb).cache(fence5, wb, false).with(inactive),
			wantRefuse: true, wantMark: true,
		},
		"the same, stopped": {
			s:    newSituation(wb).cache(fence5, wb, true).with(inactive),
			want: stagePlan{Wipe: true, Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonCacheDeviceError},
		},
		"the same, the writes were given up": {
			s:    newSituation(wb).cache(fence5, wb, false).with(inactive).with(abandoned),
			want: stagePlan{Wipe: true, Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonCacheDeviceError},
		},
		"the same, of another ownership": {
			s:          newSituation(wb).cache(otherID, wb, false).with(inactive),
			wantRefuse: true,
		},
		"unflushed writes on volumes that cannot be activated": {
			s:          newSituation(wb).entry(fence5, state.Staged, wb, true, false).with(rebooted).cache(fence5, wb, false).with(inactive).with(recordDirty),
			wantRefuse: true,
		},
	} {
		got := decideStage(tc.s.f)
		if got.Mark != tc.wantMark || errors.Is(got.Refuse, volume.ErrFenced) != tc.wantRefuse {
			t.Errorf("%s: %+v", name, got)
		}
		got.Message = ""
		if !tc.wantRefuse && got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}
