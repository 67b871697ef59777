package pvsource

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestSame: an in-tree disk says less of itself than its CSI driver does.
func TestSame(t *testing.T) {
	const gce, azure = "pd.csi.storage.gke.io", "disk.csi.azure.com"
	full := "projects/p/zones/z/disks/d"
	for name, tc := range map[string]struct {
		driver, a, b string
		want         bool
	}{
		"the same":           {gce, full, full, true},
		"no project":         {gce, full, "projects/UNSPECIFIED/zones/z/disks/d", true},
		"no project or zone": {gce, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", full, true},
		"another zone":       {gce, full, "projects/UNSPECIFIED/zones/y/disks/d", false},
		"another disk":       {gce, full, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/e", false},
		"of another form":    {gce, full, "d", false},
		"another case":       {azure, "/subscriptions/S/disks/D", "/subscriptions/s/disks/d", true},
		"of another driver":  {"other", "vol-A", "vol-a", false},
		"a strange handle":   {"other", "projects/UNSPECIFIED/zones/z/disks/d", full, false},
	} {
		if got := Same(source(tc.driver, tc.a), source(tc.driver, tc.b)); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func source(driver, handle string) *corev1.CSIPersistentVolumeSource {
	return &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}
}
