package model

import "testing"

func TestExplore(t *testing.T) {
	base := Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 2, Abandons: 1}
	for name, tc := range map[string]struct {
		mode   Mode
		static bool
		left   Budget
	}{
		"writeback":             {mode: Writeback, left: base},
		"writethrough":          {mode: Writethrough, left: base},
		"writeback, removed":    {mode: Writeback, left: Budget{Writes: 1, Crashes: 1, Moves: 1, Removals: 1, Abandons: 1}},
		"writeback, restored":   {mode: Writeback, left: Budget{Writes: 2, Crashes: 1, Moves: 2, Restores: 1, Abandons: 1}},
		"writeback, image":      {mode: Writeback, left: Budget{Writes: 3, Crashes: 1, Moves: 3, Images: 1, Abandons: 1}},
		"writethrough, image":   {mode: Writethrough, left: Budget{Writes: 2, Moves: 2, Images: 1}},
		"static, forced detach": {mode: Writethrough, static: true, left: Budget{Writes: 2, Moves: 1, Forces: 1}},
		"writeback, forced":     {mode: Writeback, left: Budget{Writes: 2, Moves: 1, Forces: 1, Crashes: 1, Abandons: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{Record: Record{UID: 1}, Mode: tc.mode, Static: tc.static, Left: tc.left}
			t.Log(explore(w, events(), 400000))
		})
	}
}
