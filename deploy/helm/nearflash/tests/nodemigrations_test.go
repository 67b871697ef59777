package charttest

import (
	"testing"

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

	const lent = `{"status":{"source":{"state":"Lent"}}}`
	tests := map[string]struct {
		node        client.Client
		patch       string
		wantAllowed bool
	}{
		"source lends":                   {nodeA, lent, true},
		"destination lends to itself":    {nodeB, lent, false},
		"stranger lends":                 {nodeC, lent, false},
		"destination reports progress":   {nodeB, `{"status":{"progress":{"hydratedBytes":1}}}`, true},
		"source reports progress":        {nodeA, `{"status":{"progress":{"hydratedBytes":1}}}`, false},
		"stranger reports progress":      {nodeC, `{"status":{"progress":{"hydratedBytes":1}}}`, false},
		"destination ends it":            {nodeB, `{"status":{"outcome":"Completed","outcomeMessage":"all","completionTime":"2026-11-21T10:00:00Z"}}`, true},
		"source ends it":                 {nodeA, `{"status":{"outcome":"Ended"}}`, false},
		"source says why it ended":       {nodeA, `{"status":{"outcomeMessage":"x"}}`, false},
		"source says when it ended":      {nodeA, `{"status":{"completionTime":"2026-11-21T10:00:00Z"}}`, false},
		"source says when it began":      {nodeA, `{"status":{"startTime":"2026-11-21T10:00:00Z"}}`, false},
		"source sets a condition":        {nodeA, `{"status":{"conditions":[{"type":"Completed","status":"True","reason":"Completed","message":"","lastTransitionTime":"2026-11-21T10:00:00Z"}]}}`, false},
		"stranger ends it":               {nodeC, `{"status":{"outcome":"Ended"}}`, false},
		"source lends and ends it":       {nodeA, `{"status":{"source":{"state":"Lent"},"outcome":"Ended"}}`, false},
		"destination lends and reports":  {nodeB, `{"status":{"source":{"state":"Lent"},"progress":{"hydratedBytes":1}}}`, false},
		"destination reports everything": {nodeB, `{"status":{"startTime":"2026-11-21T10:00:00Z","progress":{"totalBytes":2}}}`, true},
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
}

func testNodeHotSets(t *testing.T, node client.Client) {
	ctx := t.Context()
	hot := &v1alpha1.CacheHotSet{VolumeUID: "uid", Blocks: []byte{1}}
	hot.Name = "moved"
	allowed(t, "record a hot set", node.Create(ctx, hot))
	allowed(t, "record another", node.Patch(ctx, hot, mergePatch(`{"blocks":"Ag=="}`)))
	allowed(t, "read it", node.Get(ctx, client.ObjectKeyFromObject(hot), hot))
	forbidden(t, "list hot sets", node.List(ctx, &v1alpha1.CacheHotSetList{}))
	forbidden(t, "delete a hot set", node.Delete(ctx, hot))
}

func mergePatch(text string) client.Patch {
	return client.RawPatch("application/merge-patch+json", []byte(text))
}
