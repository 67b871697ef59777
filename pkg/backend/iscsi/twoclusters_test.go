package iscsi_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/epoch"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cluster is one with a controller on the storage server.
type cluster struct {
	api    client.WithWatch
	keeper *epoch.Keeper
	svc    *provision.Service
}

func newCluster(t *testing.T, storage backend.Backend, objs ...client.Object) *cluster {
	t.Helper()
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{api: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).
		WithStatusSubresource(&v1alpha1.CachedVolume{}, &v1alpha1.CachePool{}).Build()}
	recorder := events.NewFakeRecorder(1000)
	c.keeper = epoch.New(epoch.Config{Client: c.api, Namespace: "nearflash", Storage: storage, Events: recorder})
	c.svc = provision.New(provision.Config{Client: c.api, Servers: map[string]provision.Server{"": {Backend: c.keeper}}, Events: recorder})
	return c
}

// copied returns a second cluster, made from a copy of all objects.
func (c *cluster) copied(t *testing.T, storage backend.Backend) *cluster {
	t.Helper()
	var volumes v1alpha1.CachedVolumeList
	var pools v1alpha1.CachePoolList
	var maps corev1.ConfigMapList
	if err := errors.Join(c.api.List(t.Context(), &volumes), c.api.List(t.Context(), &pools), c.api.List(t.Context(), &maps)); err != nil {
		t.Fatal(err)
	}
	if len(volumes.Items) == 0 || len(pools.Items) == 0 || len(maps.Items) == 0 {
		t.Fatalf("nothing to copy: %d volumes, %d pools, %d ConfigMaps", len(volumes.Items), len(pools.Items), len(maps.Items))
	}
	var objs []client.Object
	for i := range volumes.Items {
		objs = append(objs, &volumes.Items[i])
	}
	for i := range pools.Items {
		objs = append(objs, &pools.Items[i])
	}
	for i := range maps.Items {
		objs = append(objs, &maps.Items[i])
	}
	return newCluster(t, storage, objs...)
}

// consent is what `kubectl nearflash takeover` writes.
func (c *cluster) consent(t *testing.T) {
	t.Helper()
	obj := &corev1.ConfigMap{}
	if err := c.api.Get(t.Context(), client.ObjectKey{Namespace: "nearflash", Name: epoch.RecordName}, obj); err != nil {
		t.Fatal(err)
	}
	rec, err := epoch.Decode(obj, "s1")
	if err != nil || rec.Refused == nil {
		t.Fatalf("record %+v, %v: want it to say that the server refuses", rec, err)
	}
	rec.Takeover = &epoch.Takeover{Epoch: rec.Refused.Epoch}
	if err := errors.Join(epoch.Encode(obj, "s1", rec), c.api.Update(t.Context(), obj)); err != nil {
		t.Fatal(err)
	}
}

// acts are what a controller may do to a volume v that its record shows on node a.
func (c *cluster) acts(t *testing.T) map[string]error {
	t.Helper()
	ctx, chap := t.Context(), &volume.Credentials{Username: "user", Password: "password-of-user"}
	_, makeErr := c.svc.Create(ctx, "made", volume.Spec{CapacityBytes: 8 << 20, Mode: volume.ModeNone})
	_, expandErr := c.svc.Expand(ctx, "v", 32<<20)
	_, again := c.svc.Publish(ctx, "v", "node-a", nil, chap)
	out := map[string]error{"create": makeErr, "expand": expandErr, "publish": again, "unpublish": c.svc.Unpublish(ctx, "v", "node-a"), "settle": c.svc.Settle(ctx, "v")}
	_, out["move"] = c.svc.Publish(ctx, "v", "node-b", nil, chap)
	out["delete"] = c.svc.Delete(ctx, "v")
	return out
}

// TestTwoClusters runs the controllers of two clusters, the second made from a copy of
// etcd, against the storage server's own code: one goes on, and the other one exports,
// ends and deletes nothing, until an administrator says that the server is his.
func TestTwoClusters(t *testing.T) {
	for _, winner := range []string{"original", "copy"} {
		t.Run(winner, func(t *testing.T) {
			s := startServer(t)
			direct := s.backend(t, s.config("controller"))
			one := newCluster(t, s.backend(t, s.config("controller")), poolOf("node-a", initiator), poolOf("node-b", initiator+"b"))
			chap := &volume.Credentials{Username: "user", Password: "password-of-user"}
			if _, err := one.svc.Create(t.Context(), "v", volume.Spec{CapacityBytes: 8 << 20, Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}}); err != nil {
				t.Fatal(err)
			}
			if _, err := one.svc.Publish(t.Context(), "v", "node-a", nil, chap); err != nil {
				t.Fatal(err)
			}
			two := one.copied(t, s.backend(t, s.config("controller")))
			first, second := one, two
			if winner == "copy" {
				first, second = two, one
			}
			if err := first.keeper.Swap(t.Context()); err != nil { // as its leader does
				t.Fatal(err)
			}
			before, err := direct.Access(t.Context(), "v")
			if err != nil {
				t.Fatal(err)
			}
			for what, err := range second.acts(t) {
				if !errors.Is(err, volume.ErrFenced) || !strings.Contains(err.Error(), "kubectl nearflash takeover") {
					t.Errorf("%s by the refused one: %v", what, err)
				}
			}
			after, err := direct.Access(t.Context(), "v")
			if err != nil || after.Generation != before.Generation || !slices.Equal(after.Exports, before.Exports) {
				t.Errorf("the refused one has changed %+v to %+v (%v)", before, after, err)
			}
			if _, err := direct.Access(t.Context(), "made"); !errors.Is(err, volume.ErrNotFound) {
				t.Errorf("the refused one has made a volume: %v", err)
			}
			if _, err := second.keeper.Capacity(t.Context()); err != nil {
				t.Errorf("the refused one may not look: %v", err)
			}
			second.consent(t)
			if _, err := second.svc.Create(t.Context(), "made", volume.Spec{CapacityBytes: 8 << 20, Mode: volume.ModeNone}); err != nil {
				t.Errorf("with consent: %v", err)
			}
			for what, err := range first.acts(t) {
				if !errors.Is(err, volume.ErrFenced) {
					t.Errorf("%s by the one that was cut off: %v", what, err)
				}
			}
		})
	}
}

func poolOf(node, initiator string) *v1alpha1.CachePool {
	return &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: v1alpha1.CachePoolStatus{InitiatorIQN: initiator}}
}
