package charttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// testNodeAccount takes the part of a node plugin that has been taken over.
func (c *cluster) testNodeAccount(t *testing.T) {
	ctx := t.Context()
	for _, name := range []string{"node-a", "node-b"} {
		if err := c.admin.Create(ctx, newNode(name)); err != nil {
			t.Fatal(err)
		}
	}
	nodeA := c.as(t, c.podToken(t, "nearflash-node", "node-a"))
	nodeB := c.as(t, c.podToken(t, "nearflash-node", "node-b"))
	c.waitForPolicies(t, nodeA)

	t.Run("pools", func(t *testing.T) { c.testNodePools(t, nodeA, nodeB) })
	t.Run("volume status", func(t *testing.T) { c.testNodeVolumeStatus(t, nodeA, nodeB) })
	t.Run("migrations", func(t *testing.T) { c.testNodeMigrations(t, nodeA, nodeB) })
	t.Run("hot sets", func(t *testing.T) { c.testNodeHotSets(t, nodeA, nodeB) })
	t.Run("events", func(t *testing.T) { c.testNodeEvents(t, nodeA, nodeB) })
	t.Run("every field of a status", func(t *testing.T) { c.testNodeEveryField(t, nodeA) })
	t.Run("anything else", func(t *testing.T) { c.testNodeElse(t, nodeA) })
	t.Run("token without a node", func(t *testing.T) {
		unbound := c.as(t, c.token(t, "nearflash-node", nil))
		forbidden(t, "create a pool", unbound.Create(ctx, newPool("node-c")))
		generated := newPool("")
		generated.GenerateName = "node-"
		forbidden(t, "create a pool with a generated name", unbound.Create(ctx, generated))
		volume := c.storedVolume(t, "unbound", ownedStatus("node-a", 1))
		volume.Status.Conditions = cachedCondition()
		forbidden(t, "write a status", unbound.Status().Update(ctx, volume))
		forbidden(t, "ask for a cache", unbound.Create(ctx, newMigration("unbound", 1, "", "node-a")))
		forbidden(t, "record a hot set", unbound.Create(ctx, newHotSet(volume)))
		forbidden(t, "send an event", unbound.Create(ctx, newEvent("node-a")))
	})
}

// waitForPolicies waits until every policy refuses something.
func (c *cluster) waitForPolicies(t *testing.T, node client.Client) {
	t.Helper()
	stored, foreign := c.storedVolume(t, "probe", ownedStatus("node-a", 1)), c.storedVolume(t, "foreign", ownedStatus("node-z", 1))
	err := eventually(t.Context(), "wait for the admission policies", func(ctx context.Context) error {
		volume := stored.DeepCopy()
		volume.Status.OwnerNode = "node-z"
		for _, err := range []error{
			node.Create(ctx, newPool("node-z"), client.DryRunAll),
			node.Status().Update(ctx, volume, client.DryRunAll),
			node.Create(ctx, newMigration("probe", 1, "", "node-z"), client.DryRunAll),
			node.Create(ctx, newHotSet(foreign), client.DryRunAll),
			node.Create(ctx, newEvent("node-z"), client.DryRunAll),
		} {
			if !apierrors.IsForbidden(err) {
				return errors.Join(errNotRefused, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) testNodePools(t *testing.T, nodeA, nodeB client.Client) {
	ctx := t.Context()
	poolA, poolB := newPool("node-a"), newPool("node-b")
	forbidden(t, "create another node's pool", nodeA.Create(ctx, newPool("node-b")))
	allowed(t, "create its pool", nodeA.Create(ctx, poolA))
	allowed(t, "create its pool", nodeB.Create(ctx, poolB))

	poolA.Status.VolumeGroup = "nearflash-0123456789"
	allowed(t, "report its pool", nodeA.Status().Update(ctx, poolA))
	poolB.Status.InitiatorIQN = "iqn.2026-11.io.example:evil"
	forbidden(t, "report another node's pool", nodeA.Status().Update(ctx, poolB))
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"initiatorIQN":"iqn.2026-11.io.example:evil"}}`))
	forbidden(t, "patch another node's pool", nodeA.Status().Patch(ctx, poolB.DeepCopy(), patch))

	poolA.Status.StreamPublicKey = strings.Repeat("A", 43) + "="
	allowed(t, "say by what it proves itself", nodeA.Status().Update(ctx, poolA))
	poolB.Status = v1alpha1.CachePoolStatus{StreamPublicKey: strings.Repeat("B", 43) + "="}
	forbidden(t, "play another node", nodeA.Status().Update(ctx, poolB))
	patch = client.RawPatch("application/merge-patch+json", []byte(`{"status":{"streamPublicKey":"`+poolB.Status.StreamPublicKey+`"}}`))
	forbidden(t, "play another node by a patch", nodeA.Status().Patch(ctx, poolB.DeepCopy(), patch))

	// With a key of its own there it would be given what another node is admitted with.
	poolA.Status.LoginPublicKey = strings.Repeat("A", 43) + "="
	allowed(t, "report its key for logins", nodeA.Status().Update(ctx, poolA))
	poolB.Status = v1alpha1.CachePoolStatus{LoginPublicKey: poolA.Status.LoginPublicKey}
	forbidden(t, "put its key for logins into another node's pool", nodeA.Status().Update(ctx, poolB))
	for _, key := range []string{`"` + poolA.Status.LoginPublicKey + `"`, "null"} {
		patch = client.RawPatch("application/merge-patch+json", []byte(`{"status":{"loginPublicKey":`+key+`}}`))
		forbidden(t, "patch another node's key for logins", nodeA.Status().Patch(ctx, poolB.DeepCopy(), patch))
	}

	forbidden(t, "delete its pool", nodeA.Delete(ctx, poolA))
	c.testNodeDeleted(t, nodeA)
	c.testNodePoolSpec(t, nodeA)
}

// testNodeDeleted: a node cannot say that what it has is not wanted any more. It takes away
// what it has done, also of a list that is as long as it can be.
func (c *cluster) testNodeDeleted(t *testing.T, nodeA client.Client) {
	ctx := t.Context()
	pool := &v1alpha1.CachePool{}
	write := func(as client.Client, change func(*v1alpha1.CachePoolStatus)) error {
		t.Helper()
		if err := c.admin.Get(ctx, client.ObjectKey{Name: "node-a"}, pool); err != nil {
			t.Fatal(err)
		}
		change(&pool.Status)
		return as.Status().Update(ctx, pool)
	}
	word := func(i int) v1alpha1.DeletedVolume {
		return v1alpha1.DeletedVolume{VolumeName: fmt.Sprintf("pvc-%059d", i), VolumeUID: fmt.Sprintf("%036d", i), Generation: new(int64(1))}
	}
	forbidden(t, "say that a volume was deleted", write(nodeA, func(st *v1alpha1.CachePoolStatus) { st.Deleted = append(st.Deleted, word(0)) }))
	allowed(t, "say so as an administrator", write(c.admin, func(st *v1alpha1.CachePoolStatus) {
		for i := range v1alpha1.MaxDeletedVolumes {
			st.Deleted = append(st.Deleted, word(i))
		}
	}))
	forbidden(t, "raise a generation", write(nodeA, func(st *v1alpha1.CachePoolStatus) { st.Deleted[3].Generation = new(int64(2)) }))
	allowed(t, "report beside a full list", write(nodeA, func(st *v1alpha1.CachePoolStatus) { st.VolumeGroup = "nearflash-9876543210" }))
	allowed(t, "take away what was done", write(nodeA, func(st *v1alpha1.CachePoolStatus) { st.Deleted = slices.Delete(st.Deleted, 5, 7) }))
	allowed(t, "take away all", write(nodeA, func(st *v1alpha1.CachePoolStatus) { st.Deleted = nil }))
}

// testNodePoolSpec finds the pools of both nodes.
func (c *cluster) testNodePoolSpec(t *testing.T, nodeA client.Client) {
	ctx := t.Context()
	const label = "nearflash.io/pool-source"
	devices := []string{"/dev/sda"}
	change := func(name string, labels map[string]string) error {
		pool := &v1alpha1.CachePool{}
		if err := c.admin.Get(ctx, client.ObjectKey{Name: name}, pool); err != nil {
			t.Fatal(err)
		}
		pool.Labels, pool.Spec.Devices = labels, devices
		return nodeA.Update(ctx, pool)
	}
	fromFlags := map[string]string{label: "node-flags"}
	forbidden(t, "choose devices in an administrator's pool", change("node-a", nil))
	forbidden(t, "take over an administrator's pool", change("node-a", fromFlags))
	for _, name := range []string{"node-a", "node-b"} {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+label+`":"node-flags"}}}`))
		if err := c.admin.Patch(ctx, newPool(name), patch); err != nil {
			t.Fatal(err)
		}
	}
	forbidden(t, "choose devices of another node", change("node-b", fromFlags))
	forbidden(t, "make its pool look like an administrator's", change("node-a", nil))
	allowed(t, "follow its flags", change("node-a", fromFlags))
}

func (c *cluster) testNodeElse(t *testing.T, node client.Client) {
	ctx := t.Context()
	volume := c.storedVolume(t, "else", ownedStatus("node-a", 1))
	allowed(t, "read volumes", node.List(ctx, &v1alpha1.CachedVolumeList{}))
	forbidden(t, "create a volume", node.Create(ctx, newVolume("mine")))
	forbidden(t, "delete a volume", node.Delete(ctx, volume))
	spec := volume.DeepCopy()
	spec.Spec.CacheMode = v1alpha1.CacheModeNone
	forbidden(t, "change a spec", node.Update(ctx, spec))
	c.testNodeHold(t, node)
	forbidden(t, "change its Node", node.Patch(ctx, newNode("node-a"), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"x":"y"}}}`))))
	allowed(t, "read its Node", client.IgnoreNotFound(node.Get(ctx, client.ObjectKey{Name: "node-a"}, &corev1.Node{})))
	forbidden(t, "list Nodes", node.List(ctx, &corev1.NodeList{}))
	forbidden(t, "say that its Node is up", node.Status().Patch(ctx, newNode("node-a"), client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Running"}}`))))
	forbidden(t, "read the CHAP secret", node.Get(ctx, client.ObjectKeyFromObject(c.chapSecret(t)), &corev1.Secret{}))
	forbidden(t, "list claims", node.List(ctx, &corev1.PersistentVolumeClaimList{}))
	forbidden(t, "list pods", node.List(ctx, &corev1.PodList{}))
}

// testNodeHold: a hold is the controller's, and an administrator's to end. What a node writes of
// it beside its status is not kept.
func (c *cluster) testNodeHold(t *testing.T, node client.Client) {
	ctx := t.Context()
	volume := c.storedVolume(t, "held", ownedStatus("node-a", 1))
	volume.Spec.Hold = &v1alpha1.VolumeHold{Name: "s", Token: "t", Since: metav1.NewTime(time.Unix(1, 0))}
	allowed(t, "hold a volume as an administrator", c.admin.Update(ctx, volume))
	free := volume.DeepCopy()
	free.Spec.Hold = nil
	forbidden(t, "end a hold", node.Update(ctx, free))
	forbidden(t, "end a hold by a patch", node.Patch(ctx, volume.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"hold":null}}`))))
	free = volume.DeepCopy()
	free.Spec.Hold, free.Status.Flush = nil, v1alpha1.FlushStatus{Request: "t"}
	allowed(t, "report a flush", node.Status().Update(ctx, free))
	if err := c.admin.Get(ctx, client.ObjectKeyFromObject(volume), volume); err != nil || volume.Spec.Hold == nil || volume.Status.Flush.Request != "t" {
		t.Errorf("the hold ended with a write of the status: %+v, %v", volume.Spec.Hold, err)
	}
	dirty := volume.DeepCopy()
	dirty.Status.DirtyState = v1alpha1.DirtyStatePossiblyDirty
	if err := node.Status().Update(ctx, dirty); !apierrors.IsInvalid(err) {
		t.Errorf("mark a volume that is held: %v, want it refused", err)
	}
	allowed(t, "end a hold by hand", c.admin.Patch(ctx, volume, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"hold":null}}`))))
}

func frozen() v1alpha1.FreezeStatus {
	return v1alpha1.FreezeStatus{Token: "t", State: v1alpha1.FreezeStateFrozen}
}

// testNodeVolumeStatus tries changes of one status: node-a owns generation 3 and
// keeps no cache, node-b keeps one of generation 2, node-c one of generation 1.
func (c *cluster) testNodeVolumeStatus(t *testing.T, nodeA, nodeB client.Client) {
	retainedCache := func(node string, generation int64) v1alpha1.RetainedCache {
		return v1alpha1.RetainedCache{NodeName: node, Generation: generation}
	}
	before := ownedStatus("node-a", 3)
	before.RetainedCaches = []v1alpha1.RetainedCache{retainedCache("node-b", 2), retainedCache("node-c", 1)}
	before.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionApplied, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonApplying, LastTransitionTime: metav1.Now(),
	}}
	before.Cache = v1alpha1.CacheStatus{Mode: v1alpha1.CacheModeWriteback, DirtyBytes: new(int64(0))}
	before.PersistentVolumeName = "pvc-1"
	before.WarmSource = v1alpha1.WarmSource{NodeName: "node-b", Generation: 2}
	before.Abandoned = []v1alpha1.AbandonedWrites{
		{Generation: 1, NodeName: "node-z", Consent: consent("admin"), Told: told("first")},
		{Generation: 2, NodeName: "node-z", Consent: consent("admin")},
	}
	tests := map[string]struct {
		node        client.Client
		change      func(*v1alpha1.CachedVolumeStatus)
		wantAllowed bool
	}{
		"owner sets a condition":       {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Conditions = cachedCondition() }, true},
		"other sets a condition":       {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.Conditions = cachedCondition() }, false},
		"owner changes a condition":    {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Conditions[0].Reason = "Other" }, true},
		"other changes a condition":    {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.Conditions[0].Reason = "Other" }, false},
		"other removes the conditions": {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.Conditions = nil }, false},
		"owner reports the cache":      {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Cache.DirtyBytes = new(int64(1)) }, true},
		"other reports the cache":      {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.Cache.DirtyBytes = new(int64(1)) }, false},
		"owner removes the cache":      {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Cache = v1alpha1.CacheStatus{} }, true},
		"other removes the cache":      {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.Cache = v1alpha1.CacheStatus{} }, false},
		"owner reports a flush":        {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Flush.Request = "now" }, true},
		"other reports a flush":        {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.Flush.Request = "now" }, false},
		"owner reports a freeze":       {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Freeze = frozen() }, true},
		"owner reports a preload": {nodeA, func(s *v1alpha1.CachedVolumeStatus) {
			s.Preload = v1alpha1.PreloadStatus{Request: "x", State: v1alpha1.PreloadRunning}
		}, true},
		"other reports a preload": {nodeB, func(s *v1alpha1.CachedVolumeStatus) {
			s.Preload = v1alpha1.PreloadStatus{Request: "x", State: v1alpha1.PreloadRunning}
		}, false},
		"other reports a freeze":        {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.Freeze = frozen() }, false},
		"owner takes the warm source":   {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.WarmSource = v1alpha1.WarmSource{} }, true},
		"other takes the warm source":   {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.WarmSource = v1alpha1.WarmSource{} }, false},
		"owner changes the warm source": {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.WarmSource.NodeName = "node-c" }, false},
		"owner tells a pod of a loss":   {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Abandoned[1].Told = told("db-0") }, true},
		"other tells a pod of a loss":   {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.Abandoned[1].Told = told("db-0") }, false},
		"owner tells another pod":       {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Abandoned[0].Told = told("db-0") }, false},
		"owner has told nobody":         {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Abandoned[0].Told = v1alpha1.ToldPod{} }, false},
		"owner changes a loss":          {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Abandoned[1].Consent = consent("me") }, false},
		"owner forgets a loss":          {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Abandoned = s.Abandoned[:1] }, false},
		"owner repeats another loss":    {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Abandoned[0] = s.Abandoned[1] }, false},
		"owner forgets all losses":      {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Abandoned = nil }, false},
		"owner gives writes up": {nodeA, func(s *v1alpha1.CachedVolumeStatus) {
			s.Abandoned = append(s.Abandoned, v1alpha1.AbandonedWrites{Generation: 3, NodeName: "node-a", Consent: consent("me")})
		}, false},
		"owner names the volume":        {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.PersistentVolumeName = "pv" }, false},
		"other names the volume":        {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.PersistentVolumeName = "pv" }, false},
		"owner removes the name":        {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.PersistentVolumeName = "" }, false},
		"owner sets the dirty mark":     {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.DirtyState = v1alpha1.DirtyStatePossiblyDirty }, true},
		"other sets the dirty mark":     {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.DirtyState = v1alpha1.DirtyStatePossiblyDirty }, false},
		"owner removes the dirty state": {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.DirtyState = "" }, true},
		"other removes the dirty state": {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.DirtyState = "" }, false},
		"owner raises the generation":   {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Generation = new(int64(4)) }, false},
		"owner removes the generation":  {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Generation = nil }, false},
		"owner gives the volume away":   {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.OwnerNode = "node-b" }, false},
		"other takes the volume":        {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.OwnerNode = "node-b" }, false},
		"owner releases the volume":     {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Publication = v1alpha1.PublicationReleased }, false},
		"owner removes the publication": {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.Publication = "" }, false},
		"status is emptied":             {nodeA, func(s *v1alpha1.CachedVolumeStatus) { *s = v1alpha1.CachedVolumeStatus{} }, false},
		"own retained cache added": {nodeA, func(s *v1alpha1.CachedVolumeStatus) {
			s.RetainedCaches = append(s.RetainedCaches, retainedCache("node-a", 3))
		}, true},
		"own retained cache added in front": {nodeA, func(s *v1alpha1.CachedVolumeStatus) {
			s.RetainedCaches = append([]v1alpha1.RetainedCache{retainedCache("node-a", 3)}, s.RetainedCaches...)
		}, true},
		"own retained cache removed":         {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.RetainedCaches = s.RetainedCaches[1:] }, true},
		"own retained cache from the future": {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.RetainedCaches[0].Generation = 4 }, false},
		"own retained cache made the latest": {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.RetainedCaches[0].Generation = 3 }, false},
		"own retained cache used just now":   {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.RetainedCaches[0].LastUsedTime = metav1.Now() }, false},
		"own retained cache with its size": {nodeA, func(s *v1alpha1.CachedVolumeStatus) {
			s.RetainedCaches = append(s.RetainedCaches, v1alpha1.RetainedCache{NodeName: "node-a", Generation: 3, SizeBytes: new(int64(1))})
		}, true},
		"foreign node claims a retained cache": {c.as(t, c.podToken(t, "nearflash-node", "node-e")), func(s *v1alpha1.CachedVolumeStatus) {
			s.RetainedCaches = append(s.RetainedCaches, retainedCache("node-e", 3))
		}, false},
		"retained cache of another removed": {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.RetainedCaches = s.RetainedCaches[:1] }, false},
		"every retained cache removed":      {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.RetainedCaches = nil }, false},
		"retained cache of another changed": {nodeB, func(s *v1alpha1.CachedVolumeStatus) { s.RetainedCaches[1].Generation = 3 }, false},
		"retained cache of another invented": {nodeA, func(s *v1alpha1.CachedVolumeStatus) {
			s.RetainedCaches = append(s.RetainedCaches, retainedCache("node-d", 3))
		}, false},
		"retained cache of another exchanged": {nodeA, func(s *v1alpha1.CachedVolumeStatus) { s.RetainedCaches[1] = retainedCache("node-d", 1) }, false},
	}
	stored := c.storedVolume(t, "status", before)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			volume := stored.DeepCopy()
			tc.change(&volume.Status)
			err := tc.node.Status().Update(t.Context(), volume, client.DryRunAll)
			if tc.wantAllowed {
				allowed(t, "write it", err)
			} else {
				forbidden(t, "write it", err)
			}
		})
	}
	t.Run("of many readers", func(t *testing.T) {
		read := c.storedVolume(t, "read", ownedStatus("*", 3))
		write := func(entry v1alpha1.RetainedCache) error {
			changed := read.DeepCopy()
			changed.Status.RetainedCaches = []v1alpha1.RetainedCache{entry}
			return nodeB.Status().Update(t.Context(), changed, client.DryRunAll)
		}
		allowed(t, "keep a cache of what was read", write(retainedCache("node-b", 3)))
		forbidden(t, "keep one of a generation to come", write(retainedCache("node-b", 4)))
		forbidden(t, "say what another keeps", write(retainedCache("node-a", 3)))
	})
	t.Run("first status", func(t *testing.T) {
		fresh := newVolume("fresh")
		if err := c.admin.Create(t.Context(), fresh); err != nil {
			t.Fatal(err)
		}
		claimed := fresh.DeepCopy()
		fresh.Status.Conditions = cachedCondition()
		forbidden(t, "set a condition before there is an owner", nodeA.Status().Update(t.Context(), fresh, client.DryRunAll))
		claimed.Status = ownedStatus("node-a", 1)
		forbidden(t, "make itself the owner", nodeA.Status().Update(t.Context(), claimed, client.DryRunAll))
	})
}

func consent(by string) v1alpha1.LossConsent {
	return v1alpha1.LossConsent{Time: metav1.Unix(1, 0), By: by, Given: "--accept-data-loss"}
}

func told(pod string) v1alpha1.ToldPod {
	return v1alpha1.ToldPod{Time: metav1.Unix(2, 0), Namespace: "shop", Name: pod}
}

// storedVolume stores a volume with a status, as the controller would.
func (c *cluster) storedVolume(t *testing.T, name string, status v1alpha1.CachedVolumeStatus) *v1alpha1.CachedVolume {
	t.Helper()
	volume := newVolume(name)
	if err := c.admin.Create(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	volume.Status = status
	if err := c.admin.Status().Update(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	return volume
}

func cachedCondition() []metav1.Condition {
	return []metav1.Condition{{
		Type: v1alpha1.ConditionCached, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCacheActive,
		LastTransitionTime: metav1.Now(),
	}}
}
