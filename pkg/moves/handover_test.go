package moves

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// copying is a lease of whose total bytes some are copied; a total of 0 is unknown.
func copying(id volume.ID, total, done int64, change ...func(*v1alpha1.CacheMigration)) handing {
	obj := &v1alpha1.CacheMigration{}
	if total > 0 {
		obj.Status.Progress.TotalBytes, obj.Status.Progress.HydratedBytes = ptr.To(total), ptr.To(done)
	}
	for _, c := range change {
		c(obj)
	}
	return handing{id: id, object: obj}
}

func prewarm(m *v1alpha1.CacheMigration) { m.Spec.Purpose = v1alpha1.MigrationPrewarm }

func stream(m *v1alpha1.CacheMigration) { m.Spec.Method = v1alpha1.MigrationStream }

// TestInOrder: what has most left to copy is told first.
func TestInOrder(t *testing.T) {
	cases := map[string]struct {
		leases []handing
		want   []volume.ID
	}{
		"none":                           {},
		"most left first":                {[]handing{copying("nearly", 100, 99), copying("half", 100, 50), copying("begun", 100, 1)}, []volume.ID{"begun", "half", "nearly"}},
		"bytes and not parts":            {[]handing{copying("small", 10, 0), copying("large", 1000, 900)}, []volume.ID{"large", "small"}},
		"unknown before all":             {[]handing{copying("begun", 1<<40, 0), copying("unknown", 0, 0)}, []volume.ID{"unknown", "begun"}},
		"a prewarm after all":            {[]handing{copying("ahead", 0, 0, prewarm), copying("nearly", 100, 100)}, []volume.ID{"nearly", "ahead"}},
		"nobody's lease after all":       {[]handing{{id: "orphan"}, copying("nearly", 100, 100)}, []volume.ID{"nearly", "orphan"}},
		"a stream after clones":          {[]handing{copying("stream", 1000, 0, stream), copying("nearly", 100, 99)}, []volume.ID{"nearly", "stream"}},
		"a stream before prewarms":       {[]handing{copying("ahead", 1000, 0, prewarm), copying("stream", 10, 9, stream), {id: "orphan"}}, []volume.ID{"stream", "orphan", "ahead"}},
		"a prewarm by stream":            {[]handing{copying("ahead", 1000, 0, prewarm, stream), copying("stream", 10, 9, stream)}, []volume.ID{"stream", "ahead"}},
		"streams, most first":            {[]handing{copying("nearly", 100, 90, stream), copying("unknown", 0, 0, stream), copying("begun", 100, 10, stream)}, []volume.ID{"unknown", "begun", "nearly"}},
		"an unknown stream":              {[]handing{copying("unknown", 0, 0, stream), copying("nearly", 100, 99)}, []volume.ID{"nearly", "unknown"}},
		"prewarms, most first":           {[]handing{copying("b", 100, 90, prewarm), copying("a", 100, 10, prewarm)}, []volume.ID{"a", "b"}},
		"by name, to be the same always": {[]handing{copying("c", 5, 0), copying("a", 5, 0), copying("b", 5, 0)}, []volume.ID{"a", "b", "c"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			inOrder(tc.leases)
			var got []volume.ID
			for _, h := range tc.leases {
				got = append(got, h.id)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestTells(t *testing.T) {
	cases := map[string]struct {
		handing
		want bool
	}{
		"reads from here":  {copying("v", 100, 1), true},
		"has just begun":   {copying("v", 0, 0), true},
		"prewarms":         {copying("v", 100, 1, prewarm), true},
		"has ended":        {copying("v", 100, 100, func(m *v1alpha1.CacheMigration) { m.Status.Outcome = v1alpha1.MigrationCompleted }), false},
		"reads the origin": {copying("v", 100, 1, func(m *v1alpha1.CacheMigration) { m.Status.Progress.ServedFrom = v1alpha1.ServedFromOrigin }), false},
		"is being deleted": {copying("v", 100, 1, func(m *v1alpha1.CacheMigration) { m.DeletionTimestamp = ptr.To(metav1.Now()) }), false},
		"is gone":          {handing{id: "v"}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.read(); got != tc.want {
				t.Errorf("told: %v, want %v", got, tc.want)
			}
		})
	}
}
