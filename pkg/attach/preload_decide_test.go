package attach

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestStreamedFromOrigin: only blocks of the hot set are hotter than others, also by stream.
func TestStreamedFromOrigin(t *testing.T) {
	const chunk = 256
	hot := cachemap.HotSet{ChunkSectors: chunk, Classes: []cachemap.HotClass{{Level: 9, Ranges: []cachemap.Range{{Start: 3 * chunk, Length: chunk}}}, {Level: 2, Ranges: []cachemap.Range{{Start: chunk, Length: chunk}}}}}
	m := hot.Map(chunk, 8, 5*chunk).Fill(5 * chunk)
	got, err := streamedFromOrigin(m, true, 5*chunk)
	if err != nil || len(got.Entries) != 5 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, origin := range []uint64{3, 1, 0, 2, 4} {
		if e := got.Entries[i]; e.Cache != uint64(i) || e.Origin != origin || (e.Level > 0) != (i < 2) {
			t.Errorf("place %d: %+v, want block %d", i, e, origin)
		}
	}
	if without, err := streamedFromOrigin(hot.Map(chunk, 8, 5*chunk), false, 5*chunk); err != nil || len(without.Entries) != 2 || without.Entries[0].Level <= without.Entries[1].Level {
		t.Errorf("the hot set alone: %+v, %v", without, err)
	}
}

// TestDecidePreload is the table of states.md, Preload.
func TestDecidePreload(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*stageFacts)
		want   bool
		why    string
	}{
		"asked for":     {want: true},
		"not asked for": {change: func(f *stageFacts) { f.Record.Spec.WarmStart.Preload = false }},
		"with a peer, for later": {change: func(f *stageFacts) {
			f.Record.WarmSource = &volume.WarmSource{Node: "other", Generation: f.Fence.Generation - 1}
		}, want: true},
		"from the origin alone":      {change: func(f *stageFacts) { f.Record.Spec.WarmStart.From = volume.WarmOrigin }, want: true},
		"off":                        {change: func(f *stageFacts) { f.Record.Spec.WarmStart.From = volume.WarmOff }},
		"nothing was ever written":   {change: func(f *stageFacts) { f.Record.Filesystem = volume.FormatNever }},
		"a filesystem is being made": {change: func(f *stageFacts) { f.Record.Filesystem = volume.FormatBegun }},
		"by no method":               {change: func(f *stageFacts) { f.Method, f.MethodReason = "", "no dm-clone" }, why: "no dm-clone"},
		"off, no method": {change: func(f *stageFacts) {
			f.Method, f.MethodReason, f.Record.Spec.WarmStart.From = "", "no dm-clone", volume.WarmOff
		}},
		"nothing written, no method": {change: func(f *stageFacts) {
			f.Method, f.MethodReason, f.Record.Filesystem = "", "no dm-clone", volume.FormatNever
		}},
	} {
		t.Run(name, func(t *testing.T) {
			fence := volume.Fence{UID: "u", Generation: 2, Node: "here"}
			f := stageFacts{Fence: fence, Node: "here", Method: volume.MethodClone, Record: volume.Volume{
				ID: "v", Fence: fence, Published: true,
				Spec: volume.Spec{Mode: volume.ModeWritethrough, WarmStart: volume.WarmStart{From: volume.WarmPeer, Preload: true}},
			}}
			if tc.change != nil {
				tc.change(&f)
			}
			plan := decideStage(f)
			if plan.Cache != planCreate || plan.Refuse != nil {
				t.Fatalf("plan %+v", plan)
			}
			if got := plan.Warm != nil && plan.Warm.Preload; got != tc.want || plan.NotPreloaded != tc.why {
				t.Errorf("preload %t (%q), want %t (%q)", got, plan.NotPreloaded, tc.want, tc.why)
			}
		})
	}
}
