package records_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testReportTorn: the condition is of the ownership that stopped, and stays until somebody takes it away, or the
// next unclean stop.
func testReportTorn(t *testing.T, f *fixture) {
	other := f.fence
	other.Generation++
	wantError(t, f.rec.ReportTorn(t.Context(), f.id, other, "it stopped"), volume.ErrFenced)
	consistent := func() *metav1.Condition {
		obj, err := records.Load(t.Context(), f.api, f.id)
		must(t, err)
		return meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionConsistent)
	}
	if c := consistent(); c != nil {
		t.Fatalf("another ownership's word is on record: %+v", c)
	}
	for range 2 {
		must(t, f.rec.ReportTorn(t.Context(), f.id, f.fence, "it stopped"))
	}
	if c := consistent(); c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonUncleanStop || c.Message != "it stopped" {
		t.Errorf("the record says %+v", c)
	}
	obj, err := records.Load(t.Context(), f.api, f.id)
	must(t, err)
	meta.RemoveStatusCondition(&obj.Status.Conditions, v1alpha1.ConditionConsistent)
	must(t, f.api.Status().Update(t.Context(), obj))
	must(t, f.rec.Report(t.Context(), f.id, volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive, Message: "in use"}))
	if c := consistent(); c != nil {
		t.Errorf("taken away, and back: %+v", c)
	}
	must(t, f.rec.ReportTorn(t.Context(), f.id, f.fence, "it stopped again"))
	if c := consistent(); c == nil || c.Status != metav1.ConditionFalse || c.Message != "it stopped again" {
		t.Errorf("another unclean stop: %+v", c)
	}
}
