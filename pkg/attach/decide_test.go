package attach

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

var (
	fence5  = volume.Fence{UID: "u1", Generation: 5, Node: "a"}
	fence4  = volume.Fence{UID: "u1", Generation: 4, Node: "a"}
	fence6  = volume.Fence{UID: "u1", Generation: 6, Node: "a"}
	otherID = volume.Fence{UID: "u2", Generation: 5, Node: "a"}
)

// situation builds stageFacts from a publishable volume with nothing on the node.
type situation struct{ f stageFacts }

func newSituation(mode volume.CacheMode) *situation {
	return &situation{stageFacts{
		Fence: fence5, Node: "a", SameBoot: true,
		Record: volume.Volume{Fence: fence5, Published: true, Activation: volume.Activation{ID: "now", Generation: 5, Count: 7}, Spec: volume.Spec{Mode: mode, WarmStart: volume.WarmStart{From: volume.WarmOff}}},
	}}
}

func (s *situation) entry(f volume.Fence, st state.State, mode volume.CacheMode, activated, clean bool) *situation {
	s.f.Entry = &state.Entry{ActivationID: "now", ActivationCount: 7, Fence: f, State: st, Mode: mode, Activated: activated, Clean: clean}
	return s
}

func (s *situation) cache(f volume.Fence, mode volume.CacheMode, clean bool) *situation {
	s.f.Cache = ssd.Facts{Whole: true, Fence: f, Mode: mode, SuperblockClean: clean, Stopped: clean, ActivationID: "now", ActivationCount: 7}
	return s
}

func (s *situation) with(change func(*stageFacts)) *situation {
	change(&s.f)
	return s
}

func untagged(f *stageFacts) { f.Cache.Stopped = false }
func before(f *stageFacts) {
	f.Entry.ActivationID, f.Entry.ActivationCount, f.Cache.Stopped = "", 0, false
	f.Cache.ActivationID, f.Cache.ActivationCount, f.Record.Activation = "", 0, volume.Activation{}
}
func journalPast(f *stageFacts) { f.Entry.ActivationCount-- }
func ssdPast(f *stageFacts)     { f.Cache.ActivationID, f.Cache.ActivationCount = "then", 3 }
func nodePast(f *stageFacts)    { journalPast(f); ssdPast(f) }
func pending(f *stageFacts) {
	f.Record.Activation, f.Record.Pending = volume.Activation{ID: "then", Generation: 5, Count: 3}, f.Record.Activation
}
func restored(f *stageFacts) {
	f.Record.Activation = volume.Activation{ID: "then", Generation: 5, Count: 3}
}
func rebooted(f *stageFacts)    { f.SameBoot = false }
func topOurs(f *stageFacts)     { f.TopActive, f.TopOurs = true, true }
func topForeign(f *stageFacts)  { f.TopActive = true }
func noPool(f *stageFacts)      { f.PoolProblem = "no devices" }
func badSSD(f *stageFacts)      { f.CacheProblem = "input/output error" }
func noKernel(f *stageFacts)    { f.KernelProblem = "no cache target" }
func blank(f *stageFacts)       { f.Cache.SuperblockBlank = true }
func apart(f *stageFacts)       { f.Cache.Apart = true }
func onLeaving(f *stageFacts)   { f.Cache.Leaving = true }
func half(f *stageFacts)        { f.Cache.Whole, f.Cache.Partial = false, true }
func deleted(f *stageFacts)     { f.Proof.Deleted = true }
func staticEntry(f *stageFacts) { f.Entry.Static = true }

// shown is a LUN that the storage server shows for a generation.
func shown(generation int64) func(*stageFacts) {
	return func(f *stageFacts) { f.Proof.LUN, f.Proof.SameLUN = generation, true }
}

func isHeld(f *stageFacts) { f.Record.Hold = &volume.Hold{Name: "s", Token: "t"} }

func recordDirty(f *stageFacts) { f.Record.PossiblyDirty = true }
func abandoned(f *stageFacts)   { f.Record.GivenUp, f.Proof.GivenUp = true, true }

func TestDecideStage(t *testing.T) {
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	cases := map[string]struct {
		s          *situation
		want       stagePlan
		wantRefuse bool
		wantMark   bool
	}{
		"cold start": {s: newSituation(wt), want: stagePlan{Cache: planCreate, Mode: wt}},
		"warm start": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true),
			want: stagePlan{Cache: planReuse, Mode: wt},
		},
		"retained cache whose data are not on the SSDs of its map": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(apart),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"retained cache on an SSD that is to leave the pool": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(onLeaving),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"unflushed writes on an SSD that is to leave the pool": {
			s:    newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(onLeaving),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"unflushed writes, data not on the SSDs of the map": {
			s:    newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(apart),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"held": {s: newSituation(wb).with(isHeld), want: stagePlan{Cache: planCreate, Mode: wt}},
		"held, warm start": {
			s:    newSituation(wb).entry(fence5, state.Retained, wb, true, true).cache(fence5, wb, true).with(isHeld),
			want: stagePlan{Cache: planReuse, Mode: wt},
		},
		"held, the stage before was refused its mark": {
			s:    newSituation(wb).entry(fence5, state.Staging, wb, false, true).cache(fence5, wb, true).with(isHeld),
			want: stagePlan{Cache: planReuse, Mode: wt},
		},
		"held, unflushed writes": {
			s:    newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(recordDirty).with(isHeld),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"held, writethrough": {s: newSituation(wt).with(isHeld), want: stagePlan{Cache: planCreate, Mode: wt}},
		"warm start after a reboot": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(rebooted),
			want: stagePlan{Cache: planReuse, Mode: wt},
		},
		"warm start repeated before it activated": {
			s:    newSituation(wt).entry(fence5, state.Staging, wt, false, true).cache(fence5, wt, true),
			want: stagePlan{Cache: planReuse, Mode: wt},
		},
		"flushed but not yet released": {
			s:    newSituation(wb).entry(fence5, state.Flushed, wb, true, true).cache(fence5, wb, true),
			want: stagePlan{Cache: planReuse, Mode: wb},
		},
		"retained, not tagged as stopped: a table swap set the flag (I4)": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(untagged),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"flushed, the node stopped before it was tagged (I4)": {
			s:    newSituation(wb).entry(fence5, state.Flushed, wb, true, true).cache(fence5, wb, true).with(untagged),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"retained of a version before, which did not tag": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(before),
			want: stagePlan{Cache: planReuse, Mode: wt},
		},
		"flushed by a version before": {
			s:    newSituation(wt).entry(fence5, state.Flushed, wt, true, true).cache(fence5, wt, true).with(before),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"retained of an earlier stage: the node comes out of an image": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(nodePast),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"retained, the SSD alone comes out of an image": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(ssdPast),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"retained of a stage that the record does not know to have ended": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(pending),
			want: stagePlan{Cache: planReuse, Mode: wt},
		},
		"warm start killed before the SSD was told of it": {
			s:    newSituation(wt).entry(fence5, state.Staging, wt, false, true).cache(fence5, wt, true).with(pending).with(ssdPast),
			want: stagePlan{Cache: planReuse, Mode: wt},
		},
		"retained, the record comes out of a backup": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(restored),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"unflushed writes of an image, and others that nobody has": {
			s:          newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(nodePast).with(recordDirty),
			wantRefuse: true,
		},
		"retained of an image, and unflushed writes that nobody has": {
			s:          newSituation(wb).entry(fence5, state.Retained, wb, true, true).cache(fence5, wb, true).with(rebooted).with(nodePast).with(recordDirty),
			wantRefuse: true,
		},
		"retained of an earlier generation of an image, and unflushed writes that nobody has": {
			s:          newSituation(wb).entry(fence4, state.Retained, wb, true, true).cache(fence4, wb, true).with(rebooted).with(recordDirty),
			wantRefuse: true,
		},
		"the same, the journal is lost": {
			s:          newSituation(wb).cache(fence5, wb, false).with(ssdPast).with(recordDirty),
			wantRefuse: true,
		},
		"the same, the SSD alone comes out of an image": {
			s:          newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(ssdPast).with(recordDirty),
			wantRefuse: true,
		},
		"unflushed writes of an image, flushed or abandoned since": {
			s:    newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(nodePast),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"unflushed writes, the record comes out of a backup": {
			s:    newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(restored).with(recordDirty),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"unflushed writes of a stage that the record does not know to be live": {
			s:    newSituation(wb).entry(fence5, state.Staging, wb, true, false).cache(fence5, wb, false).with(rebooted).with(pending).with(recordDirty),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"unflushed writes by a version before": {
			s:    newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(before).with(recordDirty),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"retained of an older generation (I3)": {
			s:    newSituation(wt).entry(fence4, state.Retained, wt, true, true).cache(fence4, wt, true),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"retained of another volume of the same name (I3)": {
			s:    newSituation(wt).entry(otherID, state.Retained, wt, true, true).cache(otherID, wt, true),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"dirty cache of an older generation never overwrites newer data (I3)": {
			s:    newSituation(wb).entry(fence4, state.Staged, wb, true, false).cache(fence4, wb, false).with(rebooted),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"retained of a newer generation than the record's": {
			s:    newSituation(wb).entry(fence6, state.Retained, wb, true, true).cache(fence6, wb, true),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"dirty cache of a newer generation than the record's": {
			s:          newSituation(wb).entry(fence6, state.Staged, wb, true, false).cache(fence6, wb, false).with(rebooted),
			wantRefuse: true,
		},
		"the same, live": {
			s:          newSituation(wb).entry(fence6, state.Staged, wb, true, false).cache(fence6, wb, false).with(topOurs),
			wantRefuse: true,
		},
		"dirty cache of a newer generation, the journal is lost": {
			s:          newSituation(wb).cache(fence6, wb, false),
			wantRefuse: true,
		},
		"dirty cache of a newer generation of another volume": {
			s: newSituation(wb).entry(volume.Fence{UID: "u2", Generation: 6, Node: "a"}, state.Staged, wb, true, false).
				cache(volume.Fence{UID: "u2", Generation: 6, Node: "a"}, wb, false),
			wantRefuse: true,
		},
		"dirty cache of another UID": {
			s:          newSituation(wb).entry(otherID, state.Staged, wb, true, false).cache(otherID, wb, false).with(rebooted),
			wantRefuse: true,
		},
		"the same, the storage server shows the LUN for it": {
			s:          newSituation(wb).entry(otherID, state.Staged, wb, true, false).cache(otherID, wb, false).with(shown(5)),
			wantRefuse: true,
		},
		"the same, the storage server has given the volume away since": {
			s:    newSituation(wb).entry(otherID, state.Staged, wb, true, false).cache(otherID, wb, false).with(shown(6)),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"the same, deleted": {
			s:    newSituation(wb).entry(otherID, state.Staged, wb, true, false).cache(otherID, wb, false).with(deleted),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"the same, mode none": {
			s:          newSituation(none).entry(otherID, state.Staged, wb, true, false).cache(otherID, wb, false),
			wantRefuse: true,
		},
		"the same, the SSD is out": {
			s:          newSituation(wb).entry(otherID, state.Staged, wb, true, false).with(noPool),
			wantRefuse: true,
		},
		"the same, rescued": {
			s:    newSituation(wb).entry(otherID, state.Staged, wb, true, false).cache(otherID, wb, false).with(blank),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"of another UID, the journal is lost": {
			s:          newSituation(wb).cache(otherID, wb, false),
			wantRefuse: true,
		},
		"of another UID, the journal knows of an uncached volume": {
			s:          newSituation(wb).entry(fence5, state.Staged, none, false, false).cache(otherID, wb, false),
			wantRefuse: true,
		},
		"clean cache of another UID, writeback": {
			s:    newSituation(wb).entry(otherID, state.Retained, wb, true, true).cache(otherID, wb, true),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"static volume, dirty cache of a newer generation than the record's": {
			s:          newSituation(wb).entry(fence6, state.Staged, wb, true, false).cache(fence6, wb, false).with(staticEntry),
			wantRefuse: true,
		},
		"retained by the journal, unclean by its superblock (I4)": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, false),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"clean by its superblock, not by the journal (I4)": {
			s:    newSituation(wt).entry(fence5, state.Staged, wt, true, false).cache(fence5, wt, true).with(rebooted),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"writethrough after a crash is discarded (I4)": {
			s:    newSituation(wt).entry(fence5, state.Staged, wt, true, false).cache(fence5, wt, false).with(rebooted),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"writeback after a crash is recovered (I4)": {
			s:    newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"writeback after a crash while flushing": {
			s:    newSituation(wb).entry(fence5, state.Flushing, wb, true, false).cache(fence5, wb, false).with(rebooted),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"writeback recovered although the class now says writethrough": {
			s:    newSituation(wt).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"writeback killed between journal and table: never active": {
			s:    newSituation(wb).entry(fence5, state.Staging, wb, true, false).cache(fence5, wb, false).with(blank),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"unflushed writes on an SSD that is gone (I2)": {
			s:          newSituation(wb).entry(fence5, state.Staged, wb, true, false).with(rebooted).with(noPool).with(recordDirty),
			wantRefuse: true,
		},
		"unflushed writes on an SSD that is gone, abandoned": {
			s:    newSituation(wb).entry(fence5, state.Staged, wb, true, false).with(rebooted).with(noPool).with(abandoned),
			want: stagePlan{Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonPoolMissing},
		},
		"unflushed writes on an SSD that is gone, the record clean in a backup (I2)": {
			s:          newSituation(wb).entry(fence5, state.Staged, wb, true, false).with(rebooted).with(noPool),
			wantRefuse: true, wantMark: true,
		},
		"journal lost, the record clean in a backup": {
			s:    newSituation(wb).cache(fence5, wb, false),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"journal lost, flushed": {
			s:    newSituation(wb).cache(fence5, wb, true),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"journal lost, abandoned": {
			s:    newSituation(wb).cache(fence5, wb, false).with(abandoned),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wb},
		},
		"journal lost, record dirty, cache found": {
			s:    newSituation(wb).cache(fence5, wb, false).with(recordDirty),
			want: stagePlan{Cache: planRecover, Mode: wb},
		},
		"journal lost, record dirty, cache lost (I2)": {
			s: newSituation(wb).with(recordDirty), wantRefuse: true,
		},
		"journal lost, writethrough cache found": {
			s:    newSituation(wt).cache(fence5, wt, true),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"half a cache": {
			s:    newSituation(wt).entry(fence5, state.Staging, wt, false, false).cache(fence5, wt, false).with(half),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"already active": {
			s:    newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(topOurs),
			want: stagePlan{Cache: planAdopt, Mode: wb},
		},
		"adopted from a flush": {
			s:    newSituation(wb).entry(fence5, state.Flushing, wb, true, false).cache(fence5, wb, false).with(topOurs),
			want: stagePlan{Cache: planAdopt, Mode: wb},
		},
		"adopted while the pool is broken": {
			s:    newSituation(wt).entry(fence5, state.Staged, wt, true, false).with(topOurs).with(noPool),
			want: stagePlan{Cache: planAdopt, Mode: wt},
		},
		"device left by an older generation": {
			s:    newSituation(wt).entry(fence4, state.Staged, wt, true, false).cache(fence4, wt, false).with(topOurs),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"device left by another volume": {
			s:    newSituation(none).with(topForeign),
			want: stagePlan{Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonModeNone},
		},
		"no pool (I6)": {
			s:    newSituation(wt).with(noPool),
			want: stagePlan{Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonPoolMissing},
		},
		"no pool, writeback, nothing dirty (I6)": {
			s:    newSituation(wb).entry(fence5, state.Retained, wb, true, true).with(noPool),
			want: stagePlan{Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonPoolMissing},
		},
		"retained cache on an SSD that fails (I6)": {
			s:    newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(badSSD),
			want: stagePlan{Wipe: true, Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonCacheDeviceError},
		},
		"unflushed writes on an SSD that fails": {
			s:          newSituation(wb).entry(fence5, state.Staged, wb, true, false).with(rebooted).with(badSSD).with(recordDirty),
			wantRefuse: true,
		},
		"no kernel target (I6)": {
			s:    newSituation(wt).with(noKernel),
			want: stagePlan{Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonKernelTargetMissing},
		},
		"mode none wipes an old retained cache": {
			s:    newSituation(none).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true),
			want: stagePlan{Wipe: true, Cache: planUncached, Mode: none, Reason: v1alpha1.ReasonModeNone},
		},
		"retained cache written past by an uncached attachment is never reused": {
			s:    newSituation(wt).entry(fence5, state.Staged, none, false, false).cache(fence5, wt, true).with(rebooted),
			want: stagePlan{Wipe: true, Cache: planCreate, Mode: wt},
		},
		"record shows a later generation (I1)": {
			s:          newSituation(wt).with(func(f *stageFacts) { f.Record.Fence.Generation = 6 }),
			wantRefuse: true,
		},
		"record shows another owner (I1)": {
			s:          newSituation(wt).with(func(f *stageFacts) { f.Record.Fence.Node = "b" }),
			wantRefuse: true,
		},
		"record is released (I1)": {
			s:          newSituation(wt).with(func(f *stageFacts) { f.Record.Published = false }),
			wantRefuse: true,
		},
		"published to another node than this (I1)": {
			s:          newSituation(wt).with(func(f *stageFacts) { f.Node = "c" }),
			wantRefuse: true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := decideStage(tc.s.f)
			if got.Mark != tc.wantMark {
				t.Errorf("mark %t, want %t", got.Mark, tc.wantMark)
			}
			if tc.wantRefuse {
				if !errors.Is(got.Refuse, volume.ErrFenced) {
					t.Fatalf("got %+v, want a refusal with ErrFenced", got)
				}
				return
			}
			got.Message = ""
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestDecideDown(t *testing.T) {
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	e := func(st state.State, mode volume.CacheMode, activated, clean bool) *state.Entry {
		return &state.Entry{Fence: fence5, State: st, Mode: mode, Activated: activated, Clean: clean}
	}
	rec := func(f volume.Fence, dirty bool) *volume.Volume { return &volume.Volume{Fence: f, PossiblyDirty: dirty} }
	whole, admitted, given := ssd.Facts{Whole: true, Fence: fence5, Mode: wb}, proof{LUN: 5, SameLUN: true}, proof{GivenUp: true}
	cases := map[string]struct {
		f    downFacts
		want downAction
	}{
		"no entry":                           {downFacts{TopActive: true}, downNothing},
		"retained":                           {downFacts{Entry: e(state.Retained, wt, true, true)}, downNothing},
		"staged writethrough":                {downFacts{Entry: e(state.Staged, wt, true, false), TopActive: true}, downFlush},
		"staged writeback":                   {downFacts{Entry: e(state.Staged, wb, true, false), TopActive: true, Record: rec(fence5, true)}, downFlush},
		"staged writethrough, crashed":       {downFacts{Entry: e(state.Staged, wt, true, false)}, downWipe},
		"staged writeback, crashed":          {downFacts{Entry: e(state.Staged, wb, true, false), Record: rec(fence5, true)}, downRecover},
		"flushing writeback, crashed":        {downFacts{Entry: e(state.Flushing, wb, true, false), Record: rec(fence5, true)}, downRecover},
		"staging writeback, never activated": {downFacts{Entry: e(state.Staging, wb, true, false), Cache: ssd.Facts{Whole: true, Fence: fence5, SuperblockBlank: true}}, downWipe},
		"staging from retained cache":        {downFacts{Entry: e(state.Staging, wb, false, true)}, downRelease},
		"staging anew":                       {downFacts{Entry: e(state.Staging, wt, false, false)}, downWipe},
		"flushed":                            {downFacts{Entry: e(state.Flushed, wb, true, true), TopActive: true}, downRelease},
		"flushed, removed":                   {downFacts{Entry: e(state.Flushed, wb, true, true), SameBoot: true}, downRelease},
		"flushed, stopped, tagged":           {downFacts{Entry: e(state.Flushed, wb, true, true), Cache: ssd.Facts{Whole: true, Stopped: true}}, downRelease},
		"flushed, stopped uncleanly (I4)":    {downFacts{Entry: e(state.Flushed, wb, true, true), Cache: ssd.Facts{Whole: true, SuperblockClean: true}}, downWipe},
		"uncached":                           {downFacts{Entry: e(state.Staged, none, false, false), TopActive: true}, downDetach},
		"releasing":                          {downFacts{Entry: e(state.Releasing, none, false, false)}, downDetach},
		"superseded, active":                 {downFacts{Entry: e(state.Staged, wb, true, false), TopActive: true, Record: rec(fence6, true)}, downWipe},
		"superseded, crashed":                {downFacts{Entry: e(state.Flushing, wb, true, false), Cache: whole, Record: rec(fence6, false)}, downWipe},
		"given up, SSD gone":                 {downFacts{Entry: e(state.Staged, wb, true, false), Record: rec(fence5, false), Proof: given}, downWipe},
		"given up, SSD there after all":      {downFacts{Entry: e(state.Staged, wb, true, false), Cache: whole, Record: rec(fence5, false), Proof: given}, downRecover},
		"clean in a backup, SSD gone":        {downFacts{Entry: e(state.Staged, wb, true, false), Record: rec(fence5, false)}, downRecover},
		"clean in a backup":                  {downFacts{Entry: e(state.Staged, wb, true, false), Cache: whole, Record: rec(fence5, false)}, downRecover},
		"no record, active":                  {downFacts{Entry: e(state.Staged, wb, true, false), TopActive: true}, downKeep},
		"no record, crashed":                 {downFacts{Entry: e(state.Staged, wb, true, false), Cache: whole}, downKeep},
		"no record, SSD out":                 {downFacts{Entry: e(state.Staged, wb, true, false)}, downKeep},
		"no record, rescued":                 {downFacts{Entry: e(state.Staged, wb, true, false), Cache: ssd.Facts{Whole: true, Fence: fence5, SuperblockBlank: true}}, downWipe},
		"no record, still admitted, active":  {downFacts{Entry: e(state.Flushing, wb, true, false), TopActive: true, Proof: admitted}, downFlush},
		"no record, still admitted, crashed": {downFacts{Entry: e(state.Staged, wb, true, false), Cache: whole, Proof: admitted}, downRecover},
		"no record, deleted":                 {downFacts{Entry: e(state.Staged, wb, true, false), Cache: whole, Proof: proof{Deleted: true}}, downWipe},
		"another record, still admitted":     {downFacts{Entry: e(state.Staged, wb, true, false), Cache: whole, Record: rec(otherID, true), Proof: admitted}, downRecover},
		"another record":                     {downFacts{Entry: e(state.Staged, wb, true, false), Cache: whole, Record: rec(otherID, false)}, downKeep},
		"no record, clean":                   {downFacts{SameBoot: true, Entry: e(state.Flushed, wb, true, true)}, downRelease},
		"no record, writethrough":            {downFacts{Entry: e(state.Staged, wt, true, false), TopActive: true}, downFlush},
		"an image, crashed":                  {downFacts{Entry: e(state.Staged, wb, true, false), Past: true, Record: rec(fence5, true)}, downKeep},
		"an image, flushed since":            {downFacts{Entry: e(state.Staged, wb, true, false), Past: true, Record: rec(fence5, false), Proof: given}, downWipe},
		"an image, active":                   {downFacts{Entry: e(state.Staged, wb, true, false), Past: true, TopActive: true, Record: rec(fence5, true)}, downFlush},
		"wiping":                             {downFacts{Entry: e(state.Wiping, wt, true, false)}, downWipe},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decideDown(tc.f); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
