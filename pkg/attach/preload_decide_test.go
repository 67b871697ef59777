package attach

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

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
