package reconcile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// migrate makes a migration of a volume to node-b.
func (c *cluster) migrate(t *testing.T, id volume.ID, uid string, generation int64) *v1alpha1.CacheMigration {
	t.Helper()
	m := &v1alpha1.CacheMigration{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", id, generation)},
		Spec:       v1alpha1.CacheMigrationSpec{VolumeName: string(id), VolumeUID: uid, Generation: generation, DestinationNode: "node-b"},
	}
	c.must(t, c.client.Create(t.Context(), m))
	return m
}

// prewarm makes the migration of request r1 for node-b.
func (c *cluster) prewarm(t *testing.T, id volume.ID, uid string, generation int64) *v1alpha1.CacheMigration {
	t.Helper()
	m := &v1alpha1.CacheMigration{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d-prewarm", id, generation)},
		Spec: v1alpha1.CacheMigrationSpec{
			VolumeName: string(id), VolumeUID: uid, Generation: generation, DestinationNode: "node-b", SourceNode: "node-a", SourceGeneration: generation,
			Purpose: v1alpha1.MigrationPrewarm, PrewarmRequest: "r1", DestinationPublicKey: strings.Repeat("A", 43) + "=",
		},
	}
	c.must(t, c.client.Create(t.Context(), m))
	return m
}

// read makes the migration of node-b, which reads a volume with others, in the name of a node.
func (c *cluster) read(t *testing.T, id volume.ID, uid string, generation int64, named string) *v1alpha1.CacheMigration {
	t.Helper()
	m := &v1alpha1.CacheMigration{
		ObjectMeta: metav1.ObjectMeta{Name: moves.ReadName(id, generation, named)},
		Spec:       v1alpha1.CacheMigrationSpec{VolumeName: string(id), VolumeUID: uid, Generation: generation, DestinationNode: "node-b", Purpose: v1alpha1.MigrationRead},
	}
	c.must(t, c.client.Create(t.Context(), m))
	return m
}

// readBy has nodes read a volume.
func (c *cluster) readBy(t *testing.T, id volume.ID, generation int64, nodes ...string) {
	t.Helper()
	c.must(t, records.UpdateStatus(t.Context(), c.client, id, func(v *v1alpha1.CachedVolume) error {
		v.Status.Generation, v.Status.OwnerNode, v.Status.Readers, v.Status.Publication = new(generation), volume.Readers, nodes, v1alpha1.PublicationPublished
		return nil
	}))
}

// testReaders: each of the nodes that read a volume has a migration of its own name, which ends when it
// reads no more.
func (c *cluster) testReaders(t *testing.T) {
	const id = "read-by-many"
	c.create(t, id)
	c.readBy(t, id, 2, "node-a", "node-b")
	uid := string(c.load(t, id).UID)
	m := c.read(t, id, uid, 2, "node-b")
	usurped := c.read(t, id, uid, 2, "node-c")
	eventually(t, "what has another reader's name goes", func() bool { return c.migration(t, usurped) == nil })
	never(t, "the migration of a reader was ended", func() bool {
		now := c.migration(t, m)
		return now == nil || now.Status.Outcome != ""
	})
	c.readBy(t, id, 2, "node-a")
	eventually(t, "the migration of a reader that has left ends", func() bool {
		return c.migration(t, m).Status.OutcomeMessage == "the node reads the volume no more"
	})
}

// own gives a volume to a node.
func (c *cluster) own(t *testing.T, id volume.ID, node string, generation int64) {
	t.Helper()
	c.must(t, records.UpdateStatus(t.Context(), c.client, id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.OwnerNode, obj.Status.Generation = node, ptr.To(generation)
		return nil
	}))
}

// migration reads a migration, nil if it is gone.
func (c *cluster) migration(t *testing.T, m *v1alpha1.CacheMigration) *v1alpha1.CacheMigration {
	t.Helper()
	now := &v1alpha1.CacheMigration{}
	err := c.client.Get(t.Context(), client.ObjectKeyFromObject(m), now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.must(t, err)
	return now
}

// complete is what the destination writes of a migration that was carried out. The
// controller may write at the same time: it ends one that nobody asks for any more
// as soon as it sees it.
func (c *cluster) complete(t *testing.T, m *v1alpha1.CacheMigration, at time.Time) {
	t.Helper()
	c.must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		m.Status.Outcome, m.Status.CompletionTime = v1alpha1.MigrationCompleted, metav1.NewTime(at)
		return c.client.Status().Update(t.Context(), m)
	}))
}

// request asks for a copy on a node, or takes the request back.
func (c *cluster) request(t *testing.T, id volume.ID, node, request string) {
	t.Helper()
	c.must(t, records.UpdateObject(t.Context(), c.client, id, func(v *v1alpha1.CachedVolume) error {
		v.Spec.PrewarmNode, v.Spec.PrewarmRequest = node, request
		return nil
	}))
}

// testSuperseded: a source exports until the migration has ended or is gone; of a
// destination that died the controller has to say so.
func (c *cluster) testSuperseded(t *testing.T) {
	const id = "superseded"
	c.create(t, id)
	c.own(t, id, "node-b", 2)
	uid := string(c.load(t, id).UID)
	m := c.migrate(t, id, uid, 2)
	early := c.migrate(t, id, uid, 4) // the record is a restored one
	never(t, "a migration that goes on was ended", func() bool {
		return c.migration(t, m).Status.Outcome != "" || c.migration(t, early).Status.Outcome != ""
	})
	c.own(t, id, nodeA, 3)
	eventually(t, "the migration of the former owner ends", func() bool {
		s := c.migration(t, m).Status
		return s.Outcome == v1alpha1.MigrationEnded && s.OutcomeMessage == "the volume went on to node node-a, generation 3" &&
			!s.CompletionTime.IsZero() && meta.IsStatusConditionFalse(s.Conditions, v1alpha1.ConditionCompleted)
	})
	never(t, "an ended migration was deleted at once", func() bool { return c.migration(t, m) == nil })
}

// testUsurped: a migration that a node has made in another one's name goes, so that its own can begin;
// those of the owner, and of the node that is to be prewarmed, stay.
func (c *cluster) testUsurped(t *testing.T) {
	for name, tc := range map[string]struct {
		owner, prewarm string
		generation     int64
		copies, goes   bool
	}{
		"of-its-owner":          {owner: "node-b", generation: 2},
		"of-another":            {owner: "node-a", generation: 2, goes: true},
		"before-its-time":       {owner: "node-a", generation: 1},
		"of-nobody-now":         {generation: 2},
		"copy-asked-for":        {owner: "node-a", prewarm: "node-b", generation: 2, copies: true},
		"copy-asked-of-another": {owner: "node-a", prewarm: "node-c", generation: 2, copies: true, goes: true},
	} {
		id := volume.ID("usurped-" + name)
		c.create(t, id)
		c.own(t, id, tc.owner, tc.generation)
		if tc.prewarm != "" {
			c.request(t, id, tc.prewarm, "r1")
		}
		var m *v1alpha1.CacheMigration
		if uid := string(c.load(t, id).UID); tc.copies {
			m = c.prewarm(t, id, uid, 2)
		} else {
			m = c.migrate(t, id, uid, 2)
		}
		if tc.goes {
			eventually(t, name+": the migration goes", func() bool { return c.migration(t, m) == nil })
			continue
		}
		never(t, name+": the migration went", func() bool { return c.migration(t, m) == nil })
	}
}

func (c *cluster) testWithoutVolume(t *testing.T) {
	const id = "same-name"
	c.create(t, id)
	for _, m := range []*v1alpha1.CacheMigration{c.migrate(t, "never-there", "u", 1), c.migrate(t, id, "of-an-earlier-volume", 1)} {
		eventually(t, "the migration goes", func() bool { return c.migration(t, m) == nil })
	}
}

// testExpiry: ended migrations are kept for an hour.
func (c *cluster) testExpiry(t *testing.T) {
	const id = "expiry"
	c.create(t, id)
	end := func(generation int64, at time.Time) *v1alpha1.CacheMigration {
		t.Helper()
		m := c.migrate(t, id, string(c.load(t, id).UID), generation)
		c.complete(t, m, at)
		return m
	}
	now := time.Now()
	old, soon, fresh := end(1, now.Add(-2*time.Hour)), end(2, now.Add(3*time.Second-time.Hour)), end(3, now)
	for _, m := range []*v1alpha1.CacheMigration{old, soon} {
		eventually(t, "the migration goes", func() bool { return c.migration(t, m) == nil })
	}
	if c.migration(t, fresh) == nil {
		t.Error("a migration that has just ended is gone")
	}
}

// testFulfilled: a request for a copy does not outlive the object that shows that it was
// carried out; a later one does.
func (c *cluster) testFulfilled(t *testing.T) {
	for id, request := range map[volume.ID]string{"fulfilled": "r1", "asked-again": "r2"} {
		c.create(t, id)
		c.request(t, id, "node-b", request)
		m := c.prewarm(t, id, string(c.load(t, id).UID), 1)
		c.complete(t, m, time.Now().Add(-2*time.Hour))
		eventually(t, "the migration goes", func() bool { return c.migration(t, m) == nil })
		want := request
		if request == m.Spec.PrewarmRequest {
			want = ""
		}
		if s := c.load(t, id).Spec; s.PrewarmRequest != want || (s.PrewarmNode == "") != (want == "") {
			t.Errorf("%s: request %q for node %q is left, want %q", id, s.PrewarmRequest, s.PrewarmNode, want)
		}
	}
}

// testTakenBack: a copy whose request is taken back ends, also if its destination is down.
func (c *cluster) testTakenBack(t *testing.T) {
	const id = "taken-back"
	c.create(t, id)
	c.request(t, id, "node-b", "r1")
	m := c.prewarm(t, id, string(c.load(t, id).UID), 1)
	never(t, "a copy that is asked for was ended", func() bool { return c.migration(t, m).Status.Outcome != "" })
	c.request(t, id, "", "")
	eventually(t, "the copy ends", func() bool { return c.migration(t, m).Status.Outcome == v1alpha1.MigrationEnded })
}

// testPeerGone: the new owner need not wait for a node that left the cluster.
func (c *cluster) testPeerGone(t *testing.T) {
	const id = "peer-gone"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-y"}}
	c.must(t, c.client.Create(t.Context(), node))
	c.create(t, id)
	c.publish(t, id, nil)
	c.must(t, records.UpdateStatus(t.Context(), c.client, id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: node.Name, Generation: 1}, {NodeName: nodeA, Generation: 1}}
		obj.Status.WarmSource = v1alpha1.WarmSource{NodeName: node.Name, Generation: 1}
		return nil
	}))
	never(t, "a retained cache or the source was dropped", func() bool {
		s := c.load(t, id).Status
		return len(s.RetainedCaches) != 2 || s.WarmSource.NodeName != node.Name
	})
	c.must(t, c.client.Delete(t.Context(), node))
	eventually(t, "the source goes with its node", func() bool {
		s := c.load(t, id).Status
		return len(s.RetainedCaches) == 1 && s.WarmSource == (v1alpha1.WarmSource{})
	})
}
