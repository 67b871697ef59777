package pool

import (
	"testing"

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
