package pool

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
)

// TestReportStreamKey: the key is that of now, and gone when there is none.
func TestReportStreamKey(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.CachePool{}).Build()
	key := ""
	m := NewManager(Config{Node: "a", Preflight: func() string { return "" }, StreamPublicKey: func() string { return key }}, nil, api, nil)
	for _, want := range []string{"first", "second", ""} {
		key = want
		obj, err := m.object(t.Context(), m.Default, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.report(t.Context(), obj, outcome{reason: v1alpha1.ReasonPoolReady}); err != nil {
			t.Fatal(err)
		}
		var got v1alpha1.CachePool
		if err := api.Get(t.Context(), client.ObjectKey{Name: "a"}, &got); err != nil || got.Status.StreamPublicKey != want {
			t.Errorf("key %q, want %q (%v)", got.Status.StreamPublicKey, want, err)
		}
	}
}

// TestReportHostTools: nothing is said before the host was looked at, and what was said stays
// while it is looked at anew, after a restart of the plugin.
func TestReportHostTools(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.CachePool{}).Build()
	problem, note, looked := "", "", false
	m := NewManager(Config{Node: "a", Preflight: func() string { return "" }, HostTools: func() (string, string, bool) { return problem, note, looked }}, nil, api, nil)
	for _, step := range []struct {
		problem, note string
		looked        bool
		want          metav1.ConditionStatus
		message       string
	}{
		{"", "", false, "", ""},
		{"udev looks", "", true, metav1.ConditionFalse, "udev looks"},
		{"", "", false, metav1.ConditionFalse, "udev looks"},
		{"", "", true, metav1.ConditionTrue, "the host's tools leave alone what pods write"},
		{"", "vgchange looks", true, metav1.ConditionTrue, "the host's tools leave alone what pods write by themselves; vgchange looks"},
	} {
		problem, note, looked = step.problem, step.note, step.looked
		obj, err := m.object(t.Context(), m.Default, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.report(t.Context(), obj, outcome{reason: v1alpha1.ReasonPoolReady}); err != nil {
			t.Fatal(err)
		}
		var got v1alpha1.CachePool
		if err := api.Get(t.Context(), client.ObjectKey{Name: "a"}, &got); err != nil {
			t.Fatal(err)
		}
		c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionHostTools)
		if (c != nil) != (step.want != "") || c != nil && (c.Status != step.want || c.Message != step.message) {
			t.Errorf("%+v: condition %+v", step, c)
		}
	}
}

// TestReportLoginKey: a node that has another key than its pool says, says so.
func TestReportLoginKey(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.CachePool{}).Build()
	for _, key := range []string{"one", "two", ""} {
		m := NewManager(Config{Node: "a", Preflight: func() string { return "" }, LoginPublicKey: key}, nil, api, nil)
		obj, err := m.object(t.Context(), v1alpha1.CachePoolSpec{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.report(t.Context(), obj, outcome{}); err != nil {
			t.Fatal(err)
		}
		var got v1alpha1.CachePool
		if err := api.Get(t.Context(), client.ObjectKey{Name: "a"}, &got); err != nil || got.Status.LoginPublicKey != key {
			t.Errorf("key %q, want %q (%v)", got.Status.LoginPublicKey, key, err)
		}
	}
}
