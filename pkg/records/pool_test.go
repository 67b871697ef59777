package records

import (
	"strconv"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// TestAddDeleted: a word is said once, for the highest generation, and of too many the
// oldest is forgotten.
func TestAddDeleted(t *testing.T) {
	var st v1alpha1.CachePoolStatus
	add := func(name, uid string, generation int64) {
		AddDeleted(&st, v1alpha1.DeletedVolume{VolumeName: name, VolumeUID: uid, Generation: ptr.To(generation)})
	}
	for _, generation := range []int64{2, 3, 1} {
		add("v", "u", generation)
	}
	add("v", "another", 1)
	if len(st.Deleted) != 2 || *st.Deleted[0].Generation != 3 || *st.Deleted[1].Generation != 1 {
		t.Errorf("got %+v", st.Deleted)
	}
	for i := range v1alpha1.MaxDeletedVolumes {
		add("v"+strconv.Itoa(i), "u", 1)
	}
	if n := len(st.Deleted); n != v1alpha1.MaxDeletedVolumes || st.Deleted[0].VolumeName != "v0" {
		t.Errorf("%d are left, the first is %+v", n, st.Deleted[0])
	}
}
