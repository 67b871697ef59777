package volume_test

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestMethodOf: the words of users and the methods of moves are each other's inverse, and what is
// no word is none.
func TestMethodOf(t *testing.T) {
	for word, want := range map[string]volume.MoveMethod{"clone": volume.MethodClone, "stream": volume.MethodStream} {
		if got, known := volume.MethodOf(word); got != want || !known || got.Word() != word {
			t.Errorf("%q is %q, %t, and back %q", word, got, known, got.Word())
		}
	}
	for word, want := range map[string]bool{"": true, "auto": true, "Clone": false, "Stream": false, "hotset": false, "HotSet": false, "clone ": false} {
		if got, known := volume.MethodOf(word); got != "" || known != want {
			t.Errorf("%q is %q, %t; want it known: %t", word, got, known, want)
		}
	}
	for _, m := range []volume.MoveMethod{"", volume.MethodHotSet, "Teleport"} {
		if w := m.Word(); w != "" {
			t.Errorf("a user says %q for %q", w, m)
		}
	}
}
