package adopt

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// ebsDisk is a disk as the in-tree plugin of Amazon's named it.
func ebsDisk(fs string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://eu-1a/vol-1", FSType: fs}}
}

// TestInTree: a disk of an in-tree plugin is that of its CSI driver, and of its kind below the cache and
// when it comes back.
func TestInTree(t *testing.T) {
	f := before()
	f.volume.Spec.PersistentVolumeSource = ebsDisk("XFS")
	in := func(key string) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{"eu-1a"}}},
		}}}}
	}
	f.volume.Spec.NodeAffinity = in(corev1.LabelTopologyZone)
	j := newJournal(f, Want{})
	data, err := j.encode()
	if err != nil {
		t.Fatal(err)
	}
	if j, err = decode(&corev1.ConfigMap{Data: data}); err != nil {
		t.Fatal(err)
	}
	block := j.blockVolume("origins")
	equal(t, "origin: source", block.Spec.PersistentVolumeSource, ebsDisk("XFS"))
	equal(t, "origin: mode", *block.Spec.VolumeMode, corev1.PersistentVolumeBlock)
	equal(t, "origin: node affinity", block.Spec.NodeAffinity, in(corev1.LabelTopologyZone))
	front := j.frontVolume()
	equal(t, "front: driver", front.Spec.CSI.Driver, driverName)
	equal(t, "front: filesystem", front.Spec.CSI.FSType, "xfs")
	equal(t, "front: node affinity", front.Spec.NodeAffinity, in(corev1.LabelTopologyZone))
	original := j.originalVolume()
	equal(t, "original: source", original.Spec.PersistentVolumeSource, ebsDisk("XFS"))
	equal(t, "original: node affinity", original.Spec.NodeAffinity, in(corev1.LabelTopologyZone))
	for what, pv := range map[string]*corev1.PersistentVolume{"origin": block, "original": original} {
		if !sameSource(pv, f.volume) {
			t.Errorf("%s is not of the same volume", what)
		}
	}
	ofDriver := block.DeepCopy()
	ofDriver.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: "vol-1"}}
	if !sameSource(ofDriver, f.volume) || !maybeTwins(ofDriver, f.volume) {
		t.Error("one of its CSI driver is not of the same volume")
	}
	disk := func(handle string) *corev1.PersistentVolume {
		pv := block.DeepCopy()
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "pd.csi.storage.gke.io", VolumeHandle: handle}}
		return pv
	}
	perhaps, named := disk("projects/UNSPECIFIED/zones/z/disks/d"), disk("projects/p/zones/z/disks/d")
	if sameSource(perhaps, named) || !maybeTwins(perhaps, named) {
		t.Error("a disk of no project is certainly that of one, or not perhaps")
	}
	if sameSource(front, f.volume) {
		t.Error("the front is of the same volume")
	}
	if said := strings.Join(warnings(f, j), "\n"); !strings.Contains(said, "in-tree kind awsElasticBlockStore: it is volume vol-1 of driver ebs.csi.aws.com, and stays of its kind") {
		t.Errorf("warnings: %s", said)
	}
}
