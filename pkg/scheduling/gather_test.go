package scheduling

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

func TestOfRecord(t *testing.T) {
	record := func(mode v1alpha1.CacheMode, change func(*v1alpha1.CachedVolume)) *v1alpha1.CachedVolume {
		obj := &v1alpha1.CachedVolume{Spec: v1alpha1.CachedVolumeSpec{CacheMode: mode, CacheSize: "10%", CapacityBytes: ptr.To[int64](100 * gib)}}
		obj.Status.OwnerNode, obj.Status.Generation = "a", ptr.To[int64](3)
		change(obj)
		return obj
	}
	cases := map[string]struct {
		record *v1alpha1.CachedVolume
		want   *Cache
	}{
		"published": {
			record: record("writethrough", func(v *v1alpha1.CachedVolume) { v.Status.Publication = "Published" }),
			want:   &Cache{Bytes: 10 * gib, Owner: "a"},
		},
		"released without a retained cache": {
			record: record("writethrough", func(v *v1alpha1.CachedVolume) { v.Status.Publication = "Released" }),
			want:   &Cache{Bytes: 10 * gib},
		},
		"released and dirty": {
			record: record("writeback", func(v *v1alpha1.CachedVolume) {
				v.Status.Publication, v.Status.DirtyState = "Released", "PossiblyDirty"
			}),
			want: &Cache{Bytes: 10 * gib, Owner: "a"},
		},
		"retained caches of this generation": {
			record: record("writeback", func(v *v1alpha1.CachedVolume) {
				v.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "a", Generation: 3, Content: v1alpha1.RetainedCachePartial}, {NodeName: "b", Generation: 2}}
			}),
			want: &Cache{Bytes: 10 * gib, RetainedOn: []string{"a"}},
		},
		"new": {
			record: record("writethrough", func(v *v1alpha1.CachedVolume) { v.Status = v1alpha1.CachedVolumeStatus{} }),
			want:   &Cache{Bytes: 10 * gib},
		},
		"mode none": {record: record("none", func(v *v1alpha1.CachedVolume) { v.Status.Publication = "Published" })},
		"mode none, not flushed yet": {
			record: record("none", func(v *v1alpha1.CachedVolume) { v.Status.DirtyState = "PossiblyDirty" }),
			want:   &Cache{Bytes: 10 * gib, Owner: "a"},
		},
		"no larger than the volume": {
			record: record("writethrough", func(v *v1alpha1.CachedVolume) { v.Spec.CacheSize = "1Ti" }),
			want:   &Cache{Bytes: 100 * gib},
		},
		"no larger than its most": {
			record: record("writethrough", func(v *v1alpha1.CachedVolume) { v.Spec.MaxCacheSize = "2Gi" }),
			want:   &Cache{Bytes: 2 * gib},
		},
		"size of the PersistentVolume": {
			record: record("writethrough", func(v *v1alpha1.CachedVolume) { v.Spec.CapacityBytes = nil }),
			want:   &Cache{Bytes: 5 * gib},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ofRecord(tc.record, 50*gib)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestOfParametersIsTheDrivers compares what is expected of a class with what
// CreateVolume makes of it.
func TestOfParametersIsTheDrivers(t *testing.T) {
	cases := map[string]map[string]string{
		"defaults": {},
		"bytes":    {"cacheSize": "3Gi"},
		"percent":  {"cacheSize": "25%", "cacheMode": "writethrough"},
		"none":     {"cacheMode": "none"},
		"at most":  {"cacheSize": "25%", "maxCacheSize": "1Gi"},
	}
	for name, params := range cases {
		t.Run(name, func(t *testing.T) {
			volumes := volumetest.NewProvisioner(100 * gib)
			_, err := driver.NewController(volumes, &keylock.Set{}).CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: "pvc-1", Parameters: params, CapacityRange: &csi.CapacityRange{RequiredBytes: 8 * gib},
				VolumeCapabilities: []*csi.VolumeCapability{{
					AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			v, err := volumes.Get(t.Context(), "pvc-1")
			if err != nil {
				t.Fatal(err)
			}
			var want *Cache
			if v.Spec.Mode != volume.ModeNone {
				want = &Cache{Bytes: v.Spec.CacheBytes(8 * gib)}
			}
			if diff := cmp.Diff(want, ofParameters(params, 8*gib)); diff != "" {
				t.Errorf("(-driver +here):\n%s", diff)
			}
		})
	}
	if got := ofParameters(map[string]string{"cacheSize": "much"}, gib); got == nil || got.Bytes != 0 {
		t.Errorf("a size that CreateVolume refuses: %+v, want it unknown", got)
	}
}

// brokenReader fails or panics.
type brokenReader struct {
	client.Reader
	err error
}

func (b brokenReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	if b.err == nil {
		panic("broken")
	}
	return b.err
}

type notSynced struct{}

func (notSynced) HasSynced() bool { return false }

// TestHandleNeverRefuses wants every pod let pass unchanged when something is wrong.
func TestHandleNeverRefuses(t *testing.T) {
	const pod = `{"spec":{"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"c"}}]}}`
	cases := map[string]struct {
		handler handler
		pod     string
	}{
		"informers not synced": {handler: handler{informers: []informer{notSynced{}}}, pod: pod},
		"no pod":               {pod: `[`},
		"informer fails":       {handler: handler{gatherer: gatherer{informed: brokenReader{err: errors.New("x")}}}, pod: pod},
		"informer panics":      {handler: handler{gatherer: gatherer{informed: brokenReader{}}}, pod: pod},
		"placed already":       {handler: handler{gatherer: gatherer{informed: brokenReader{}}}, pod: `{"spec":{"nodeName":"a",` + pod[len(`{"spec":{`):]},
		"opted out":            {handler: handler{gatherer: gatherer{informed: brokenReader{}}}, pod: `{"metadata":{"annotations":{"nearflash.io/scheduling":"off"}},` + pod[1:]},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := tc.handler.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				UID: "1", Namespace: "default", Object: runtime.RawExtension{Raw: []byte(tc.pod)},
			}})
			if !got.Allowed || got.Patch != nil || got.PatchType != nil {
				t.Errorf("answer %+v, want the pod let pass unchanged", got)
			}
		})
	}
}

// TestSlimClaims wants the informer to keep what an admission needs, and no more.
func TestSlimClaims(t *testing.T) {
	full := &corev1.PersistentVolumeClaim{}
	full.Namespace, full.Name, full.UID, full.ResourceVersion = "ns", "c", "u", "7"
	full.Annotations = map[string]string{"large": "text"}
	full.Spec.VolumeName, full.Spec.StorageClassName, full.Spec.VolumeMode = "pv", ptr.To("fast"), ptr.To(corev1.PersistentVolumeBlock)
	want := full.DeepCopy()
	want.Annotations, want.Spec.VolumeMode = nil, nil
	for _, o := range CacheOptions() {
		got, err := o.Transform(full)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
