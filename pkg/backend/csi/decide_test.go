package csi

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// of returns a claim that is bound to a PersistentVolume that was made for it.
func of(admitted *admission, annotations map[string]string) facts {
	return facts{
		claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "1", Finalizers: []string{Finalizer}, Annotations: annotations},
			Spec: corev1.PersistentVolumeClaimSpec{
				VolumeName: "pv", StorageClassName: ptr.To("class"), Resources: requestOf(mib),
			},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		pv: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: map[string]string{annotationProvisionedBy: "d"}},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef: &corev1.ObjectReference{Name: "v", UID: "1"}, VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d"}},
			},
		},
		admitted: admitted, generation: 2,
	}
}

func (f facts) attachedTo(node, name string, deleting bool) facts {
	f.attachment = &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationAdmission: name}, Labels: map[string]string{LabelGeneration: "2"}},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: node},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	}
	if deleting {
		f.attachment.DeletionTimestamp = &metav1.Time{}
	}
	return f
}

func to(node, name string) *admission { return &admission{Node: node, Generation: 2, Name: name} }

// TestExportsAndEnd: whom a volume admits, and what the end of one of them does.
func TestExportsAndEnd(t *testing.T) {
	x := func(node, name string, attached bool) backend.Export {
		return backend.Export{Initiator: node, Generation: 2, Admission: name, LoggedIn: attached}
	}
	tests := map[string]struct {
		facts   facts
		exports []backend.Export
		end     backend.Export
		step    endStep
	}{
		"nobody":                         {facts: of(nil, nil), end: x("a", "1", false), step: endDone},
		"attached":                       {facts: of(to("a", "1"), nil).attachedTo("a", "1", false), exports: []backend.Export{x("a", "1", true)}, end: x("a", "1", true), step: endDetach},
		"another admission of the node":  {facts: of(to("a", "2"), nil).attachedTo("a", "2", false), exports: []backend.Export{x("a", "2", true)}, end: x("a", "1", true), step: endDone},
		"killed before the stamp":        {facts: of(to("a", "2"), nil).attachedTo("a", "1", false), exports: []backend.Export{x("a", "2", true)}, end: x("a", "2", true), step: endDetach},
		"the former one, before a stamp": {facts: of(to("a", "2"), nil).attachedTo("a", "1", false), exports: []backend.Export{x("a", "2", true)}, end: x("a", "1", true), step: endDone},
		"killed before the attachment":   {facts: of(to("a", "1"), nil), exports: []backend.Export{x("a", "1", false)}, end: x("a", "1", false), step: endForget},
		"detaching":                      {facts: of(to("a", "1"), nil).attachedTo("a", "1", true), exports: []backend.Export{x("a", "1", true)}, end: x("a", "1", true), step: endWait},
		"left by one that stalled":       {facts: of(to("b", "2"), nil).attachedTo("a", "1", false), exports: []backend.Export{x("b", "2", false), x("a", "1", true)}, end: x("a", "1", true), step: endDetach},
		"beside one that was left":       {facts: of(to("b", "2"), nil).attachedTo("a", "1", false), exports: []backend.Export{x("b", "2", false), x("a", "1", true)}, end: x("b", "2", false), step: endForget},
		"left by another that stalled":   {facts: of(nil, nil).attachedTo("a", "1", false), exports: []backend.Export{x("a", "1", true)}, end: x("a", "3", true), step: endDone},
		"whatever the node has":          {facts: of(to("a", "1"), nil).attachedTo("a", "1", false), exports: []backend.Export{x("a", "1", true)}, end: x("a", "", true), step: endDetach},
		"no attachment to be had":        {facts: of(&admission{Node: "a", Generation: 2, Name: "1", NoAttach: true}, nil), exports: []backend.Export{x("a", "1", true)}, end: x("a", "1", true), step: endForget},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.facts.exports(); !slices.Equal(got, tc.exports) {
				t.Errorf("admitted are %+v, want %+v", got, tc.exports)
			}
			if got := decideEnd(tc.facts, tc.end); got != tc.step {
				t.Errorf("step %d, want %d", got, tc.step)
			}
		})
	}
}

func TestDecideExport(t *testing.T) {
	with := func(f facts, change func(*facts)) facts {
		change(&f)
		return f
	}
	grant := backend.Grant{Node: "a", Generation: 2}
	tests := map[string]struct {
		facts facts
		grant backend.Grant
		want  error
	}{
		"first":             {facts: of(nil, nil), grant: grant},
		"again":             {facts: of(to("a", "1"), nil).attachedTo("a", "1", false), grant: grant},
		"outdated":          {facts: of(nil, nil), grant: backend.Grant{Node: "a", Generation: 1}, want: volume.ErrFenced},
		"no generation":     {facts: of(nil, nil), grant: backend.Grant{Node: "a"}, want: volume.ErrInvalid},
		"no node":           {facts: of(nil, nil), grant: backend.Grant{Generation: 2}, want: volume.ErrInvalid},
		"no claim":          {grant: grant, want: volume.ErrNotFound},
		"another admitted":  {facts: of(to("b", "1"), nil), grant: grant, want: volume.ErrInUse},
		"another attached":  {facts: of(nil, nil).attachedTo("b", "1", true), grant: grant, want: volume.ErrInUse},
		"deletion asked":    {facts: of(nil, map[string]string{annotationDeleted: "true"}), grant: grant, want: volume.ErrBusy},
		"not bound":         {facts: with(of(nil, nil), func(f *facts) { f.claim.Status.Phase = corev1.ClaimPending }), grant: grant, want: volume.ErrBusy},
		"not kept":          {facts: with(of(nil, nil), func(f *facts) { f.pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete }), grant: grant, want: volume.ErrBackend},
		"claim is deleting": {facts: with(of(nil, nil), func(f *facts) { f.claim.DeletionTimestamp = &metav1.Time{} }), grant: grant},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := decideExport("v", tc.facts, tc.grant); !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestDecideDelete(t *testing.T) {
	asked := map[string]string{annotationDeleted: "true"}
	change := func(f facts, change func(*facts)) facts {
		change(&f)
		return f
	}
	onDelete := func(f *facts) { f.pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete }
	gone := func(f *facts) { onDelete(f); f.claim.DeletionTimestamp = &metav1.Time{} }
	tests := map[string]struct {
		facts facts
		want  deleteStep
	}{
		"no claim":                  {want: deleteDone},
		"nobody has asked":          {facts: change(of(nil, nil), gone), want: deleteDone},
		"kept":                      {facts: of(nil, asked), want: deleteRelease},
		"released":                  {facts: change(of(nil, asked), onDelete), want: deleteClaim},
		"deleted":                   {facts: change(of(nil, asked), gone), want: deleteFinalizer},
		"without our finalizer":     {facts: change(of(nil, asked), func(f *facts) { gone(f); f.claim.Finalizers = nil }), want: deleteWait},
		"found by Kubernetes":       {facts: change(of(nil, asked), func(f *facts) { f.pv.Annotations[annotationFound] = "yes" }), want: deleteClaim},
		"static":                    {facts: of(nil, map[string]string{annotationDeleted: "true", annotationStatic: "pv"}), want: deleteClaim},
		"not made by a provisioner": {facts: change(of(nil, asked), func(f *facts) { f.pv.Annotations = nil }), want: deleteClaim},
		"another claim's":           {facts: change(of(nil, asked), func(f *facts) { f.pv.Spec.ClaimRef.UID = "2" }), want: deleteClaim},
		"never bound":               {facts: change(of(nil, asked), func(f *facts) { f.pv = nil }), want: deleteClaim},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := decideDelete(tc.facts); got != tc.want {
				t.Errorf("step %d, want %d", got, tc.want)
			}
		})
	}
}

func TestReadState(t *testing.T) {
	for text, ok := range map[string]bool{"3": true, "0": false, "x": false} {
		f := of(nil, map[string]string{annotationGeneration: text})
		if _, _, err := readState(f.claim); (err == nil) != ok {
			t.Errorf("generation %q: %v", text, err)
		}
	}
	for text, ok := range map[string]bool{`{"node":"a","name":"1"}`: true, `{}`: false, `node a`: false} {
		f := of(nil, map[string]string{annotationAdmitted: text})
		if _, _, err := readState(f.claim); (err == nil) != ok || err != nil && !errors.Is(err, volume.ErrBackend) {
			t.Errorf("admitted %q: %v", text, err)
		}
	}
}
