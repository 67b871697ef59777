package csi

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/volume"
)

func (f *fixture) behaviour() csitest.Behaviour { return csitest.Behaviour{} }

// exports are whom a volume admits.
func (f *fixture) exports(t *testing.T, id volume.ID) []backend.Export {
	t.Helper()
	a, err := f.b.Access(t.Context(), id)
	must(t, err)
	return a.Exports
}

func testAdmit(t *testing.T, f *fixture) {
	f.make(t, "v")
	at, err := f.b.Export(t.Context(), "v", f.grant("a", 1))
	must(t, err)
	pv := f.pv(t, "v").Name
	if s := at.CSI; s.Driver != f.Driver || s.Handle != "vol-"+pv || s.PV != pv || s.Attributes["pool"] != "a" ||
		s.Attachment["attachment"] != "vol-"+pv+"@a" || s.CapacityBytes != 8*mib || s.Admission == "" {
		t.Errorf("source %+v", s)
	}
	va, err := f.b.attachment(t.Context(), "v")
	must(t, err)
	if !strings.HasPrefix(va.Name, "nearflash-") || va.Spec.Source.InlineVolumeSpec != nil || va.Labels[LabelVolume] != "v" || va.Labels[LabelGeneration] != "1" {
		t.Errorf("VolumeAttachment %+v", va)
	}
	// To the owner again: another admission, and nothing is detached in between.
	first := f.exports(t, "v")[0]
	anew, err := f.b.Export(t.Context(), "v", f.grant("a", 1))
	must(t, err)
	if !anew.Same(at) {
		t.Errorf("admitted again: %+v, was %+v", anew.CSI, at.CSI)
	}
	again, err := f.b.attachment(t.Context(), "v")
	if err != nil || again.UID != va.UID || f.exports(t, "v")[0].Admission == first.Admission {
		t.Errorf("admitted again: %+v, %v", again, err)
	}
	_, err = f.b.Export(t.Context(), "v", backend.Grant{Node: f.Node("nobody"), Generation: 2})
	want(t, err, volume.ErrInUse)
	must(t, f.b.Unexport(t.Context(), "v", f.exports(t, "v")[0]))
	if got := f.Attached(); len(got) > 0 {
		t.Errorf("attached: %v", got)
	}
	_, err = f.b.Export(t.Context(), "v", backend.Grant{Node: f.Node("nobody"), Generation: 2})
	want(t, err, volume.ErrNodeNotFound, f.Node("nobody"), f.Driver)
}

// testNoAttach: without an attachment the admission is on the claim alone, as durable and as
// exclusive, but nothing fences.
func testNoAttach(t *testing.T, f *fixture) {
	object := &storagev1.CSIDriver{}
	must(t, f.api.Get(t.Context(), client.ObjectKey{Name: f.Driver}, object))
	must(t, f.api.Delete(t.Context(), object))
	must(t, f.api.Create(t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: f.Driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}))
	fenced, err := f.b.Fenced(t.Context(), "v", volume.Origin{StorageClass: f.Class("")})
	if err != nil || fenced {
		t.Fatalf("fenced %v, %v", fenced, err)
	}
	f.make(t, "v")
	_, err = f.b.Export(t.Context(), "v", f.grant("a", 3))
	must(t, err)
	if va, err := f.b.attachment(t.Context(), "v"); va != nil || err != nil {
		t.Errorf("VolumeAttachment %v, %v", va, err)
	}
	got := f.exports(t, "v")
	if len(got) != 1 || got[0].Initiator != f.Node("a") || got[0].Generation != 3 || !got[0].LoggedIn {
		t.Errorf("exports %+v", got)
	}
	_, err = f.b.Export(t.Context(), "v", f.grant("b", 4))
	want(t, err, volume.ErrInUse)
	want(t, f.b.Delete(t.Context(), "v"), volume.ErrInUse)
	must(t, f.b.Unexport(t.Context(), "v", got[0]))
	_, err = f.b.Export(t.Context(), "v", f.grant("b", 2))
	want(t, err, volume.ErrFenced)
	_, err = f.b.Export(t.Context(), "v", f.grant("b", 4))
	must(t, err)
}

// testForeign: nobody is admitted, and nothing deleted, while somebody else uses the origin.
func testForeign(t *testing.T, f *fixture) {
	f.make(t, "v")
	pv := f.pv(t, "v").Name
	other := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-of-somebody-" + f.Namespace},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "other." + f.Driver, NodeName: f.Node("b"), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}
	must(t, f.api.Create(t.Context(), other))
	_, err := f.b.Export(t.Context(), "v", f.grant("a", 1))
	want(t, err, volume.ErrInUse, other.Name, f.Node("b"))
	want(t, f.b.Delete(t.Context(), "v"), volume.ErrInUse, other.Name)
	must(t, f.api.Delete(t.Context(), other))

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "intruder"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i", VolumeDevices: []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "v"},
			}}},
		},
	}
	must(t, f.api.Create(t.Context(), pod))
	_, err = f.b.Export(t.Context(), "v", f.grant("a", 1))
	want(t, err, volume.ErrInUse, "intruder")
	must(t, f.api.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	_, err = f.b.Export(t.Context(), "v", f.grant("a", 1))
	must(t, err)
}

// testSlow: who waits for the other driver comes back, and goes on where it was.
func testSlow(t *testing.T, f *fixture) {
	b := f.behaviour()
	b.HoldBind, b.HoldAttach, b.HoldDetach = true, true, true
	f.Behave(b)
	f.wantBusy(t, func(b *Backend) error { return b.Create(t.Context(), "v", f.request(8*mib)) }, "bound")
	_, err := f.b.Export(t.Context(), "v", f.grant("a", 1))
	want(t, err, volume.ErrBusy, "not bound")
	b.HoldBind = false
	f.Behave(b)
	f.make(t, "v")

	admit := func(b *Backend) error {
		_, err := b.Export(t.Context(), "v", f.grant("a", 1))
		return err
	}
	f.wantBusy(t, admit, "attached")
	if got := f.exports(t, "v"); len(got) != 1 || got[0].LoggedIn {
		t.Errorf("exports %+v", got)
	}
	_, err = f.b.Export(t.Context(), "v", f.grant("b", 2))
	want(t, err, volume.ErrInUse)
	b.HoldAttach, b.AttachError = false, "rpc error: code = Internal desc = fabric is down"
	f.Behave(b)
	_, err = f.b.Export(t.Context(), "v", f.grant("a", 1))
	want(t, err, volume.ErrUnavailable, "fabric is down")
	b.AttachError = ""
	f.Behave(b)
	f.await(t, "attached", func() bool { return f.exports(t, "v")[0].LoggedIn })
	_, err = f.b.Export(t.Context(), "v", f.grant("a", 1))
	must(t, err)

	held := f.exports(t, "v")[0]
	f.wantBusy(t, func(b *Backend) error { return b.Unexport(t.Context(), "v", held) }, "detached")
	if got := f.exports(t, "v"); len(got) != 1 || got[0] != held {
		t.Errorf("before it is detached: %+v", got)
	}
	_, err = f.b.Export(t.Context(), "v", f.grant("b", 2))
	want(t, err, volume.ErrInUse)
	f.wantBusy(t, admit) // not by an attachment that is about to end
	b.HoldDetach = false
	f.Behave(b)
	must(t, f.b.Unexport(t.Context(), "v", f.exports(t, "v")[0]))
	_, err = f.b.Export(t.Context(), "v", f.grant("b", 2))
	must(t, err)
}
