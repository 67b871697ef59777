package reconcile_test

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// hold has a volume held, last asked for so long ago.
func (c *cluster) hold(t *testing.T, id volume.ID, token string, ago time.Duration) {
	t.Helper()
	c.must(t, records.UpdateObject(t.Context(), c.client, id, func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.Hold = &v1alpha1.VolumeHold{Name: "s", Token: token, Since: metav1.NewTime(time.Now().Add(-ago))}
		return nil
	}))
}

// testHolds: a hold ends ten minutes after the last call for it, and not before.
func (c *cluster) testHolds(t *testing.T) {
	c.create(t, "held-long")
	c.create(t, "held")
	c.hold(t, "held", "t", time.Minute)
	c.hold(t, "held-long", "t", 11*time.Minute)
	eventually(t, "the hold ends", func() bool { return c.load(t, "held-long").Spec.Hold == nil })
	c.create(t, "held-soon")
	c.hold(t, "held-soon", "t", 10*time.Minute-2*time.Second) // no event wakes the reconciler then
	eventually(t, "the hold ends by itself", func() bool { return c.load(t, "held-soon").Spec.Hold == nil })
	if c.load(t, "held").Spec.Hold == nil {
		t.Error("a hold has ended that was asked for a minute ago")
	}
}

// testCuts: what was cut for nobody is looked for again and again.
func (c *cluster) testCuts(t *testing.T) {
	c.create(t, "cut")
	c.hold(t, "cut", "held", time.Minute)
	cut := func(id volume.SnapshotID, token string) {
		_, err := c.storage.Cut(t.Context(), id, "cut", backend.CutRequest{Hold: token})
		c.must(t, err)
	}
	cut("kept", "held")
	cut("accepted", "held")
	c.must(t, c.storage.Accept(t.Context(), "accepted", "held"))
	cut("left", "over")
	eventually(t, "what was cut for nobody goes", func() bool {
		_, err := c.storage.Find(t.Context(), "left")
		return errors.Is(err, volume.ErrNotFound)
	})
	for _, id := range []volume.SnapshotID{"kept", "accepted"} {
		_, err := c.storage.Find(t.Context(), id)
		c.must(t, err)
	}
}
