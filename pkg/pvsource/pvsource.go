// Package pvsource says which volume of which CSI driver a PersistentVolume is of. One of an in-tree
// plugin is of the CSI driver that has taken its place (csi-translation-lib), as for Kubernetes and
// the CSI sidecars.
package pvsource

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Of returns what a CSI driver knows of a PersistentVolume. It asks nobody. Errors: ErrInvalid.
func Of(pv *corev1.PersistentVolume) (*corev1.CSIPersistentVolumeSource, error) {
	if pv.Spec.CSI != nil {
		return pv.Spec.CSI, nil
	}
	if !Has(pv) {
		return nil, fmt.Errorf("%w: PersistentVolume %s is of kind %s: accepted as an origin is a volume of a CSI driver (spec.csi), or of an in-tree kind that has one", volume.ErrInvalid, pv.Name, Kind(pv))
	}
	out, err := csitranslation.New().TranslateInTreePVToCSI(klog.Background(), pv.DeepCopy())
	if err != nil {
		return nil, fmt.Errorf("%w: PersistentVolume %s of kind %s has no form of a CSI driver: %w", volume.ErrInvalid, pv.Name, Kind(pv), err)
	}
	return out.Spec.CSI, nil
}

// Has reports whether a PersistentVolume has a CSI driver.
func Has(pv *corev1.PersistentVolume) bool {
	return pv.Spec.CSI != nil || csitranslation.New().IsPVMigratable(pv)
}

// Kind names the plugin of a PersistentVolume, as the API does.
func Kind(pv *corev1.PersistentVolume) string {
	text, _ := json.Marshal(pv.Spec.PersistentVolumeSource) // an API type
	kinds := map[string]json.RawMessage{}
	_ = json.Unmarshal(text, &kinds)
	for kind := range kinds {
		return kind
	}
	return "unknown"
}

// Same reports whether two sources may be of one volume. An in-tree disk of Google's names no
// project, and perhaps no zone (UnspecifiedValue of csi-translation-lib); Azure knows its names in any
// case of letters.
func Same(x, y *corev1.CSIPersistentVolumeSource) bool {
	if x.Driver != y.Driver {
		return false
	}
	a, b := x.VolumeHandle, y.VolumeHandle
	switch x.Driver {
	case plugins.GCEPDDriverName:
		return slices.EqualFunc(strings.Split(a, "/"), strings.Split(b, "/"), func(x, y string) bool {
			return x == y || x == plugins.UnspecifiedValue || y == plugins.UnspecifiedValue
		})
	case plugins.AzureDiskDriverName:
		return strings.EqualFold(a, b)
	}
	return a == b
}
