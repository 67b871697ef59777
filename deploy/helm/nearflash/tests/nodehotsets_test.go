package charttest

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// newHotSet is one as a plugin makes it.
func newHotSet(volume *v1alpha1.CachedVolume) *v1alpha1.CacheHotSet {
	return &v1alpha1.CacheHotSet{
		ObjectMeta: metav1.ObjectMeta{Name: volume.Name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "CachedVolume", Name: volume.Name, UID: volume.UID,
		}}},
		VolumeUID: string(volume.UID), Blocks: []byte{1},
	}
}

// testNodeHotSets: node-a owns the volume, node-b keeps a cache of it, node-c is
// where it was before, node-f has nothing to do with it.
func (c *cluster) testNodeHotSets(t *testing.T, nodeA, nodeB client.Client) {
	ctx := t.Context()
	status := ownedStatus("node-a", 3)
	status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-b", Generation: 1}}
	status.WarmSource = v1alpha1.WarmSource{NodeName: "node-c", Generation: 2}
	volume := c.storedVolume(t, "hot", status)
	nodeC, nodeF := c.as(t, c.podToken(t, "nearflash-node", "node-c")), c.as(t, c.podToken(t, "nearflash-node", "node-f"))
	c.waitForHotSet(t, nodeA, volume)

	forbidden(t, "record a hot set of another's volume", nodeF.Create(ctx, newHotSet(volume)))
	stored := newHotSet(volume)
	allowed(t, "record a hot set", nodeA.Create(ctx, stored))
	for name, node := range map[string]client.Client{"owner": nodeA, "retained": nodeB, "warm source": nodeC} {
		allowed(t, name+": record another", node.Patch(ctx, stored.DeepCopy(), mergePatch(`{"blocks":"Ag=="}`)))
	}
	forbidden(t, "change another's", nodeF.Patch(ctx, stored.DeepCopy(), mergePatch(`{"blocks":"Aw=="}`)))
	allowed(t, "read it", nodeF.Get(ctx, client.ObjectKeyFromObject(stored), stored))
	stored.Blocks = []byte{4}
	forbidden(t, "replace another's", nodeF.Update(ctx, stored))
	forbidden(t, "list hot sets", nodeA.List(ctx, &v1alpha1.CacheHotSetList{}))
	forbidden(t, "delete a hot set", nodeA.Delete(ctx, stored))

	for name, patch := range map[string]string{
		"keep it for ever":            `{"metadata":{"finalizers":["example.org/keep"]}}`,
		"take it from its volume":     `{"metadata":{"ownerReferences":[]}}`,
		"give it to another volume":   `{"metadata":{"ownerReferences":[{"apiVersion":"nearflash.io/v1alpha1","kind":"CachedVolume","name":"x","uid":"x"}]}}`,
		"make it of an earlier one":   `{"volumeUID":"x"}`,
		"hold its volume by an owner": `{"metadata":{"ownerReferences":[{"apiVersion":"nearflash.io/v1alpha1","kind":"CachedVolume","name":"hot","uid":"` + string(volume.UID) + `","blockOwnerDeletion":true}]}}`,
	} {
		forbidden(t, name, nodeA.Patch(ctx, stored.DeepCopy(), mergePatch(patch), client.DryRunAll))
	}
	read := c.storedVolume(t, "hot-of-many", ownedStatus("*", 3))
	c.waitForHotSet(t, nodeF, read)

	forged := newHotSet(volume)
	forged.Name, forged.OwnerReferences[0].Name = "foreign", "foreign"
	forbidden(t, "record one of another volume", nodeA.Create(ctx, forged))
}

// waitForHotSet waits until the API server knows the volume as a parameter of the
// policy, which is a moment after it is stored.
func (c *cluster) waitForHotSet(t *testing.T, owner client.Client, volume *v1alpha1.CachedVolume) {
	t.Helper()
	if err := eventually(t.Context(), "wait for the volume", func(ctx context.Context) error {
		return owner.Create(ctx, newHotSet(volume), client.DryRunAll)
	}); err != nil {
		t.Fatal(err)
	}
}

// newEvent is one that the plugin of a node sends.
func newEvent(node string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e-", Namespace: "default"}, EventTime: metav1.NowMicro(),
		ReportingController: "nearflash-node", ReportingInstance: "nearflash-node-" + node, Action: "Stage", Reason: "Staged", Note: "x", Type: "Normal",
		Regarding: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "CachedVolume", Name: "hot"},
	}
}

// testNodeEvents: each node speaks in its own name.
func (c *cluster) testNodeEvents(t *testing.T, nodeA, nodeB client.Client) {
	ctx := t.Context()
	event := newEvent("node-a")
	allowed(t, "send an event", nodeA.Create(ctx, event))
	forbidden(t, "send another's event", nodeB.Create(ctx, newEvent("node-a")))
	foreign := newEvent("node-b")
	foreign.ReportingInstance = "kubelet"
	forbidden(t, "send a kubelet's event", nodeB.Create(ctx, foreign))
	series := mergePatch(`{"series":{"count":2,"lastObservedTime":"2026-11-21T10:00:00.000000Z"}}`)
	allowed(t, "count its event", nodeA.Patch(ctx, event.DeepCopy(), series))
	forbidden(t, "count another's event", nodeB.Patch(ctx, event.DeepCopy(), series))
	forbidden(t, "read events", nodeA.List(ctx, &eventsv1.EventList{}))
	forbidden(t, "delete its event", nodeA.Delete(ctx, event))
	old := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e-", Namespace: "default"}, Reason: "Staged", Type: "Normal", Source: corev1.EventSource{Host: "node-a"},
		InvolvedObject: corev1.ObjectReference{Kind: "CachedVolume", Name: "hot", Namespace: "default"},
	}
	forbidden(t, "send an event of the old kind", nodeA.Create(ctx, old))
	long := newEvent("node-a")
	name := strings.Repeat("n", 200)
	if err := c.admin.Create(ctx, newNode(name)); err != nil {
		t.Fatal(err)
	}
	long.ReportingInstance = ("nearflash-node-" + name)[:128]
	allowed(t, "send an event of a node with a long name", c.as(t, c.podToken(t, "nearflash-node", name)).Create(ctx, long))
}
