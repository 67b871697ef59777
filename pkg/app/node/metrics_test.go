package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/observe"
)

func TestNameVolumes(t *testing.T) {
	object := func(name, pv string, claim *v1alpha1.ClaimReference) v1alpha1.CachedVolume {
		return v1alpha1.CachedVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CachedVolumeSpec{ClaimRef: claim},
			Status: v1alpha1.CachedVolumeStatus{PersistentVolumeName: pv},
		}
	}
	volumes := []observe.Volume{{ID: "pvc-1", PV: "pvc-1"}, {ID: "static", PV: "static"}, {ID: "journal", PV: "pv", Namespace: "shop", Claim: "kept"}}
	nameVolumes(volumes, []v1alpha1.CachedVolume{
		object("static", "my-pv", nil), object("another", "", nil), object("pvc-1", "", &v1alpha1.ClaimReference{Namespace: "shop", Name: "data"}),
	})
	want := []observe.Volume{
		{ID: "pvc-1", PV: "pvc-1", Namespace: "shop", Claim: "data"}, {ID: "static", PV: "my-pv"}, {ID: "journal", PV: "pv", Namespace: "shop", Claim: "kept"},
	}
	if diff := cmp.Diff(want, volumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}
