package driver

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

func ofVolumes(name string, ids ...string) *csi.CreateVolumeGroupSnapshotRequest {
	return &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: ids}
}

// TestGroup: a group is made once for its name, is found, and goes as a whole.
func TestGroup(t *testing.T) {
	c, locks := snapshotter(t)
	g := c.Groups()
	made, err := g.CreateVolumeGroupSnapshot(t.Context(), ofVolumes("g", "v-2", "v-1"))
	if err != nil {
		t.Fatal(err)
	}
	group := made.GetGroupSnapshot()
	var ids []string
	for _, s := range group.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
		if s.GetGroupSnapshotId() != group.GetGroupSnapshotId() || !s.GetReadyToUse() || s.GetCreationTime() == nil {
			t.Errorf("member %v of %v", s, group)
		}
	}
	if len(ids) != 2 || !group.GetReadyToUse() || group.GetCreationTime() == nil {
		t.Errorf("group %v", group)
	}
	again, err := g.CreateVolumeGroupSnapshot(t.Context(), ofVolumes("g", "v-1", "v-2"))
	if err != nil || again.GetGroupSnapshot().String() != group.String() {
		t.Errorf("again: %v, %v", again, err)
	}
	_, err = g.CreateVolumeGroupSnapshot(t.Context(), ofVolumes("g", "v-1"))
	wantCode(t, err, codes.AlreadyExists)
	get := func(ids ...string) error {
		_, err := g.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: ids})
		return err
	}
	wantCode(t, get(ids[1], ids[0]), codes.OK)
	wantCode(t, get(ids[0]), codes.InvalidArgument, "snapshot_ids")
	list, err := c.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SnapshotId: ids[0]})
	if err != nil || len(list.GetEntries()) != 1 || list.GetEntries()[0].GetSnapshot().GetGroupSnapshotId() != group.GetGroupSnapshotId() {
		t.Errorf("listed %v, %v", list, err)
	}
	_, err = c.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: ids[0]})
	wantCode(t, err, codes.InvalidArgument, group.GetGroupSnapshotId())
	remove := func(ids ...string) error {
		_, err := g.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group.GetGroupSnapshotId(), SnapshotIds: ids})
		return err
	}
	wantCode(t, remove(ids[0]), codes.InvalidArgument, ids[1])
	wantCode(t, remove("x"), codes.InvalidArgument, "snapshot_ids")
	wantCode(t, remove(ids...), codes.OK)
	wantCode(t, remove(ids...), codes.OK)
	wantCode(t, get(ids...), codes.NotFound)

	unlock, _ := locks.Lock(t.Context(), "v-1")
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = g.CreateVolumeGroupSnapshot(ctx, ofVolumes("h", "v-1", "v-2"))
	wantCode(t, err, codes.Aborted)
}

// TestGroupRefused: wrong requests are refused by name and value.
func TestGroupRefused(t *testing.T) {
	c, _ := snapshotter(t)
	g := c.Groups()
	with := func(key, value string) *csi.CreateVolumeGroupSnapshotRequest {
		req := ofVolumes("parameters", "v-1")
		req.Parameters = map[string]string{key: value}
		return req
	}
	for what, tc := range map[string]struct {
		req   *csi.CreateVolumeGroupSnapshotRequest
		code  codes.Code
		words string
	}{
		"no name":            {ofVolumes("", "v-1"), codes.InvalidArgument, "name"},
		"no volume":          {ofVolumes("g"), codes.InvalidArgument, "source_volume_ids"},
		"an empty volume":    {ofVolumes("g", "v-1", ""), codes.InvalidArgument, "source_volume_ids"},
		"a volume twice":     {ofVolumes("g", "v-1", "v-1"), codes.InvalidArgument, "v-1"},
		"no such volume":     {ofVolumes("g", "v-1", "v-9"), codes.NotFound, "v-9"},
		"none can be so":     {ofVolumes("g", "Ä"), codes.NotFound, "Ä"},
		"a parameter":        {with("freeze", "false"), codes.InvalidArgument, "freeze"},
		"a value":            {with("originSnapshotClass", "Ä"), codes.InvalidArgument, "originSnapshotClass"},
		"what sidecars give": {with("csi.storage.k8s.io/volumegroupsnapshot/name", "x"), codes.OK, ""},
	} {
		_, err := g.CreateVolumeGroupSnapshot(t.Context(), tc.req)
		wantCode(t, err, tc.code)
		if err != nil && !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: %v does not say %q", what, err, tc.words)
		}
	}
}

// TestNoGroups: where nothing makes snapshots, there are no groups of them.
func TestNoGroups(t *testing.T) {
	if NewController(volumetest.NewProvisioner(1<<40), &keylock.Set{}).Groups() != nil {
		t.Error("groups are offered")
	}
	for _, on := range []bool{false, true} {
		caps, err := NewIdentity("v", nil).WithGroups(on).GetPluginCapabilities(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(caps.String(), "GROUP_CONTROLLER_SERVICE"); got != on {
			t.Errorf("groups %t: %v", on, caps)
		}
	}
}

// TestMemberNames: nobody gets the name of a group's member by asking for a snapshot of it.
func TestMemberNames(t *testing.T) {
	member := volume.GroupNamed("g").Member("v-1")
	id, err := snapshotIDFor(string(member))
	if err != nil || id.Group() != "" || !strings.HasPrefix(string(id), "s-") {
		t.Errorf("%s, %v", id, err)
	}
	if _, err := volume.ParseID(string(member)); err != nil || member.Group() != volume.GroupNamed("g") {
		t.Errorf("%s is of group %q, %v", member, member.Group(), err)
	}
}
