package adopt

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// adopted is the journal of a claim with everything that has to come back.
func adopted() *journal {
	f := before()
	f.claim.Labels = map[string]string{"app": "db"}
	f.claim.Annotations = map[string]string{"note": "mine", "pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "n"}
	f.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "s"}
	f.volume.Labels = map[string]string{"zone": "z"}
	f.volume.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "d.example.org", "pv.kubernetes.io/bound-by-controller": "yes"}
	f.volume.Spec.MountOptions = []string{"noatime"}
	f.volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z"}}},
	}}}}
	f.volume.Spec.CSI.VolumeAttributes = map[string]string{"pool": "p"}
	f.volume.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
	f.volume.Spec.CSI.NodeExpandSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "grow"}
	return newJournal(f, Want{Attributes: map[string]string{"cacheMode": "none"}})
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestMade: what is made is on Retain and reserved from its first moment on, and has what the
// original had.
func TestMade(t *testing.T) {
	j := adopted()
	old := &j.Volume.Spec
	for name, pv := range map[string]*corev1.PersistentVolume{"front": j.frontVolume(), "origin": j.blockVolume("origins"), "original": j.originalVolume()} {
		s := &pv.Spec
		equal(t, name+": policy", s.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
		want := reserved("shop", "data")
		if name == "origin" {
			want = reserved("origins", "adopted-c1")
		}
		equal(t, name+": claimRef", s.ClaimRef, want)
		equal(t, name+": labels", pv.Labels, map[string]string{"zone": "z"})
		equal(t, name+": node affinity", s.NodeAffinity, old.NodeAffinity)
		equal(t, name+": class", s.StorageClassName, "fast")
		equal(t, name+": capacity", s.Capacity, old.Capacity)
	}
	front := j.frontVolume()
	equal(t, "front: source", front.Spec.CSI, &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "adopted-c1", FSType: "ext4", NodeStageSecretRef: old.CSI.NodeStageSecretRef, NodeExpandSecretRef: old.CSI.NodeExpandSecretRef,
		VolumeAttributes: map[string]string{"backend": "csi", "originPersistentVolume": "adopted-c1-origin", "cacheMode": "none"},
	})
	equal(t, "front: mode", *front.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	equal(t, "front: mount options", front.Spec.MountOptions, old.MountOptions)
	block := j.blockVolume("origins")
	want := old.CSI.DeepCopy()
	want.FSType = ""
	equal(t, "origin: source", block.Spec.CSI, want)
	equal(t, "origin: mode", *block.Spec.VolumeMode, corev1.PersistentVolumeBlock)
	equal(t, "origin: mount options", len(block.Spec.MountOptions), 0)
	original := j.originalVolume()
	equal(t, "original: source", original.Spec.CSI, old.CSI)
	equal(t, "original: annotations", original.Annotations, map[string]string{"pv.kubernetes.io/provisioned-by": "d.example.org"})
	j.Capacity = ptr.To(resource.MustParse("9Mi"))
	equal(t, "original: grown", j.originalVolume().Spec.Capacity.Storage().String(), "9Mi")
}

// TestClaimAgain: the claim is what it was, but for what says how it was bound and what it was
// made of; its release keeps what was changed meanwhile.
func TestClaimAgain(t *testing.T) {
	j := adopted()
	c := j.claimFor("pv-x")
	equal(t, "volume", c.Spec.VolumeName, "pv-x")
	equal(t, "class", *c.Spec.StorageClassName, "fast")
	equal(t, "labels", c.Labels, map[string]string{"app": "db"})
	equal(t, "annotations", c.Annotations, map[string]string{"note": "mine"})
	if c.Spec.DataSource != nil || c.UID != "" || c.ResourceVersion != "" {
		t.Errorf("claim %+v", c)
	}
	j.Labels, j.Direction = map[string]string{"app": "db2", "tier": "gold"}, toOriginal
	j.Annotations = maps.Clone(j.Claim.Annotations)
	j.Owners = []metav1.OwnerReference{{Name: "o"}}
	j.Request = ptr.To(resource.MustParse("9Mi"))
	c = j.claimFor("pv-1")
	equal(t, "labels after", c.Labels, map[string]string{"app": "db2", "tier": "gold"})
	equal(t, "annotations after", c.Annotations, map[string]string{"note": "mine"})
	equal(t, "owners after", c.OwnerReferences, j.Owners)
	equal(t, "request after", c.Spec.Resources.Requests.Storage().String(), "9Mi")
}

// TestJournal: what is written is what is read, and what was edited is refused.
func TestJournal(t *testing.T) {
	j := adopted()
	j.order("u1")
	data, err := j.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(&corev1.ConfigMap{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "state", got.state, j.state)
	equal(t, "claim", got.claimFor("x").Spec, j.claimFor("x").Spec)
	equal(t, "source", got.Volume.Spec.CSI, j.Volume.Spec.CSI)
	for _, edit := range [][2]string{
		{keyState, "direction: sideways\n"}, {keyState, "unknown: field\n"}, {keyClaim, "metadata: {}\n"}, {keyVolume, "metadata: {uid: v1}\n"},
	} {
		bad := maps.Clone(data)
		bad[edit[0]] = edit[1]
		if _, err := decode(&corev1.ConfigMap{Data: bad}); err == nil {
			t.Errorf("%s: %q was read", edit[0], edit[1])
		}
	}
}

// TestJournalFormat: a journal without a number is of format 1, one of a later format is refused in
// words, and what versions before read strictly has no key more.
func TestJournalFormat(t *testing.T) {
	data, err := adopted().encode()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "format", data[keyFormat], "1")
	if strings.Contains(data[keyState], "format") {
		t.Errorf("versions before refuse the state %s", data[keyState])
	}
	before := maps.Clone(data)
	delete(before, keyFormat)
	if _, err := decode(&corev1.ConfigMap{Data: before}); err != nil {
		t.Errorf("of before formats: %v", err)
	}
	data[keyFormat], data[keyState] = "2", "what: nobody knows\n"
	if _, err := decode(&corev1.ConfigMap{Data: data}); !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "format 2, known is 1: use kubectl nearflash of that version") {
		t.Errorf("of a later format: %v", err)
	}
	claim := types.NamespacedName{Namespace: "ns", Name: "data"}
	a := &Adopter{origins: "origins"}
	key := a.journalKey(claim)
	a.api = fake.NewClientBuilder().WithObjects(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Data: data}).Build()
	if _, err := a.load(t.Context(), claim); !errors.Is(err, ErrNewer) || strings.Contains(err.Error(), "restore") {
		t.Errorf("of a later format, in the cluster: %v", err)
	}
}
