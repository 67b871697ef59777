package records_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestReportPreload: the owner says how far a preload is, nobody else does, and it is read as it was written.
func TestReportPreload(t *testing.T) {
	obj := &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "u"}}
	obj.Spec.Preload = &v1alpha1.PreloadRequest{Request: "r", Path: "models", BandwidthBytesPerSecond: new(int64(5 << 20))}
	obj.Status.OwnerNode, obj.Status.Generation = "a", new(int64(1))
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(obj).WithObjects(obj).Build()
	rec := records.New(c, nil, time.Now)
	own := volume.Fence{UID: "u", Generation: 1, Node: "a"}
	want := volume.PreloadReport{Request: "r", State: volume.PreloadRunning, TotalBytes: 100, CachedBytes: 50, Started: time.Unix(1e9, 0)}
	if err := rec.ReportPreload(t.Context(), "v", volume.Fence{UID: "u", Generation: 2, Node: "a"}, want); !errors.Is(err, volume.ErrFenced) {
		t.Errorf("a report of another generation: %v", err)
	}
	for _, change := range []func(){
		func() {},
		func() { want.State, want.Message, want.Started = volume.PreloadFailed, "because", time.Time{} },
		func() { want.State, want.TotalBytes, want.CachedBytes = volume.PreloadPending, 0, 0 },
	} {
		change()
		if err := rec.ReportPreload(t.Context(), "v", own, want); err != nil {
			t.Fatal(err)
		}
		v, err := rec.Get(t.Context(), "v")
		if err != nil {
			t.Fatal(err)
		}
		got := v.Preloaded
		if got.Started.Unix() != want.Started.Unix() {
			t.Errorf("began at %s, want %s", got.Started, want.Started)
		}
		if got.Started = want.Started; got != want || *v.Preload != (volume.Preload{Request: "r", Path: "models", Bandwidth: 5 << 20}) {
			t.Errorf("got %+v of %+v, want %+v", got, v.Preload, want)
		}
	}
	want.Message = strings.Repeat("x", 5000)
	if err := rec.ReportPreload(t.Context(), "v", own, want); err != nil {
		t.Fatal(err)
	}
	if v, err := rec.Get(t.Context(), "v"); err != nil || len(v.Preloaded.Message) > 1024 || v.Preloaded.Message == "" {
		t.Errorf("a message of %d bytes is stored, %v", len(v.Preloaded.Message), err)
	}
}
