package driver

import "slices"

// ClassParameters returns the accepted parameters of a StorageClass.
func ClassParameters() []string { return slices.Clone(classParameters) }

// MutableParameters returns the accepted parameters of a VolumeAttributesClass.
func MutableParameters() []string { return slices.Clone(mutableParameters) }

// CheckClass judges the parameters of a StorageClass as CreateVolume does; the
// error, an ErrInvalid, names every problem. Parameters of Kubernetes' own sidecars
// (csi.storage.k8s.io/...) are let pass.
func CheckClass(params map[string]string) error {
	_, err := parseClass(params)
	return err
}

// CheckMutable judges the parameters of a VolumeAttributesClass as
// ControllerModifyVolume does before it looks at the volume.
func CheckMutable(params map[string]string) error {
	_, err := parseChange(params)
	return err
}

// CheckStatic judges the volumeAttributes of a static PersistentVolume as
// ControllerPublishVolume does.
func CheckStatic(attributes map[string]string) error {
	_, _, err := parseVolumeContext(attributes)
	return err
}

// CheckSnapshotClass judges the parameters of a VolumeSnapshotClass as CreateSnapshot does.
func CheckSnapshotClass(params map[string]string) error {
	_, err := parseSnapshotClass(params)
	return err
}

// SnapshotClassParameters returns the accepted parameters of a VolumeSnapshotClass.
func SnapshotClassParameters() []string { return slices.Clone(snapshotParameters) }
