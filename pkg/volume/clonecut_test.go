package volume

import (
	"strings"
	"testing"
)

func TestCloneCut(t *testing.T) {
	long := ID(strings.Repeat("a", MaxIDLength))
	seen := map[SnapshotID]ID{}
	for _, id := range []ID{"a", "pvc-1", long, long[1:], long[6:], "b" + long[1:]} {
		cut := CloneCut(id)
		if _, err := ParseID(string(cut)); err != nil || !cut.ForClone() {
			t.Errorf("%s: %s, %v", id, cut, err)
		}
		if other, twice := seen[cut]; twice {
			t.Errorf("%s and %s are cloned from the same cut", id, other)
		}
		seen[cut] = id
	}
	if SnapshotID("snapshot-1").ForClone() {
		t.Error("a snapshot is taken for what a clone is made from")
	}
}
