package provision

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// dropNamed takes the records away that name a server: no service of other tests has it.
func dropNamed(t *testing.T, api client.Client) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	list := &v1alpha1.CachedVolumeList{}
	if err := api.List(ctx, list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		obj := &list.Items[i]
		if obj.Spec.Target == "" {
			continue
		}
		obj.Finalizers = nil
		err := api.Update(ctx, obj)
		if err == nil {
			err = api.Delete(ctx, obj)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

// testServerGone: a server that was taken out of the configuration, while a record names it, has not
// said that it has nothing.
func testServerGone(t *testing.T, _ *rest.Config, f *fixture) {
	p := withSecond(t, f)
	p.create(t)
	const lost = volume.ID("lost-on-a-server-that-is-gone")
	if err := p.second.Create(t.Context(), lost, backend.Request{SizeBytes: gib}); err != nil {
		t.Fatal(err)
	}
	svc := New(Config{Client: f.client, Servers: f.servers(), Events: f.events})
	ask := func() map[string]error {
		_, list := svc.Snapshots(t.Context())
		_, group := svc.Group(t.Context(), volume.GroupNamed("g"))
		_, cut := svc.CreateSnapshot(t.Context(), "s", lost, volume.SnapshotClass{})
		unplaced := spec()
		_, adopt := svc.Publish(t.Context(), lost, nodeA, &unplaced, chap)
		return map[string]error{
			"list": list, "group": group, "cut": cut, "adopt": adopt,
			"delete": svc.Delete(t.Context(), lost), "delete group": svc.DeleteGroup(t.Context(), volume.GroupNamed("g"), nil),
		}
	}
	for call, err := range ask() {
		t.Log(call)
		wantNamed(t, err, volume.ErrUnavailable, string(p.id), `"second"`)
	}
	dropNamed(t, f.client)
	want := map[string]error{"group": volume.ErrNotFound, "cut": volume.ErrNotFound, "adopt": volume.ErrNotFound}
	for call, err := range ask() {
		t.Log(call)
		wantError(t, err, want[call])
	}
}
