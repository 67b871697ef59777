package pool

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// had is what a node has of volumes.
type had struct {
	left  []volume.LeftCache
	held  map[volume.ID]bool
	err   error
	kept  []volume.KeptCache
	known bool
}

func (h *had) Holds(_ context.Context, d volume.Deletion) (bool, error) { return h.held[d.ID], h.err }
func (h *had) Left(context.Context, []string) []volume.LeftCache        { return h.left }

func (h *had) Kept() ([]volume.KeptCache, bool) { return h.kept, h.known }

// TestReportCaches: what was deleted is acknowledged when nothing is left of it, and what is
// kept is shown, and told of once, as soon as the node knows.
func TestReportCaches(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	m := NewManager(Config{Node: "a", Events: recorder}, nil, nil, nil)
	word := func(id string) v1alpha1.DeletedVolume {
		return v1alpha1.DeletedVolume{VolumeName: id, VolumeUID: "u", Generation: ptr.To(int64(1))}
	}
	obj := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	obj.Status.Deleted = []v1alpha1.DeletedVolume{word("held"), word("gone")}
	obj.Status.Kept = []v1alpha1.KeptCache{{VolumeName: "before", VolumeUID: "u", Generation: ptr.To(int64(1))}}
	m.reportCaches(t.Context(), obj)
	if len(obj.Status.Deleted) != 2 || len(obj.Status.Kept) != 1 {
		t.Fatalf("before anybody can tell: %+v", obj.Status)
	}
	h := &had{held: map[volume.ID]bool{"held": true}, err: errors.New("no answer")}
	m.Serve(h)
	m.reportCaches(t.Context(), obj)
	if len(obj.Status.Deleted) != 2 || len(obj.Status.Kept) != 1 {
		t.Errorf("the node does not know: %+v", obj.Status)
	}
	h.err, h.known = nil, true
	h.kept = []volume.KeptCache{
		{ID: "before", Fence: volume.Fence{UID: "u", Generation: 1}},
		{ID: "now", Fence: volume.Fence{UID: "v", Generation: 2}, SizeBytes: 7, Why: strings.Repeat("w", maxMessage+1)},
	}
	for range 2 {
		m.reportCaches(t.Context(), obj)
	}
	if len(obj.Status.Deleted) != 1 || obj.Status.Deleted[0].VolumeName != "held" {
		t.Errorf("acknowledged: %+v", obj.Status.Deleted)
	}
	if k := obj.Status.Kept; len(k) != 2 || *k[1].Generation != 2 || *k[1].SizeBytes != 7 || len(k[1].Message) != maxMessage {
		t.Errorf("kept: %+v", k)
	}
	if !meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionWritesKept) {
		t.Errorf("conditions: %+v", obj.Status.Conditions)
	}
	if len(recorder.Events) != 1 {
		t.Errorf("%d events, want one of what was not kept before", len(recorder.Events))
	} else if e := <-recorder.Events; !strings.Contains(e, "Warning WritesKept") || !strings.Contains(e, "volume now, generation 2") {
		t.Errorf("event %q", e)
	}
	h.kept, h.held = nil, nil
	m.reportCaches(t.Context(), obj)
	if len(obj.Status.Kept)+len(obj.Status.Deleted) != 0 || meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionWritesKept) {
		t.Errorf("at the end: %+v", obj.Status)
	}
}
