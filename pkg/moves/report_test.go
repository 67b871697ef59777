package moves_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The tests of this file are about what a destination reports; TestMoves runs them.

func testProgress(t *testing.T, f *fixture) {
	f.source()
	m, _ := f.mustBegin()
	p := volume.MoveProgress{TotalBytes: 100, HydratedBytes: 40, Rate: 10, Remaining: 6 * time.Second, From: volume.FromPeer}
	must(t, f.b.Progress(t.Context(), m, p))
	obj := f.load(m)
	got := obj.Status.Progress
	if *got.TotalBytes != 100 || *got.HydratedBytes != 40 || *got.BytesPerSecond != 10 || got.EstimatedCompletionTime.IsZero() || got.ServedFrom != v1alpha1.ServedFromPeer {
		t.Errorf("progress %+v", got)
	}
	if obj.Status.StartTime.IsZero() || obj.Status.Source.State != v1alpha1.ExportStateExported || obj.Status.Conditions[0].Status != metav1.ConditionUnknown {
		t.Errorf("status %+v", obj.Status)
	}
	p.HydratedBytes, p.Remaining, p.From = 100, 0, volume.FromOrigin
	must(t, f.b.Progress(t.Context(), m, p))
	if got := f.load(m).Status.Progress; *got.HydratedBytes != 100 || !got.EstimatedCompletionTime.IsZero() || got.ServedFrom != v1alpha1.ServedFromOrigin {
		t.Errorf("progress %+v", got)
	}
	must(t, f.b.Finish(t.Context(), m, volume.MoveEnded, strings.Repeat("ä", 2000)+"\nend"))
	must(t, f.b.Finish(t.Context(), m, volume.MoveCompleted, "again"))
	must(t, f.b.Progress(t.Context(), m, volume.MoveProgress{}))
	obj = f.load(m)
	if obj.Status.Outcome != v1alpha1.MigrationEnded || len(obj.Status.OutcomeMessage) > 1024 || *obj.Status.Progress.HydratedBytes != 100 || obj.Status.Progress.BytesPerSecond != nil {
		t.Errorf("after the end: %+v", obj.Status)
	}
}

func testWithoutSource(t *testing.T, f *fixture) {
	r := f.request()
	r.Source = nil
	for range 2 {
		m, lease, err := f.b.Begin(t.Context(), r)
		must(t, err)
		if lease != nil || m.UID == "" {
			t.Errorf("move %v, lease %v", m, lease)
		}
		if obj := f.load(m); obj.Spec.SourceNode != "" || obj.Spec.DestinationPublicKey != "" {
			t.Errorf("spec %+v", obj.Spec)
		}
		must(t, f.b.Finish(t.Context(), m, volume.MoveCompleted, ""))
	}
}

func testMissing(t *testing.T, f *fixture) {
	m := volume.MoveID{Name: "no-such-move-1", UID: "u"}
	must(t, f.b.Progress(t.Context(), m, volume.MoveProgress{TotalBytes: 1}))
	must(t, f.b.Finish(t.Context(), m, volume.MoveCompleted, ""))
	if exported, err := f.b.Exported(t.Context(), m); exported || err != nil {
		t.Errorf("exported: %v, %v", exported, err)
	}
	if n := len(f.events.Events); n > 0 {
		t.Errorf("%d events", n)
	}
}

func testNoConnection(t *testing.T, f *fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := volume.MoveID{Name: "x-1", UID: "u"}
	_, _, err := f.b.Begin(ctx, f.request())
	_, lerr := f.b.Exported(ctx, m)
	for what, err := range map[string]error{
		"Begin": err, "Exported": lerr, "Progress": f.b.Progress(ctx, m, volume.MoveProgress{}), "Finish": f.b.Finish(ctx, m, volume.MoveEnded, ""),
	} {
		if !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
