package adopt

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Unfinished tells of a ConfigMap with LabelAdoption which claim it is the journal of, and which command
// ends what was begun: "adopt", "release", or "" if the claim has its cache. volumes are all
// PersistentVolumes of the cluster. An error says why the journal makes no
// sense, or that it was written by a newer version (ErrNewer).
func Unfinished(obj *corev1.ConfigMap, volumes []corev1.PersistentVolume) (claim types.NamespacedName, command string, err error) {
	j, err := decode(obj)
	if err != nil {
		return claim, "", err
	}
	claim = types.NamespacedName{Namespace: j.Claim.Namespace, Name: j.Claim.Name}
	if j.Direction != toCache {
		return claim, string(toOriginal), nil
	}
	for i := range volumes {
		if volumes[i].Name == j.front() && volumes[i].Status.Phase == corev1.VolumeBound {
			return claim, "", nil
		}
	}
	return claim, string(toCache), nil
}
