package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

// snapshotter is a Controller over a Provisioner in memory with volumes v-1 and v-2.
func snapshotter(t *testing.T) (*Controller, *keylock.Set) {
	t.Helper()
	p, locks := volumetest.NewProvisioner(1<<40, "node-1"), &keylock.Set{}
	for _, id := range []volume.ID{"v-1", "v-2"} {
		if _, err := p.Create(t.Context(), id, volume.Spec{CapacityBytes: 2 << 30, Mode: volume.ModeNone}); err != nil {
			t.Fatal(err)
		}
	}
	return NewController(p, locks).WithSnapshots(p), locks
}

func wantCode(t *testing.T, err error, want codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not say %q", err, w)
		}
	}
}

func offers(t *testing.T, c *Controller) []csi.ControllerServiceCapability_RPC_Type {
	t.Helper()
	resp, err := c.ControllerGetCapabilities(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []csi.ControllerServiceCapability_RPC_Type
	for _, one := range resp.GetCapabilities() {
		out = append(out, one.GetRpc().GetType())
	}
	return out
}

// TestNoSnapshots: where nothing makes snapshots, nothing of them is offered.
func TestNoSnapshots(t *testing.T) {
	with, _ := snapshotter(t)
	without := NewController(volumetest.NewProvisioner(1<<40), &keylock.Set{})
	for _, one := range snapshotCapabilities {
		if slices.Contains(offers(t, without), one) || !slices.Contains(offers(t, with), one) {
			t.Errorf("%s is offered wrongly", one)
		}
	}
	_, err := without.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v-1"})
	wantCode(t, err, codes.Unimplemented)
	_, err = without.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "iscsi/s"})
	wantCode(t, err, codes.Unimplemented)
	_, err = without.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	wantCode(t, err, codes.Unimplemented)
	_, err = without.CreateVolume(t.Context(), from(volumeSource("v-1")))
	wantCode(t, err, codes.InvalidArgument, "volume_content_source")
}

func volumeSource(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func snapshotSource(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func from(source *csi.VolumeContentSource) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: "child", VolumeContentSource: source, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, Parameters: map[string]string{"cacheMode": "none"},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}
}

func TestContentSource(t *testing.T) {
	for name, tc := range map[string]struct {
		source *csi.VolumeContentSource
		bytes  int64
		want   codes.Code
		words  []string
	}{
		"snapshot":                  {source: snapshotSource("iscsi/s")},
		"volume":                    {source: volumeSource("v-1")},
		"larger":                    {source: volumeSource("v-1"), bytes: 3 << 30},
		"smaller than its snapshot": {source: snapshotSource("iscsi/s"), bytes: 1 << 30, want: codes.OutOfRange},
		"smaller than its parent":   {source: volumeSource("v-1"), bytes: 1 << 30, want: codes.OutOfRange},
		"no snapshot":               {source: snapshotSource("iscsi/none"), want: codes.NotFound},
		"no handle":                 {source: snapshotSource("s"), want: codes.NotFound},
		"no volume":                 {source: volumeSource("none"), want: codes.NotFound},
		"no ID":                     {source: volumeSource("V/1"), want: codes.NotFound},
		"empty snapshot":            {source: snapshotSource(""), want: codes.InvalidArgument, words: []string{"snapshot_id"}},
		"empty volume":              {source: volumeSource(""), want: codes.InvalidArgument, words: []string{"volume_id"}},
		"nothing":                   {source: &csi.VolumeContentSource{}, want: codes.InvalidArgument, words: []string{"volume_content_source"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := snapshotter(t)
			if _, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v-2"}); err != nil {
				t.Fatal(err)
			}
			req := from(tc.source)
			if tc.bytes != 0 {
				req.CapacityRange.RequiredBytes = tc.bytes
			}
			resp, err := c.CreateVolume(t.Context(), req)
			wantCode(t, err, tc.want, tc.words...)
			if err == nil && resp.GetVolume().GetContentSource().String() != tc.source.String() {
				t.Errorf("content source %v, want %v", resp.GetVolume().GetContentSource(), tc.source)
			}
			if err != nil {
				return
			}
			_, err = c.CreateVolume(t.Context(), from(nil))
			wantCode(t, err, codes.AlreadyExists)
		})
	}
}

// TestCloneLocks: a volume that somebody works on is not cut for a clone.
func TestCloneLocks(t *testing.T) {
	c, locks := snapshotter(t)
	for _, key := range []string{"v-1", "child"} {
		unlock, _ := locks.Lock(t.Context(), key)
		_, err := c.CreateVolume(t.Context(), from(volumeSource("v-1")))
		wantCode(t, err, codes.Aborted)
		unlock()
	}
	unlock, _ := locks.Lock(t.Context(), "v-1")
	_, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "v-1"})
	wantCode(t, err, codes.Aborted)
	unlock()
	for range 2 { // nothing is left locked
		_, err := c.CreateVolume(t.Context(), from(volumeSource("v-1")))
		wantCode(t, err, codes.OK)
	}
}

func TestSnapshotClass(t *testing.T) {
	for name, tc := range map[string]struct {
		params map[string]string
		class  volume.SnapshotClass
		words  []string
	}{
		"none":        {},
		"class":       {params: map[string]string{"originSnapshotClass": "ebs"}, class: volume.SnapshotClass{Origin: "ebs"}},
		"frozen":      {params: map[string]string{"freeze": "true"}, class: volume.SnapshotClass{Freeze: true}},
		"not frozen":  {params: map[string]string{"freeze": "false"}},
		"both":        {params: map[string]string{"freeze": "true", "originSnapshotClass": "ebs"}, class: volume.SnapshotClass{Origin: "ebs", Freeze: true}},
		"yes":         {params: map[string]string{"freeze": "yes"}, words: []string{"parameter freeze", `"yes"`, "accepted are true, false"}},
		"True":        {params: map[string]string{"freeze": "True"}, words: []string{"parameter freeze", `"True"`, "did you mean"}},
		"empty":       {params: map[string]string{"originSnapshotClass": ""}},
		"sidecar's":   {params: map[string]string{"csi.storage.k8s.io/volumesnapshot/name": "a", "csi.storage.k8s.io/volumesnapshotcontent/name": "b"}},
		"unknown":     {params: map[string]string{"type": "full"}, words: []string{`"type"`, `"full"`, "originSnapshotClass"}},
		"mistyped":    {params: map[string]string{"originSnapshotclass": "ebs"}, words: []string{"did you mean"}},
		"not a class": {params: map[string]string{"originSnapshotClass": "E B S"}, words: []string{"originSnapshotClass", `"E B S"`, "accepted is"}},
	} {
		t.Run(name, func(t *testing.T) {
			class, err := parseSnapshotClass(tc.params)
			if class != tc.class && len(tc.words) == 0 || (err != nil) != (len(tc.words) > 0) {
				t.Fatalf("got %+v, %v", class, err)
			}
			if err != nil {
				if !errors.Is(err, volume.ErrInvalid) {
					t.Errorf("%v is not ErrInvalid", err)
				}
				wantCode(t, statusFor(err), codes.InvalidArgument, tc.words...)
			}
		})
	}
}

// TestSnapshotNames: no snapshot has a name of those that clones are made from.
func TestSnapshotNames(t *testing.T) {
	for name, want := range map[string]string{"snapshot-1": "snapshot-1", "clone-a": "s-", "Ä": "v-"} {
		id, err := snapshotIDFor(name)
		if err != nil || id.ForClone() || !strings.HasPrefix(string(id), want) {
			t.Errorf("%s: %s, %v", name, id, err)
		}
	}
	_, err := snapshotIDFor("")
	wantCode(t, statusFor(err), codes.InvalidArgument, "name")
}

// TestListSnapshots: pages go on behind the last entry, whatever has come or gone since.
func TestListSnapshots(t *testing.T) {
	c, _ := snapshotter(t)
	for i := range 5 {
		_, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: fmt.Sprint("s-", i), SourceVolumeId: fmt.Sprint("v-", 1+i%2)})
		wantCode(t, err, codes.OK)
	}
	var got []string
	token := ""
	for page := 0; ; page++ {
		resp, err := c.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: 2, StartingToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.GetEntries() {
			got = append(got, e.GetSnapshot().GetSnapshotId())
		}
		if page == 0 { // the last of the page goes
			_, err := c.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "iscsi/s-1"})
			wantCode(t, err, codes.OK)
		}
		if token = resp.GetNextToken(); token == "" {
			break
		}
	}
	if want := []string{"iscsi/s-0", "iscsi/s-1", "iscsi/s-2", "iscsi/s-3", "iscsi/s-4"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	for what, tc := range map[string]struct {
		req  *csi.ListSnapshotsRequest
		want int
	}{
		"of a volume":              {&csi.ListSnapshotsRequest{SourceVolumeId: "v-1"}, 3},
		"by ID":                    {&csi.ListSnapshotsRequest{SnapshotId: "iscsi/s-3"}, 1},
		"by ID, of another volume": {&csi.ListSnapshotsRequest{SnapshotId: "iscsi/s-3", SourceVolumeId: "v-1"}, 0},
		"by ID, of another server": {&csi.ListSnapshotsRequest{SnapshotId: "iscsi@second/s-3"}, 0},
		"by an ID that nobody has": {&csi.ListSnapshotsRequest{SnapshotId: "s"}, 0},
		"of a volume without any":  {&csi.ListSnapshotsRequest{SourceVolumeId: "v-9"}, 0},
	} {
		resp, err := c.ListSnapshots(t.Context(), tc.req)
		if err != nil || len(resp.GetEntries()) != tc.want {
			t.Errorf("%s: %v, %v, want %d", what, resp, err, tc.want)
		}
	}
	for _, token := range []string{"x", "after:x", "after:", "iscsi/s-1"} {
		_, err := c.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: token})
		wantCode(t, err, codes.Aborted)
	}
	_, err := c.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{MaxEntries: -1})
	wantCode(t, err, codes.InvalidArgument, "max_entries", "-1")
}

// TestLimit: what a volume begins as may be larger than is asked for, and not than is accepted.
func TestLimit(t *testing.T) {
	req := from(nil)
	req.CapacityRange = &csi.CapacityRange{RequiredBytes: 2 << 30, LimitBytes: 3 << 30}
	if got, err := parseCreate(req); err != nil || got.Spec.LimitBytes != 3<<30 || got.Spec.CapacityBytes != 2<<30 {
		t.Errorf("%+v, %v", got.Spec, err)
	}
}
