package bench

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// TestWithAPIServer: a real API server accepts what is made, also where the Pod Security Standard
// "baseline" is enforced, and finds it again by its label; and it accepts that the next cache of a
// volume begins empty.
func TestWithAPIServer(t *testing.T) {
	config := apiserver.Start(t)
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	p := planned(t, "none", "writethrough")
	existing := Subject{Name: "data", Claim: "data", File: "blob", Mode: v1alpha1.CacheModeWritethrough}
	p.Subjects = append(p.Subjects, existing)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "default"}}
	for _, o := range []client.Object{
		namespace, account, p.Subjects[0].Temporary, p.Subjects[1].Temporary, p.claim(p.Subjects[0]), p.claim(p.Subjects[1]),
		p.pod(p.Subjects[0], "node-a", 1), p.pod(p.Subjects[1], "node-a", 1), p.pod(existing, "node-b", 1),
	} {
		if err := c.Create(ctx, o); err != nil {
			t.Errorf("%T %s: %v", o, o.GetName(), err)
		}
	}
	var pods corev1.PodList
	var claims corev1.PersistentVolumeClaimList
	var classes storagev1.StorageClassList
	for _, list := range []client.ObjectList{&pods, &claims, &classes} {
		if err := c.List(ctx, list, (Cleaner{Run: p.Run}).selector()); err != nil {
			t.Fatal(err)
		}
	}
	if len(pods.Items) != 3 || len(claims.Items) != 2 || len(classes.Items) != 2 {
		t.Errorf("found %d pods, %d claims, %d classes", len(pods.Items), len(claims.Items), len(classes.Items))
	}
	// Nobody is there to take finalizers off.
	for i := range claims.Items {
		if err := c.Patch(ctx, &claims.Items[i], client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := (Cleaner{Client: c, Namespace: p.Namespace, Run: p.Run, After: time.After}).Clean(ctx); n != 7 || err != nil {
		t.Errorf("%d objects deleted, %v", n, err)
	}
	record := &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: "vol-1"}, Spec: v1alpha1.CachedVolumeSpec{
		Backend: "iscsi", CacheMode: v1alpha1.CacheModeWritethrough, CacheSize: "10%",
		WarmStart: v1alpha1.WarmStart{From: v1alpha1.WarmStartPeer, Method: v1alpha1.WarmStartStream},
	}}
	if err := c.Create(ctx, record); err != nil {
		t.Fatal(err)
	}
	r := &Runner{Client: c}
	if err := r.forget(ctx, &volume{handle: "vol-1"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(ctx, client.ObjectKey{Name: "vol-1"}, record); err != nil || record.Spec.WarmStart != (v1alpha1.WarmStart{From: v1alpha1.WarmStartOff}) {
		t.Errorf("%v, warm start %+v", err, record.Spec.WarmStart)
	}
}
