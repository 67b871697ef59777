//go:build e2e

// Writes that an administrator abandons: what goes on record, and who is told.

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/pkg/records"
)

var _ = Describe("Unflushed writes of a node that is lost for good", Label("crash", "abandon", "lab"), func() {
	It("are given up by consent, stay on record, and the next pod is told", Label("turn-3"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "given-up", mode: v1alpha1.CacheModeWriteback, kind: block, size: "64Mi", cacheSize: "32Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		_, err = v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())

		By("losing the node")
		loseNode(ctx)
		v.takeFromLostNode(ctx)

		// The record may still be written to, which the command takes for a node that is back.
		Expect(v.awaitStranded(ctx)).To(Succeed())

		By("giving them up")
		_, errOut, status, err := plugin(ctx, "abandon", "-n", s.name, v.claim, "--force")
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(1))
		Expect(errOut).To(ContainSubstring("add --accept-data-loss"))
		Expect(shown(ctx, "abandon", "-n", s.name, v.claim, "--accept-data-loss", "--force")).To(ContainSubstring("the writes are abandoned"))
		Expect(shown(ctx, "describe", "-n", s.name, v.claim)).To(And(ContainSubstring("Abandoned:"), ContainSubstring("no pod was told yet")))

		By("going on elsewhere")
		Expect(v.start(ctx, nodeB)).To(Succeed())
		first := v.pod
		Expect(v.awaitTold(ctx, nodeA, 1)).To(Succeed())
		Expect(v.awaitOwner(ctx, nodeB, 2)).To(Succeed())
		Expect(shown(ctx, "describe", "-n", s.name, v.claim)).To(ContainSubstring("pod %s/%s was told", s.name, first))

		By("starting a second pod, which has nothing to learn")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		events, err := k.Events(ctx, v.pod)
		Expect(err).NotTo(HaveOccurred())
		for _, e := range events {
			Expect(e.Reason).NotTo(Equal(records.ReasonWritesAbandoned), "%+v", e)
		}
		cv, err := k.CachedVolume(ctx, v.Volume)
		Expect(err).NotTo(HaveOccurred())
		Expect(cv.Status.Abandoned).To(HaveLen(1))
		Expect(cv.Status.Abandoned[0].Told.Name).To(Equal(first))

		By("bringing the node back, which must not flush what was given up")
		Expect(outOfService(ctx, nodeA, false)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		Expect(v.awaitOwner(ctx, nodeB, 2)).To(Succeed())
		Expect(v.awaitNothingOn(ctx, nodeA)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// awaitStranded waits until the record says that the volume was taken from its node
// with unflushed writes.
func (v *vol) awaitStranded(ctx context.Context) error {
	return v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		if cv.Status.Publication != v1alpha1.PublicationReleased || cv.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
			return "it is not released with unflushed writes"
		}
		return ""
	})
}

// awaitTold waits until the record has the writes of an ownership that were abandoned,
// with everything that is to be known of them, and the pod and its claim have been told.
func (v *vol) awaitTold(ctx context.Context, lost string, generation int64) error {
	err := v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		if len(cv.Status.Abandoned) == 0 {
			return "nothing was given up"
		}
		a := cv.Status.Abandoned[len(cv.Status.Abandoned)-1]
		switch {
		case a.NodeName != lost, a.Generation != generation:
			return fmt.Sprintf("abandoned are writes of node %s and generation %d, not of %s and %d", a.NodeName, a.Generation, lost, generation)
		case a.Consent.By == "", a.Consent.Time.IsZero(), !strings.Contains(a.Consent.Given, "--accept-data-loss"):
			return "it is not on record who consented, when and how"
		case a.Told.Name != v.pod, a.Told.Namespace != v.space.name, a.Told.Time.IsZero():
			return "pod " + v.pod + " was not told"
		}
		return ""
	})
	if err != nil {
		return err
	}
	for object, name := range map[string]string{"PersistentVolumeClaim/" + v.claim: v.claim, "Pod/" + v.pod: v.pod} {
		_, err := k.AwaitEvent(ctx, name, soon, func(e cluster.Event) bool {
			return e.Reason == records.ReasonWritesAbandoned && e.Type == corev1.EventTypeWarning && e.Object == object &&
				strings.Contains(e.Message, fmt.Sprintf("node %s had not flushed (generation %d)", lost, generation))
		})
		if err != nil {
			return fmt.Errorf("warning on %s: %w", object, err)
		}
	}
	return nil
}
