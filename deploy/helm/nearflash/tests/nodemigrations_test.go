package charttest

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// testNodeMigrations: each node speaks for its own side, and asks for itself alone.
func (c *cluster) testNodeMigrations(t *testing.T, nodeA, nodeB client.Client) {
	ctx := t.Context()
	forbidden(t, "ask for a cache in another's name", nodeA.Create(ctx, newMigration("moved", 2, "node-a", "node-b")))
	stored := newMigration("moved", 2, "node-a", "node-b")
	allowed(t, "ask for a cache", nodeB.Create(ctx, stored))
	forbidden(t, "change what was asked for", nodeB.Patch(ctx, stored.DeepCopy(), mergePatch(`{"metadata":{"labels":{"a":"b"}}}`)))
	nodeC := c.as(t, c.podToken(t, "nearflash-node", "node-c"))

	const exported = `{"status":{"source":{"state":"Exported"}}}`
	tests := map[string]struct {
		node        client.Client
		patch       string
		wantAllowed bool
	}{
		"source exports":                  {nodeA, exported, true},
		"destination exports to itself":   {nodeB, exported, false},
		"foreign node exports":            {nodeC, exported, false},
		"destination reports progress":    {nodeB, `{"status":{"progress":{"hydratedBytes":1}}}`, true},
		"source reports progress":         {nodeA, `{"status":{"progress":{"hydratedBytes":1}}}`, false},
		"foreign node reports progress":   {nodeC, `{"status":{"progress":{"hydratedBytes":1}}}`, false},
		"destination ends it":             {nodeB, `{"status":{"outcome":"Completed","outcomeMessage":"all","completionTime":"2026-11-21T10:00:00Z"}}`, true},
		"source ends it":                  {nodeA, `{"status":{"outcome":"Ended"}}`, false},
		"source says why it ended":        {nodeA, `{"status":{"outcomeMessage":"x"}}`, false},
		"source says when it ended":       {nodeA, `{"status":{"completionTime":"2026-11-21T10:00:00Z"}}`, false},
		"source says when it began":       {nodeA, `{"status":{"startTime":"2026-11-21T10:00:00Z"}}`, false},
		"source sets a condition":         {nodeA, `{"status":{"conditions":[{"type":"Completed","status":"True","reason":"Completed","message":"","lastTransitionTime":"2026-11-21T10:00:00Z"}]}}`, false},
		"foreign node ends it":            {nodeC, `{"status":{"outcome":"Ended"}}`, false},
		"source exports and ends it":      {nodeA, `{"status":{"source":{"state":"Exported"},"outcome":"Ended"}}`, false},
		"destination exports and reports": {nodeB, `{"status":{"source":{"state":"Exported"},"progress":{"hydratedBytes":1}}}`, false},
		"destination reports everything":  {nodeB, `{"status":{"startTime":"2026-11-21T10:00:00Z","progress":{"totalBytes":2}}}`, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.node.Status().Patch(t.Context(), stored.DeepCopy(), mergePatch(tc.patch), client.DryRunAll)
			if tc.wantAllowed {
				allowed(t, "write it", err)
			} else {
				forbidden(t, "write it", err)
			}
		})
	}
	allowed(t, "list migrations", nodeA.List(ctx, &v1alpha1.CacheMigrationList{}))
	forbidden(t, "delete what another asked for", nodeA.Delete(ctx, stored))
	allowed(t, "withdraw what it asked for", nodeB.Delete(ctx, stored))

	stream := newMigration("moved", 2, "node-a", "node-b")
	stream.Spec.Method, stream.Spec.MethodReason, stream.Spec.DestinationPublicKey = v1alpha1.MigrationStream, "as asked", ""
	forbidden(t, "ask for a stream in another's name", nodeC.Create(ctx, stream.DeepCopy()))
	forbidden(t, "ask for a stream of its own to another", nodeA.Create(ctx, stream.DeepCopy()))
	allowed(t, "ask for a stream", nodeB.Create(ctx, stream))
	forbidden(t, "answer it in the source's place", nodeB.Status().Patch(ctx, stream.DeepCopy(), mergePatch(exported)))
	allowed(t, "answer it", nodeA.Status().Patch(ctx, stream.DeepCopy(), mergePatch(exported)))
	allowed(t, "withdraw it", nodeB.Delete(ctx, stream))

	prewarm := newMigration("moved", 2, "node-a", "node-b")
	prewarm.Name += "-prewarm"
	prewarm.Spec.Purpose, prewarm.Spec.PrewarmRequest, prewarm.Spec.SourceGeneration = v1alpha1.MigrationPrewarm, "r1", prewarm.Spec.Generation
	allowed(t, "ask for a prewarm", nodeB.Create(ctx, prewarm))
	forbidden(t, "clear away another's copy that goes on", nodeC.Delete(ctx, prewarm))
	allowed(t, "end it", nodeB.Status().Patch(ctx, prewarm.DeepCopy(), mergePatch(`{"status":{"outcome":"Ended"}}`)))
	allowed(t, "clear away another's copy that has ended", nodeC.Delete(ctx, prewarm))
	testMigrationMetadata(t, nodeB)
}

// testMigrationMetadata: nobody but its volume decides how long an object stays.
func testMigrationMetadata(t *testing.T, nodeB client.Client) {
	owner := metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "CachedVolume", Name: "meta", UID: "uid"}
	tests := map[string]struct {
		change      func(*v1alpha1.CacheMigration)
		wantAllowed bool
	}{
		"its volume's":     {func(m *v1alpha1.CacheMigration) { m.OwnerReferences = []metav1.OwnerReference{owner} }, true},
		"with a finalizer": {func(m *v1alpha1.CacheMigration) { m.Finalizers = []string{"example.org/keep"} }, false},
		"of another volume": {func(m *v1alpha1.CacheMigration) {
			m.OwnerReferences = []metav1.OwnerReference{owner}
			m.OwnerReferences[0].Name = "x"
		}, false},
		"of another UID": {func(m *v1alpha1.CacheMigration) {
			m.OwnerReferences = []metav1.OwnerReference{owner}
			m.OwnerReferences[0].UID = "x"
		}, false},
		"of another kind": {func(m *v1alpha1.CacheMigration) {
			m.OwnerReferences = []metav1.OwnerReference{owner}
			m.OwnerReferences[0].Kind = "CachePool"
		}, false},
		"its volume's and more": {func(m *v1alpha1.CacheMigration) {
			m.OwnerReferences = []metav1.OwnerReference{owner, {APIVersion: "v1", Kind: "Node", Name: "node-b", UID: "n"}}
		}, false},
		"holding its volume": {func(m *v1alpha1.CacheMigration) {
			m.OwnerReferences = []metav1.OwnerReference{owner}
			m.OwnerReferences[0].BlockOwnerDeletion = new(true)
		}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMigration("meta", 2, "node-a", "node-b")
			tc.change(m)
			err := nodeB.Create(t.Context(), m, client.DryRunAll)
			if tc.wantAllowed {
				allowed(t, "create it", err)
			} else {
				forbidden(t, "create it", err)
			}
		})
	}
}

func mergePatch(text string) client.Patch {
	return client.RawPatch("application/merge-patch+json", []byte(text))
}
