package v1alpha1_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// publicKey is of the form of an X25519 key.
func publicKey() string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xfb}, 32)) }

func goodMigration(name string) *v1alpha1.CacheMigration {
	return &v1alpha1.CacheMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.CacheMigrationSpec{
			VolumeName: "pvc-1", VolumeUID: "0b0c", Generation: 3, SourceNode: "node-b", SourceGeneration: 2, DestinationNode: "node-a",
			BandwidthBytesPerSecond: ptr.To[int64](100 << 20), Deadline: metav1.Now(), DestinationPublicKey: publicKey(),
		},
	}
}

func testMigrations(t *testing.T, c client.Client) {
	fromOrigin := func(s *v1alpha1.CacheMigrationSpec) {
		s.SourceNode, s.SourceGeneration, s.DestinationPublicKey = "", 0, ""
	}
	prewarm := func(s *v1alpha1.CacheMigrationSpec) {
		s.Purpose, s.PrewarmRequest, s.SourceGeneration = v1alpha1.MigrationPrewarm, "r1", s.Generation
	}
	read := func(s *v1alpha1.CacheMigrationSpec) {
		s.Purpose, s.SourceGeneration = v1alpha1.MigrationRead, s.Generation
	}
	const ofReader, badName = "pvc-1-3-read-0123456789", "<nil>: Invalid value: the name of a CacheMigration is volumeName, a hyphen, and generation, and of a Prewarm the suffix -prewarm, of a Read -read- and the digits of the node"
	stream := func(s *v1alpha1.CacheMigrationSpec) {
		s.Method, s.MethodReason, s.DestinationPublicKey = v1alpha1.MigrationStream, "no dm-clone on node-a", ""
	}
	tests := map[string]struct {
		name   string
		change func(*v1alpha1.CacheMigrationSpec)
		want   string
	}{
		"as it is":        {},
		"from the origin": {change: fromOrigin},
		"without limits": {change: func(s *v1alpha1.CacheMigrationSpec) {
			s.BandwidthBytesPerSecond, s.Deadline = ptr.To[int64](0), metav1.Time{}
		}},
		"another name": {name: "pvc-1-4", want: `<nil>: Invalid value: the name of a CacheMigration is volumeName, a hyphen, and generation, and of a Prewarm the suffix -prewarm, of a Read -read- and the digits of the node`},
		"a prewarming": {name: "pvc-1-3-prewarm", change: prewarm},
		"a prewarming with the name of a move": {
			change: prewarm, want: `<nil>: Invalid value: the name of a CacheMigration is volumeName, a hyphen, and generation, and of a Prewarm the suffix -prewarm, of a Read -read- and the digits of the node`,
		},
		"a move with the name of a prewarming": {name: "pvc-1-3-prewarm", want: `<nil>: Invalid value: the name of a CacheMigration is volumeName, a hyphen, and generation, and of a Prewarm the suffix -prewarm, of a Read -read- and the digits of the node`},
		"a prewarming of another generation": {
			name: "pvc-1-3-prewarm", change: func(s *v1alpha1.CacheMigrationSpec) { prewarm(s); s.SourceGeneration = 2 },
			want: `spec: Invalid value: purpose Prewarm needs a sourceNode, and sourceGeneration must be generation`,
		},
		"a prewarming that nobody asks for": {
			name: "pvc-1-3-prewarm", change: func(s *v1alpha1.CacheMigrationSpec) { prewarm(s); s.PrewarmRequest = "" },
			want: `spec: Invalid value: purpose Prewarm and prewarmRequest go together`,
		},
		"a move with a request": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.PrewarmRequest = "r1" },
			want:   `spec: Invalid value: purpose Prewarm and prewarmRequest go together`,
		},
		"of a reader":                  {name: ofReader, change: func(s *v1alpha1.CacheMigrationSpec) { stream(s); read(s) }},
		"of a reader, from the origin": {name: ofReader, change: func(s *v1alpha1.CacheMigrationSpec) { fromOrigin(s); s.Purpose = v1alpha1.MigrationRead }},
		"of a reader, from what was before": {
			name: ofReader, change: func(s *v1alpha1.CacheMigrationSpec) { stream(s); read(s); s.SourceGeneration = 2 },
			want: `spec: Invalid value: purpose Read needs a sourceGeneration that is generation`,
		},
		"of a reader with the name of a move": {change: func(s *v1alpha1.CacheMigrationSpec) { stream(s); read(s) }, want: badName},
		"a move with the name of a reader's":  {name: ofReader, want: badName},
		"of a reader of another generation":   {name: "pvc-1-4-read-0123456789", change: func(s *v1alpha1.CacheMigrationSpec) { stream(s); read(s) }, want: badName},
		"no key": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.DestinationPublicKey = "" },
			want:   `spec: Invalid value: sourceNode and destinationPublicKey go together, and method Stream has no key`,
		},
		"a clone": {change: func(s *v1alpha1.CacheMigrationSpec) {
			s.Method, s.MethodReason = v1alpha1.MigrationClone, strings.Repeat("x", 1024)
		}},
		"a stream":            {change: stream},
		"a stream, prewarmed": {name: "pvc-1-3-prewarm", change: func(s *v1alpha1.CacheMigrationSpec) { prewarm(s); stream(s) }},
		"a preload":           {change: func(s *v1alpha1.CacheMigrationSpec) { fromOrigin(s); s.Method = v1alpha1.MigrationPreload }},
		"a hot set":           {change: func(s *v1alpha1.CacheMigrationSpec) { fromOrigin(s); s.Method = v1alpha1.MigrationHotSet }},
		"a stream with a key": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.Method = v1alpha1.MigrationStream },
			want:   `spec: Invalid value: sourceNode and destinationPublicKey go together, and method Stream has no key`,
		},
		"a clone without a key": {
			change: func(s *v1alpha1.CacheMigrationSpec) { stream(s); s.Method = v1alpha1.MigrationClone },
			want:   `spec: Invalid value: sourceNode and destinationPublicKey go together, and method Stream has no key`,
		},
		"a clone of nothing": {
			change: func(s *v1alpha1.CacheMigrationSpec) { fromOrigin(s); s.Method = v1alpha1.MigrationClone },
			want:   `spec: Invalid value: methods Clone and Stream need a sourceNode, and HotSet and Preload have none`,
		},
		"a stream of nothing": {
			change: func(s *v1alpha1.CacheMigrationSpec) { fromOrigin(s); s.Method = v1alpha1.MigrationStream },
			want:   `spec: Invalid value: methods Clone and Stream need a sourceNode, and HotSet and Preload have none`,
		},
		"a hot set with a source": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.Method = v1alpha1.MigrationHotSet },
			want:   `spec: Invalid value: methods Clone and Stream need a sourceNode, and HotSet and Preload have none`,
		},
		"another method": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.Method = "Teleport" },
			want:   `[spec.method: Unsupported value: "Teleport": supported values: "Clone", "Stream", "HotSet", "Preload"` + unchecked,
		},
		"a long reason": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.MethodReason = strings.Repeat("x", 1025) },
			want:   `[spec.methodReason: Too long: may not be more than 1024 bytes` + unchecked,
		},
		"no key of that length": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.DestinationPublicKey = publicKey()[1:] + "=" },
			want:   `spec.destinationPublicKey: Invalid value: "` + publicKey()[1:] + `=": spec.destinationPublicKey in body should match '^[A-Za-z0-9+/]{43}=$'`,
		},
		"no generation of the source": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.SourceGeneration = 0 },
			want:   `spec: Invalid value: sourceNode and sourceGeneration go together`,
		},
		"the source is newer": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.SourceGeneration = 3 },
			want:   `spec: Invalid value: sourceGeneration must be below generation`,
		},
		"to itself": {
			change: func(s *v1alpha1.CacheMigrationSpec) { s.SourceNode = "node-a" },
			want:   `spec: Invalid value: sourceNode and destinationNode must differ`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			obj := goodMigration("pvc-1-3")
			if tc.name != "" {
				obj.Name = tc.name
			}
			if tc.change != nil {
				tc.change(&obj.Spec)
			}
			wantMessage(t, c.Create(t.Context(), obj, client.DryRunAll), tc.want)
		})
	}
}

// makeMigrationOf makes one that has ended, with everything that can be said of it.
func makeMigrationOf(t *testing.T, c client.Client, volume string) *v1alpha1.CacheMigration {
	t.Helper()
	obj := goodMigration(volume + "-3")
	obj.Spec.Method, obj.Spec.MethodReason = v1alpha1.MigrationClone, "dm-clone is there"
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	obj.Status = v1alpha1.CacheMigrationStatus{
		Source: v1alpha1.MigrationSource{
			State: v1alpha1.ExportStateExported, Message: "served", PublicKey: publicKey(), Portals: []string{"192.0.2.1:3262"}, IQN: "iqn.2026-11.io.nearflash:x",
			ChunkSizeBytes: 128 << 10, MetaBytes: 8 << 20, DataBytes: 1 << 30,
		},
		Progress: v1alpha1.MigrationProgress{
			TotalBytes: ptr.To[int64](512 << 10), HydratedBytes: ptr.To[int64](128 << 10), BytesPerSecond: ptr.To[int64](64 << 10),
			Copied: "128Ki of 512Ki", Rate: "64Ki/s",
			EstimatedCompletionTime: metav1.Now(), ServedFrom: v1alpha1.ServedFromPeer,
		},
		Outcome: v1alpha1.MigrationEnded, OutcomeMessage: "it left", StartTime: metav1.Now(), CompletionTime: metav1.Now(),
		Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionCompleted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMigrationEnded, LastTransitionTime: metav1.Now(),
		}},
	}
	if err := c.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

func testMigrationStatus(t *testing.T, c client.Client) {
	obj := makeMigrationOf(t, c, "pvc-1")
	changed := obj.DeepCopy()
	changed.Spec.Deadline = metav1.NewTime(time.Now().Add(time.Hour))
	wantMessage(t, c.Update(t.Context(), changed, client.DryRunAll), `spec: Invalid value: the spec of a CacheMigration cannot be changed`)
	tests := map[string]struct {
		change func(*v1alpha1.CacheMigrationStatus)
		want   string
	}{
		"refused": {change: func(s *v1alpha1.CacheMigrationStatus) {
			s.Source = v1alpha1.MigrationSource{State: v1alpha1.ExportStateRefused, Message: "no retained cache"}
		}},
		"a stream": {change: func(s *v1alpha1.CacheMigrationStatus) {
			s.Source = v1alpha1.MigrationSource{State: v1alpha1.ExportStateExported, ChunkSizeBytes: 128 << 10, DataBytes: 1 << 30, UnitID: "naa.600"}
		}},
		"nothing": {change: func(s *v1alpha1.CacheMigrationStatus) { *s = v1alpha1.CacheMigrationStatus{} }},
		"another outcome": {
			change: func(s *v1alpha1.CacheMigrationStatus) { s.Outcome = "Lost" },
			want:   `[status.outcome: Unsupported value: "Lost": supported values: "Completed", "Ended", "Failed"` + unchecked,
		},
		"odd chunk": {
			change: func(s *v1alpha1.CacheMigrationStatus) { s.Source.ChunkSizeBytes = 48 << 10 },
			want:   `status.source.chunkSizeBytes: Invalid value: 49152: source.chunkSizeBytes in body should be a multiple of 32768`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			changed := obj.DeepCopy()
			tc.change(&changed.Status)
			wantMessage(t, c.Status().Update(t.Context(), changed, client.DryRunAll), tc.want)
		})
	}
	if err := c.Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func testHotSets(t *testing.T, c client.Client) {
	tests := map[string]struct {
		bytes int
		uid   string
		want  string
	}{
		"empty":        {uid: "u"},
		"full":         {bytes: v1alpha1.MaxHotSetBytes, uid: "u"},
		"too large":    {bytes: v1alpha1.MaxHotSetBytes + 3, uid: "u", want: "blocks: Too long: may not be more than 87384 bytes"},
		"of no volume": {want: `volumeUID: Required value`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			obj := &v1alpha1.CacheHotSet{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, VolumeUID: tc.uid, Blocks: make([]byte, tc.bytes), RecordedTime: metav1.Now()}
			wantMessage(t, c.Create(t.Context(), obj, client.DryRunAll), tc.want)
		})
	}
}

// testNodeSelectors: a node watches the migrations that it is a part of.
func testNodeSelectors(t *testing.T, c client.WithWatch) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := c.Watch(ctx, &v1alpha1.CacheMigrationList{}, client.MatchingFields{"spec.sourceNode": "node-b"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	other := goodMigration("pvc-1-4")
	other.Spec.Generation, other.Spec.SourceNode = 4, "node-c"
	if err := c.Create(ctx, other); err != nil {
		t.Fatal(err)
	}
	obj := makeMigrationOf(t, c, "pvc-1")
	event, ok := <-w.ResultChan()
	if !ok {
		t.Fatal("the watch ended")
	}
	if got, isMigration := event.Object.(*v1alpha1.CacheMigration); event.Type != watch.Added || !isMigration || got.Name != obj.Name {
		t.Errorf("event %s of %v, want %s of %s", event.Type, event.Object, watch.Added, obj.Name)
	}
	for field, want := range map[string]int{"spec.sourceNode=node-c": 1, "spec.destinationNode=node-a": 2, "spec.destinationNode=node-b": 0} {
		var list v1alpha1.CacheMigrationList
		raw := &client.ListOptions{Raw: &metav1.ListOptions{FieldSelector: field}}
		if err := c.List(ctx, &list, raw); err != nil || len(list.Items) != want {
			t.Errorf("%s: %d migrations (%v), want %d", field, len(list.Items), err, want)
		}
	}
	if err := c.DeleteAllOf(ctx, &v1alpha1.CacheMigration{}); err != nil {
		t.Fatal(err)
	}
}
