package records_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testReportTorn: the condition is of the ownership that stopped, and stays.
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
}
