package csi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearflash/nearflash/pkg/volume"
)

// testAdmitted: an attachment without an admission is one as well, as a controller that was
// killed or has stalled leaves it; and what somebody has edited is no proof of anything.
func testAdmitted(t *testing.T, f *fixture) {
	f.make(t, "v")
	_, err := f.b.Export(t.Context(), "v", f.grant("a", 1))
	must(t, err)
	node := f.Node("a")
	write := func(change func(*corev1.PersistentVolumeClaim)) {
		t.Helper()
		must(t, f.b.writeClaim(t.Context(), f.claim(t, "v"), change))
	}
	before := f.claim(t, "v").Annotations[annotationAdmitted]
	write(func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, annotationAdmitted) })
	if all, err := f.b.AdmittedHosts(t.Context()); all[node] != "v" || err != nil {
		t.Errorf("an attachment to the node: %v, %v", all, err)
	}
	write(func(c *corev1.PersistentVolumeClaim) { c.Annotations[annotationAdmitted] = "{" })
	_, err = f.b.AdmittedHosts(t.Context())
	want(t, err, volume.ErrBackend, "v")
	write(func(c *corev1.PersistentVolumeClaim) { c.Annotations[annotationAdmitted] = before })
	if all, err := f.b.AdmittedHosts(t.Context()); all[node] != "v" || all[f.Node("b")] != "" || err != nil {
		t.Errorf("the claim's admission: %v, %v", all, err)
	}
}
