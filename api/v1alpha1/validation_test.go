package v1alpha1_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// TestAPIServer judges the generated definitions by a real API server, which has
// accepted them, the cost of their rules included, when it runs.
func TestAPIServer(t *testing.T) {
	cfg := apiserver.Start(t)
	c := apiserver.Client(t, cfg)
	t.Run("new objects", func(t *testing.T) { testCreate(t, c) })
	t.Run("changed objects", func(t *testing.T) { testChange(t, c) })
	t.Run("holds", func(t *testing.T) { testHold(t, c) })
	t.Run("parents", func(t *testing.T) { testParent(t, c) })
	t.Run("preloads", func(t *testing.T) { testPreload(t, c) })
	t.Run("targets", func(t *testing.T) { testTarget(t, c) })
	t.Run("new pools", func(t *testing.T) { testPools(t, c) })
	t.Run("what nodes say of their pools", func(t *testing.T) { testPoolStatus(t, c) })
	t.Run("new migrations", func(t *testing.T) { testMigrations(t, c) })
	t.Run("changed migrations", func(t *testing.T) { testMigrationStatus(t, c) })
	t.Run("new hot sets", func(t *testing.T) { testHotSets(t, c) })
	t.Run("watch by node", func(t *testing.T) { testNodeSelectors(t, c) })
	t.Run("watch by owner", func(t *testing.T) { testOwnerSelector(t, c) })
	t.Run("columns", func(t *testing.T) { testColumns(t, cfg, c) })
}

func good() *v1alpha1.CachedVolume {
	return &v1alpha1.CachedVolume{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "v-"},
		Spec: v1alpha1.CachedVolumeSpec{
			Backend: "iscsi", CapacityBytes: ptr.To[int64](1 << 40), CacheMode: v1alpha1.CacheModeWritethrough, CacheSize: "10%",
			ChunkSizeBytes: ptr.To[int64](0),
		},
	}
}

// unchecked is what the API server adds when an error kept it from asking the rules.
const unchecked = `, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]`

// refused is what an API server puts before a rule's message: the value, and nothing for
// an object. That of 1.34 puts the type there, which is refusedType.
var (
	refused     = regexp.MustCompile(`Invalid value: ("[^"]*"|-?[0-9]+|true|false): `)
	refusedType = regexp.MustCompile(`Invalid value: "(object|string|integer|boolean|array)": `)
)

// wantMessage fails unless the error is the API server's refusal with a message
// and nothing else.
func wantMessage(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want == "":
	case !apierrors.IsInvalid(err):
		t.Errorf("got %v, want it refused with: %s", err, want)
	default:
		_, message, _ := strings.Cut(err.Error(), " is invalid: ")
		if refusedType.MatchString(message) {
			message, want = refused.ReplaceAllString(message, "Invalid value: "), refused.ReplaceAllString(want, "Invalid value: ")
		}
		if message != want {
			t.Errorf("refused with:\n%s\nwant:\n%s", message, want)
		}
	}
}

func testCreate(t *testing.T, c client.Client) {
	size := func(s string) func(*v1alpha1.CachedVolumeSpec) {
		return func(spec *v1alpha1.CachedVolumeSpec) { spec.CacheSize = s }
	}
	warm := func(w v1alpha1.WarmStart) func(*v1alpha1.CachedVolumeSpec) {
		return func(s *v1alpha1.CachedVolumeSpec) { s.WarmStart = w }
	}
	chunk := func(n int64) func(*v1alpha1.CachedVolumeSpec) {
		return func(spec *v1alpha1.CachedVolumeSpec) { spec.ChunkSizeBytes = &n }
	}
	badSize := func(s string) string {
		return fmt.Sprintf(`spec.cacheSize: Invalid value: %q: cacheSize must be a whole number of bytes, such as 10Gi or 1.5Gi, or 1%% to 100%%`, s)
	}
	badDirty := func(s string) string {
		return fmt.Sprintf(`spec.maxDirtyBytes: Invalid value: %q: maxDirtyBytes must be a whole number of bytes of at least 16Mi, such as 2Gi or 1.5Gi, or 1%% to 100%%`, s)
	}
	dirty := func(text string, age int32) func(*v1alpha1.CachedVolumeSpec) {
		return func(s *v1alpha1.CachedVolumeSpec) { s.MaxDirtyBytes, s.MaxDirtyAgeSeconds = text, ptr.To(age) }
	}
	tests := map[string]struct {
		change func(*v1alpha1.CachedVolumeSpec)
		want   string
	}{
		"as it is": {change: func(*v1alpha1.CachedVolumeSpec) {}},

		"dirty limit":            {change: dirty("2Gi", 604800)},
		"dirty limit in bytes":   {change: dirty("16777216", 10)},
		"dirty limit in percent": {change: dirty("1%", 0)},
		"small dirty limit":      {change: dirty("16000k", 0), want: badDirty("16000k")},
		"no dirty percentage":    {change: dirty("0%", 0), want: badDirty("0%")},
		"dirty limit, fraction":  {change: dirty("16.5Mi", 0)},
		"half a dirty byte":      {change: dirty("16777216.5", 0), want: badDirty("16777216.5")},
		"young dirt":             {change: dirty("2Gi", 9), want: `spec.maxDirtyAgeSeconds: Invalid value: 9: maxDirtyAgeSeconds must be 0 or at least 10`},
		"old dirt":               {change: dirty("2Gi", 604801), want: `spec.maxDirtyAgeSeconds: Invalid value: 604801: spec.maxDirtyAgeSeconds in body should be less than or equal to 604800`},

		"writeback with consent":     {change: loses(v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNodeLoss)},
		"writeback without consent":  {change: loses(v1alpha1.CacheModeWriteback, ""), want: needsNodeLoss},
		"writeback against the will": {change: loses(v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNone), want: needsNodeLoss},
		"unsafe with consent":        {change: loses(v1alpha1.CacheModeWritebackUnsafe, v1alpha1.DirtyLossPowerLoss)},
		"unsafe with less consent":   {change: loses(v1alpha1.CacheModeWritebackUnsafe, v1alpha1.DirtyLossNodeLoss), want: needsPowerLoss},
		"none without a size":        {change: func(s *v1alpha1.CachedVolumeSpec) { s.CacheMode, s.CacheSize = v1alpha1.CacheModeNone, "" }},
		"none with a size":           {change: func(s *v1alpha1.CachedVolumeSpec) { s.CacheMode = v1alpha1.CacheModeNone }},
		"a maximum":                  {change: func(s *v1alpha1.CachedVolumeSpec) { s.MaxCacheSize = "1.5Gi" }},
		"a maximum in percent": {
			change: func(s *v1alpha1.CachedVolumeSpec) { s.MaxCacheSize = "50%" },
			want:   `spec.maxCacheSize: Invalid value: "50%": maxCacheSize must be a whole number of bytes, such as 50Gi or 1.5Gi`,
		},
		"a maximum of nothing": {
			change: func(s *v1alpha1.CachedVolumeSpec) { s.MaxCacheSize = "0" },
			want:   `spec.maxCacheSize: Invalid value: "0": maxCacheSize must be a whole number of bytes, such as 50Gi or 1.5Gi`,
		},
		"a cache without a size": {change: size(""), want: `spec: Invalid value: cacheMode other than none needs a cacheSize`},

		"percent":        {change: size("100%")},
		"quantity":       {change: size("10Gi")},
		"decimal":        {change: size("10G")},
		"bytes":          {change: size("1073741824")},
		"no percentage":  {change: size("0%"), want: badSize("0%")},
		"too much":       {change: size("101%"), want: badSize("101%")},
		"nothing":        {change: size("0"), want: badSize("0")},
		"a fraction":     {change: size("1.5Gi")},
		"part of a byte": {change: size("1.3Gi"), want: badSize("1.3Gi")},
		"negative":       {change: size("-1Gi"), want: badSize("-1Gi")},
		"a word":         {change: size("big"), want: badSize("big")},
		"beyond 63 bits": {change: size("9007199254740992Pi"), want: badSize("9007199254740992Pi")},

		"chunk":                  {change: chunk(32 << 10)},
		"odd chunk":              {change: chunk(48 << 10), want: `spec.chunkSizeBytes: Invalid value: 49152: spec.chunkSizeBytes in body should be a multiple of 32768`},
		"large chunk":            {change: chunk(2 << 30), want: `spec.chunkSizeBytes: Invalid value: 2147483648: spec.chunkSizeBytes in body should be less than or equal to 1073741824`},
		"warm start":             {change: warm(v1alpha1.WarmStart{From: v1alpha1.WarmStartOrigin, Method: v1alpha1.WarmStartStream, BandwidthBytesPerSecond: ptr.To[int64](1 << 20), DeadlineSeconds: ptr.To[int32](86400)})},
		"warm start of the node": {change: warm(v1alpha1.WarmStart{BandwidthBytesPerSecond: ptr.To[int64](0), DeadlineSeconds: ptr.To[int32](0)})},
		"warm start from elsewhere": {
			change: func(s *v1alpha1.CachedVolumeSpec) { s.WarmStart.From = "cloud" },
			want:   `[spec.warmStart.from: Unsupported value: "cloud": supported values: "peer", "origin", "off"` + unchecked,
		},
		"another method": {
			change: func(s *v1alpha1.CachedVolumeSpec) { s.WarmStart.Method = "copy" },
			want:   `[spec.warmStart.method: Unsupported value: "copy": supported values: "auto", "clone", "stream"` + unchecked,
		},
		"automatic method":      {change: func(s *v1alpha1.CachedVolumeSpec) { s.WarmStart.Method = v1alpha1.WarmStartAuto }},
		"preload":               {change: warm(v1alpha1.WarmStart{Preload: v1alpha1.WarmStartPreloadAll})},
		"no preload of nothing": {change: warm(v1alpha1.WarmStart{From: v1alpha1.WarmStartOff, Preload: v1alpha1.WarmStartPreloadNone})},
		"another preload":       {change: warm(v1alpha1.WarmStart{Preload: "some"}), want: `[spec.warmStart.preload: Unsupported value: "some": supported values: "none", "all"` + unchecked},
		"preload of nothing": {
			change: warm(v1alpha1.WarmStart{From: v1alpha1.WarmStartOff, Preload: v1alpha1.WarmStartPreloadAll}),
			want:   `spec.warmStart: Invalid value: preload all needs from peer or origin: off fills nothing`,
		},
		"slow warm start": {
			change: func(s *v1alpha1.CachedVolumeSpec) { s.WarmStart.BandwidthBytesPerSecond = ptr.To[int64](1<<20 - 1) },
			want:   `spec.warmStart.bandwidthBytesPerSecond: Invalid value: 1048575: bandwidthBytesPerSecond must be 0 or at least 1048576 (1Mi)`,
		},
		"hasty warm start": {
			change: func(s *v1alpha1.CachedVolumeSpec) { s.WarmStart.DeadlineSeconds = ptr.To[int32](59) },
			want:   `spec.warmStart.deadlineSeconds: Invalid value: 59: deadlineSeconds must be 0 or at least 60`,
		},
		"over a class":       {change: func(s *v1alpha1.CachedVolumeSpec) { *s = over("a", "").Spec }},
		"over a volume":      {change: func(s *v1alpha1.CachedVolumeSpec) { *s = over("", "pv").Spec }},
		"over nothing":       {change: func(s *v1alpha1.CachedVolumeSpec) { *s = over("", "").Spec }, want: "spec.origin: Invalid value: exactly one of storageClassName and persistentVolumeName must be set"},
		"over both":          {change: func(s *v1alpha1.CachedVolumeSpec) { *s = over("a", "pv").Spec }, want: "spec.origin: Invalid value: exactly one of storageClassName and persistentVolumeName must be set"},
		"csi without origin": {change: func(s *v1alpha1.CachedVolumeSpec) { s.Backend = "csi" }, want: "spec: Invalid value: origin goes with backend csi"},
		"origin without csi": {change: func(s *v1alpha1.CachedVolumeSpec) { s.Origin = over("a", "").Spec.Origin }, want: "spec: Invalid value: origin goes with backend csi"},
		"origin and provisioning": {
			change: func(s *v1alpha1.CachedVolumeSpec) { *s = over("a", "").Spec; s.Provisioning = "thin" },
			want:   "spec: Invalid value: static and provisioning do not go with backend csi",
		},
		"another mode": {change: func(s *v1alpha1.CachedVolumeSpec) { s.CacheMode = "writearound" }, want: `[spec.cacheMode: Unsupported value: "writearound": supported values: "none", "writethrough", "writeback", "writeback-unsafe"` + unchecked},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			obj := good()
			tc.change(&obj.Spec)
			wantMessage(t, c.Create(t.Context(), obj, client.DryRunAll), tc.want)
		})
	}
}

func testChange(t *testing.T, c client.Client) {
	source := func(lun int32) *v1alpha1.ISCSISource {
		return &v1alpha1.ISCSISource{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.com.example:a", LUN: &lun}
	}
	provisioned := good()
	provisioned.Spec.Provisioning = "thin"
	static := good()
	static.Spec.Static = source(1)
	bare, origin := good(), over("a", "")
	for _, obj := range []*v1alpha1.CachedVolume{provisioned, static, bare, origin} {
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		of     *v1alpha1.CachedVolume
		change func(*v1alpha1.CachedVolumeSpec)
		want   string
	}{
		"mode and size": {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) {
			s.CacheMode, s.AcceptDirtyLoss, s.CacheSize = v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNodeLoss, "20Gi"
		}},
		"none":    {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.CacheMode = v1alpha1.CacheModeNone }},
		"prewarm": {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.PrewarmNode, s.PrewarmRequest = "node-b", "r1" }},
		"prewarm without a request": {
			of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.PrewarmNode = "node-b" },
			want: `spec: Invalid value: prewarmNode and prewarmRequest go together`,
		},
		"flush, scrub":    {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.FlushRequest, s.ScrubRequest = "2026-11-21T10:00:00Z", "b" }},
		"warm start":      {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.WarmStart.From = v1alpha1.WarmStartOff }},
		"claim":           {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.ClaimRef = &v1alpha1.ClaimReference{Namespace: "a", Name: "b"} }},
		"size":            {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.CapacityBytes = ptr.To[int64](2 << 40) }},
		"absent chunk":    {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.ChunkSizeBytes = nil }},
		"chunk":           {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.ChunkSizeBytes = ptr.To[int64](64 << 10) }, want: "spec: Invalid value: chunkSizeBytes cannot be changed"},
		"provisioning":    {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.Provisioning = "thick" }, want: "spec: Invalid value: provisioning cannot be changed"},
		"without it":      {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.Provisioning = "" }, want: "spec: Invalid value: provisioning cannot be changed"},
		"made static":     {of: provisioned, change: func(s *v1alpha1.CachedVolumeSpec) { s.Static = source(1) }, want: "spec: Invalid value: static cannot be changed"},
		"another LUN":     {of: static, change: func(s *v1alpha1.CachedVolumeSpec) { s.Static = source(2) }, want: "spec: Invalid value: static cannot be changed"},
		"not static":      {of: static, change: func(s *v1alpha1.CachedVolumeSpec) { s.Static = nil }, want: "spec: Invalid value: static cannot be changed"},
		"the same LUN":    {of: static, change: func(s *v1alpha1.CachedVolumeSpec) { s.Static = source(1) }},
		"static's chunk":  {of: static, change: func(s *v1alpha1.CachedVolumeSpec) { s.ChunkSizeBytes = ptr.To[int64](64 << 10) }, want: "spec: Invalid value: chunkSizeBytes cannot be changed"},
		"unknown backend": {of: static, change: func(s *v1alpha1.CachedVolumeSpec) { s.Backend = "nvme" }, want: `[spec.backend: Unsupported value: "nvme": supported values: "iscsi", "csi"` + unchecked},
		"backend": {of: bare, change: func(s *v1alpha1.CachedVolumeSpec) { *s = *over("a", "").Spec.DeepCopy() },
			want: "[spec: Invalid value: backend cannot be changed, spec: Invalid value: origin cannot be changed]"},
		"another origin": {of: origin, change: func(s *v1alpha1.CachedVolumeSpec) { s.Origin.StorageClassName = "b" }, want: `spec.origin.storageClassName: Invalid value: "b": origin cannot be changed but for withoutFence`},
		"a PersistentVolume": {
			of: origin, change: func(s *v1alpha1.CachedVolumeSpec) { *s.Origin = v1alpha1.OriginSource{PersistentVolumeName: "pv"} },
			want: "spec.origin: Invalid value: origin cannot be changed but for withoutFence",
		},
		"a consent":       {of: origin, change: func(s *v1alpha1.CachedVolumeSpec) { s.Origin.WithoutFence = "AcceptTwoWriters" }},
		"another consent": {of: origin, change: func(s *v1alpha1.CachedVolumeSpec) { s.Origin.WithoutFence = "yes" }, want: `[spec.origin.withoutFence: Unsupported value: "yes": supported values: "AcceptTwoWriters"` + unchecked},
		"the same origin": {of: origin, change: func(s *v1alpha1.CachedVolumeSpec) { s.Origin = &v1alpha1.OriginSource{StorageClassName: "a"} }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			obj := tc.of.DeepCopy()
			tc.change(&obj.Spec)
			wantMessage(t, c.Update(t.Context(), obj, client.DryRunAll), tc.want)
		})
	}
}

// testOwnerSelector: a node watches the volumes that it owns, and learns of one
// that it gains or loses.
func testOwnerSelector(t *testing.T, c client.WithWatch) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := c.Watch(ctx, &v1alpha1.CachedVolumeList{}, client.MatchingFields{"status.ownerNode": "node-a"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	obj := good()
	obj.GenerateName, obj.Name = "", "owned"
	if err := c.Create(ctx, obj); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		owner string
		want  watch.EventType
	}{{"node-b", ""}, {"node-a", watch.Added}, {"node-b", watch.Deleted}, {"node-a", watch.Added}} {
		obj.Status.OwnerNode = step.owner
		if err := c.Status().Update(ctx, obj); err != nil {
			t.Fatal(err)
		}
		if step.want == "" {
			continue
		}
		event, ok := <-w.ResultChan()
		if !ok {
			t.Fatal("the watch ended")
		}
		got, isVolume := event.Object.(*v1alpha1.CachedVolume)
		if event.Type != step.want || !isVolume || got.Name != obj.Name {
			t.Fatalf("owner %s: event %s of %v, want %s of %s", step.owner, event.Type, event.Object, step.want, obj.Name)
		}
	}
	var list v1alpha1.CachedVolumeList
	if err := c.List(ctx, &list, client.MatchingFields{"status.ownerNode": "node-a"}); err != nil || len(list.Items) != 1 {
		t.Errorf("%d volumes of node-a (%v), want 1", len(list.Items), err)
	}
	if err := c.Delete(ctx, obj); err != nil {
		t.Fatal(err)
	}
}

// testColumns compares what kubectl get prints, with and without -o wide.
func testColumns(t *testing.T, cfg *rest.Config, c client.Client) {
	ctx := t.Context()
	if err := c.DeleteAllOf(ctx, &v1alpha1.CachedVolume{}); err != nil {
		t.Fatal(err)
	}
	obj := good()
	obj.GenerateName, obj.Name = "", "pvc-1"
	obj.Spec.ClaimRef = &v1alpha1.ClaimReference{Namespace: "shop", Name: "orders"}
	obj.Spec.CacheSize = "10Gi"
	if err := c.Create(ctx, obj); err != nil {
		t.Fatal(err)
	}
	obj.Status = v1alpha1.CachedVolumeStatus{
		Generation: ptr.To[int64](3), OwnerNode: "node-a", Publication: v1alpha1.PublicationPublished, DirtyState: v1alpha1.DirtyStateClean,
		RetainedCaches: []v1alpha1.RetainedCache{{NodeName: "node-b", Generation: 2}, {NodeName: "node-c", Generation: 1}},
		Cache: v1alpha1.CacheStatus{
			Mode: v1alpha1.CacheModeWritethrough, DirtyBytes: ptr.To[int64](0), Dirty: "0",
			HitRate: v1alpha1.HitRate{ReadPercent: ptr.To[int32](97), ReadTotalPercent: ptr.To[int32](91)},
		},
		Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionCached, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCacheActive, LastTransitionTime: metav1.Now()},
			{Type: v1alpha1.ConditionApplied, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonApplied, LastTransitionTime: metav1.Now()},
		},
	}
	if err := c.Status().Update(ctx, obj); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Spec: v1alpha1.CachePoolSpec{Redundancy: v1alpha1.RedundancyNone}}
	if err := c.Create(ctx, pool); err != nil {
		t.Fatal(err)
	}
	pool.Status = v1alpha1.CachePoolStatus{
		Capacity: resource.MustParse("100Gi"), Free: resource.MustParse("60Gi"), Retained: resource.MustParse("10Gi"),
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPoolReady, LastTransitionTime: metav1.Now()}},
	}
	if err := c.Status().Update(ctx, pool); err != nil {
		t.Fatal(err)
	}
	makeMigrationOf(t, c, "pvc-1")
	tests := map[string]struct {
		resource string
		wide     bool
		want     []string
	}{
		"migrations": {resource: "cachemigrations", want: []string{
			"Name|Volume|From|To|Method|Copied|Rate|Served From|Outcome|Age",
			"pvc-1-3|pvc-1|node-b|node-a|Clone|128Ki of 512Ki|64Ki/s|Peer|Ended|0s",
		}},
		"migrations wide": {resource: "cachemigrations", wide: true, want: []string{
			"Name|Volume|From|To|Method|Copied|Rate|Served From|Outcome|Gen|Export|Why|Message|Age",
			"pvc-1-3|pvc-1|node-b|node-a|Clone|128Ki of 512Ki|64Ki/s|Peer|Ended|3|Exported|dm-clone is there|it left|0s",
		}},
		"volumes": {resource: "cachedvolumes", want: []string{
			"Name|Namespace|Claim|Mode|Size|Owner|State|Dirty|Cached|Hit%|Age",
			"pvc-1|shop|orders|writethrough|10Gi|node-a|Published|Clean|CacheActive|97|0s",
		}},
		"volumes wide": {resource: "cachedvolumes", wide: true, want: []string{
			"Name|Namespace|Claim|Mode|Size|Owner|State|Dirty|Cached|Hit%|Gen|Total Hit%|Unflushed|Applied|Age",
			"pvc-1|shop|orders|writethrough|10Gi|node-a|Published|Clean|CacheActive|97|3|91|0|Applied|0s",
		}},
		"pools": {resource: "cachepools", want: []string{
			"Name|Capacity|Free|Retained|Redundancy|Ready|Reason|Age",
			"node-a|100Gi|60Gi|10Gi|none|True|PoolReady|0s",
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, table(t, cfg, tc.resource, tc.wide)); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

// table asks the API server for a table, as kubectl get does, and joins its cells.
func table(t *testing.T, cfg *rest.Config, resource string, wide bool) []string {
	t.Helper()
	copied := rest.CopyConfig(cfg)
	copied.GroupVersion = &schema.GroupVersion{Group: v1alpha1.GroupName, Version: v1alpha1.GroupVersion.Version}
	copied.APIPath = "/apis"
	copied.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	r, err := rest.RESTClientFor(copied)
	if err != nil {
		t.Fatal(err)
	}
	text, err := r.Get().Resource(resource).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var got metav1.Table
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	lines := make([][]string, 1+len(got.Rows))
	for i, column := range got.ColumnDefinitions {
		if column.Priority > 0 && !wide {
			continue
		}
		lines[0] = append(lines[0], column.Name)
		for j, row := range got.Rows {
			cell := fmt.Sprint(row.Cells[i])
			if column.Name == "Age" {
				cell = "0s" // some seconds, by how busy the machine is
			}
			lines[j+1] = append(lines[j+1], cell)
		}
	}
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = strings.Join(line, "|")
	}
	return out
}
