package v1alpha1_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

const markHeld = "<nil>: Invalid value: dirtyState cannot become PossiblyDirty while the volume is held (spec.hold) for a snapshot or a clone"

// testHold: an API server lets nobody mark a volume that is held, be the plugin of a version
// that knows nothing of it.
func testHold(t *testing.T, c client.Client) {
	const clean, dirty = v1alpha1.DirtyStateClean, v1alpha1.DirtyStatePossiblyDirty
	for name, tc := range map[string]struct {
		held         bool
		before, then v1alpha1.DirtyState
		want         string
	}{
		"marked":                       {before: clean, then: dirty},
		"marked for the first time":    {then: dirty},
		"held, clean":                  {held: true, before: clean, then: dirty, want: markHeld},
		"held, for the first time":     {held: true, then: dirty, want: markHeld},
		"held, first word":             {held: true, then: clean},
		"held, dirty before":           {held: true, before: dirty, then: dirty},
		"held, flushed":                {held: true, before: dirty, then: clean},
		"held, mark that is withdrawn": {held: true, before: dirty},
	} {
		t.Run(name, func(t *testing.T) {
			obj := good()
			if err := c.Create(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
			obj.Status.DirtyState, obj.Status.OwnerNode = tc.before, "node-held"
			if err := c.Status().Update(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
			if tc.held {
				obj.Spec.Hold = held("s", "t")
				if err := c.Update(t.Context(), obj); err != nil {
					t.Fatal(err)
				}
			}
			next := obj.DeepCopy()
			next.Status.DirtyState = tc.then
			wantMessage(t, c.Status().Update(t.Context(), next.DeepCopy(), client.DryRunAll), tc.want)
			wantMessage(t, c.Status().Patch(t.Context(), next, client.MergeFrom(obj), client.DryRunAll), tc.want)
		})
	}
	t.Run("first status", func(t *testing.T) {
		obj := good()
		obj.Spec.Hold = held("s", "t")
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		obj.Status.DirtyState = dirty
		wantMessage(t, c.Status().Update(t.Context(), obj, client.DryRunAll), markHeld)
	})
	t.Run("removed by hand", func(t *testing.T) {
		obj := good()
		obj.Spec.Hold = held("s", "t")
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		obj.Spec.Hold = nil
		wantMessage(t, c.Update(t.Context(), obj), "")
		obj.Status.DirtyState = dirty
		wantMessage(t, c.Status().Update(t.Context(), obj), "")
		obj.Spec.Hold = held("s", "u")
		wantMessage(t, c.Update(t.Context(), obj), "")
	})
}

func held(name, token string) *v1alpha1.VolumeHold {
	return &v1alpha1.VolumeHold{Name: name, Token: token, Since: metav1.NewTime(time.Unix(1, 0))}
}

// parents are what volumes may be said to be made from.
func parents() map[string]struct {
	parent v1alpha1.VolumeParent
	want   string
} {
	const both = "spec.parent: Invalid value: exactly one of snapshotHandle and volumeName must be set"
	return map[string]struct {
		parent v1alpha1.VolumeParent
		want   string
	}{
		"of a snapshot":       {parent: v1alpha1.VolumeParent{SnapshotHandle: "iscsi/snapshot-1"}},
		"of another server's": {parent: v1alpha1.VolumeParent{SnapshotHandle: "iscsi@second/snapshot-1"}},
		"of a driver's server": {
			parent: v1alpha1.VolumeParent{SnapshotHandle: "csi@second/s"},
			want:   `spec.parent.snapshotHandle: Invalid value: "csi@second/s": spec.parent.snapshotHandle in body should match '^(iscsi(@[a-z0-9]([a-z0-9-]{0,56}[a-z0-9])?)?|csi)/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'`,
		},
		"of a driver's snapshot": {parent: v1alpha1.VolumeParent{SnapshotHandle: "csi/snapshot-1"}},
		"of a volume":            {parent: v1alpha1.VolumeParent{VolumeName: "pvc-1"}},
		"of both":                {parent: v1alpha1.VolumeParent{SnapshotHandle: "csi/s", VolumeName: "pvc-1"}, want: both},
		"of nothing":             {want: both},
		"of some other snapshot": {
			parent: v1alpha1.VolumeParent{SnapshotHandle: "zfs/s"},
			want:   `spec.parent.snapshotHandle: Invalid value: "zfs/s": spec.parent.snapshotHandle in body should match '^(iscsi(@[a-z0-9]([a-z0-9-]{0,56}[a-z0-9])?)?|csi)/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'`,
		},
	}
}

func testParent(t *testing.T, c client.Client) {
	for name, tc := range parents() {
		t.Run(name, func(t *testing.T) {
			obj := good()
			obj.Spec.Parent = &tc.parent
			wantMessage(t, c.Create(t.Context(), obj, client.DryRunAll), tc.want)
		})
	}
	made, plain := good(), good()
	made.Spec.Parent = &v1alpha1.VolumeParent{VolumeName: "pvc-1"}
	for _, obj := range []*v1alpha1.CachedVolume{made, plain} {
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	const fixed = "spec: Invalid value: parent cannot be changed"
	for name, tc := range map[string]struct {
		of     *v1alpha1.CachedVolume
		parent *v1alpha1.VolumeParent
		want   string
	}{
		"the same":      {made, &v1alpha1.VolumeParent{VolumeName: "pvc-1"}, ""},
		"another":       {made, &v1alpha1.VolumeParent{VolumeName: "pvc-2"}, fixed},
		"taken away":    {made, nil, fixed},
		"made later on": {plain, &v1alpha1.VolumeParent{VolumeName: "pvc-1"}, fixed},
	} {
		t.Run(name, func(t *testing.T) {
			obj := tc.of.DeepCopy()
			obj.Spec.Parent = tc.parent
			wantMessage(t, c.Update(t.Context(), obj, client.DryRunAll), tc.want)
		})
	}
	t.Run("static", func(t *testing.T) {
		obj := made.DeepCopy()
		obj.ResourceVersion, obj.Name, obj.UID = "", "", ""
		obj.Spec.Static = &v1alpha1.ISCSISource{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.com.example:a"}
		wantMessage(t, c.Create(t.Context(), obj, client.DryRunAll), "spec: Invalid value: parent does not go with static")
	})
}
