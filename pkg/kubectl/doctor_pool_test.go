package kubectl

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// TestGonePool: doctor says why the pool of a node is there that is not.
func TestGonePool(t *testing.T) {
	cases := map[string]struct {
		reason   string
		severity severity
	}{
		"a controller of before":     {"", sevWarning},
		"about to go":                {v1alpha1.ReasonNodeMayReturn, sevOK},
		"something dirty names it":   {v1alpha1.ReasonUnflushedWrites, sevWarning},
		"an administrator's own one": {v1alpha1.ReasonMadeByAdministrator, sevWarning},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d, p := &diagnosis{}, &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}
			if tc.reason != "" {
				meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionNodeGone, Status: metav1.ConditionTrue, Reason: tc.reason, Message: "It has volume pvc-1."})
			}
			checkGone(d, "node/gone", p)
			if len(d.Findings) != 1 || d.Findings[0].Severity != tc.severity {
				t.Fatalf("findings %+v, want one of severity %v", d.Findings, tc.severity)
			}
			if f := d.Findings[0]; tc.severity == sevWarning && tc.reason != "" && (!strings.Contains(f.Message, tc.reason) || !strings.Contains(f.Message, "pvc-1") || f.Remedy == "") {
				t.Errorf("finding %+v lacks the reason", f)
			}
		})
	}
}

// TestEvacuation: a device that is out, or on its way, is nothing to see to; one that waits is, and nobody
// is told to clear it.
func TestEvacuation(t *testing.T) {
	for state, want := range map[v1alpha1.EvacuationState]int{v1alpha1.EvacuationEvacuated: 0, v1alpha1.EvacuationEvacuating: 0, v1alpha1.EvacuationWaiting: 1} {
		p := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.CachePoolStatus{
			Devices: []v1alpha1.CachePoolDevice{{
				Path: "/dev/nvme0n1", Message: "is out of the pool", Evacuation: &v1alpha1.DeviceEvacuation{State: state, Message: "pvc-1: its unflushed writes wait"},
			}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}},
		}}
		d := &diagnosis{}
		checkPool(d, "node/a", p)
		if len(d.Findings) != want {
			t.Errorf("%s: findings %+v", state, d.Findings)
		}
		for _, f := range d.Findings {
			if strings.Contains(f.Remedy, "wipefs") || !strings.Contains(f.Message, "pvc-1") {
				t.Errorf("%s: finding %+v", state, f)
			}
		}
	}
}

// TestForeignDevice: nobody is told to clear SSDs that may have the only copy of some writes.
func TestForeignDevice(t *testing.T) {
	text := v1alpha1.MessageForeignDevice + " (volume group nearflash-0123456789)"
	p := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.CachePoolStatus{
		Devices: []v1alpha1.CachePoolDevice{{Path: "/dev/nvme0n1", Message: text}},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDeviceNotBlank,
			Message: "no device can be used; refused, not wiped: /dev/nvme0n1: " + text}},
	}}
	d := &diagnosis{}
	checkPool(d, "node/a", p)
	if len(d.Findings) != 2 {
		t.Fatalf("findings %+v", d.Findings)
	}
	for _, f := range d.Findings {
		if strings.Contains(f.Remedy, "wipefs") || !strings.Contains(f.Remedy, "Take over the SSDs of another node") {
			t.Errorf("remedy %q", f.Remedy)
		}
	}
}
