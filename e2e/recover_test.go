//go:build e2e

// A cluster whose objects were lost, with its nodes and its storage server still there
// (docs/how-to/recover-a-lost-cluster.md): nothing dirty is destroyed, and volumes come
// back with every write.

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

const recoverPath = "docs/how-to/recover-a-lost-cluster.md"

var _ = Describe("A cluster whose objects were lost", Label("crash", "recover", "lab"), Serial, func() {
	It("has every write under records of a backup, which have new UIDs", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		spec := volumeSpec{mode: v1alpha1.CacheModeWriteback, kind: ext4, size: "128Mi", cacheSize: "64Mi"}
		spec.name = "old"
		old, err := s.volume(ctx, spec)
		Expect(err).NotTo(HaveOccurred())
		Expect(old.start(ctx, nodeB)).To(Succeed())
		Expect(old.stop(ctx)).To(Succeed())
		Expect(old.awaitClean(ctx)).To(Succeed())
		past, err := k.CachedVolume(ctx, old.Volume)
		Expect(err).NotTo(HaveOccurred())
		spec.name = "bare"
		bare, err := s.volume(ctx, spec)
		Expect(err).NotTo(HaveOccurred())

		By("losing a node with unflushed writes")
		crashed := crashDirty(ctx, old, bare)
		loseNode(ctx)
		expectUnflushed(ctx, crashed)

		By("losing the records, and restoring one as it was a generation ago, one without its status")
		now, err := k.CachedVolume(ctx, bare.Volume)
		Expect(err).NotTo(HaveOccurred())
		now.Status = v1alpha1.CachedVolumeStatus{}
		forgetLost(past, now)
		for _, record := range []*v1alpha1.CachedVolume{past, now} {
			Expect(restoreRecord(ctx, record)).To(Succeed())
		}
		for _, c := range crashed {
			c.takeFromLostNode(ctx)
			Expect(c.begin(ctx, nodeB)).To(Succeed())
			Expect(c.awaitFenced(ctx, "unflushed writes")).To(Succeed())
		}

		By("bringing the node back")
		Expect(outOfService(ctx, nodeA, false)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		for _, c := range crashed {
			Expect(c.awaitReady(ctx)).To(Succeed())
			Expect(c.check(ctx)).To(Succeed())
		}
		Expect(old.awaitOwner(ctx, nodeB, 3)).To(Succeed())
		Expect(bare.awaitOwner(ctx, nodeB, 2)).To(Succeed())

		By("ending in order")
		for _, c := range crashed {
			Expect(c.stop(ctx)).To(Succeed())
			Expect(c.awaitClean(ctx)).To(Succeed())
			Expect(c.stored(ctx)).To(BeNumerically(">=", c.acknowledged.Load()))
		}
	}, NodeTimeout(specLimit))

	It("is made anew from nothing, and has every write", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		r := newRelease(ctx)
		DeferCleanup(func(ctx SpecContext) { Expect(k.Lab.Start(ctx, nodeA)).To(Succeed()) }, NodeTimeout(late))
		vols := map[string]*vol{}
		for _, name := range []string{"dead", "saved", "alive"} {
			v, err := s.volume(ctx, volumeSpec{name: name, mode: v1alpha1.CacheModeWriteback, kind: ext4, size: "128Mi", cacheSize: "64Mi"})
			Expect(err).NotTo(HaveOccurred())
			vols[name] = v
		}
		dead, saved, alive := vols["dead"], vols["saved"], vols["alive"]
		backup := save(ctx, saved)

		By("losing a node with unflushed writes, and the cluster while another node works")
		Expect(alive.start(ctx, nodeB)).To(Succeed())
		works, err := prepareCrash(ctx, alive)
		Expect(err).NotTo(HaveOccurred())
		crashed := crashDirty(ctx, dead, saved)
		for _, v := range vols {
			record, err := k.CachedVolume(ctx, v.Volume)
			Expect(err).NotTo(HaveOccurred())
			forgetLost(record)
		}
		Expect(powerOff(ctx, nodeA)).To(Succeed())
		expectUnflushed(ctx, crashed)
		Expect(k.Lab.FreshControl(ctx)).To(Succeed())

		By("following the how-to")
		for _, name := range []string{s.name, k.Namespace} {
			Expect(k.API.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
		}
		const allJoin = "every node joins; pkg/provision tests it"
		w := &walk{path: recoverPath, s: s, words: append(usual(), word{`\bvalues\.yaml\b`, r.values})}
		w.steps = map[string]step{
			"helm install": {after: func(ctx context.Context) { Expect(k.AwaitDriver(ctx, late)).To(Succeed()) }},
			"kubectl nearflash doctor": {
				before:  func(ctx context.Context) { Expect(awaitRefused(ctx, cluster.StorageMachine)).To(Succeed()) },
				instead: "(kubectl nearflash doctor || true) | grep 'has refused this cluster'", why: "it finds errors, which is its exit status",
			},
			"kubectl nearflash takeover": {after: func(ctx context.Context) {
				for _, o := range backup {
					Expect(restore(ctx, o)).To(Succeed())
				}
				for _, v := range []*vol{dead, alive} {
					v.remake(ctx)
				}
			}},
			"kubectl nearflash discard": {left: "everything is wanted"},
			"kubectl create":            {left: allJoin}, "kubectl patch": {left: allJoin},
		}
		w.follow(ctx)

		By("starting the pods")
		Expect(alive.start(ctx, nodeB)).To(Succeed())
		Expect(works.check(ctx)).To(Succeed())
		for _, c := range crashed {
			Expect(c.begin(ctx, nodeB)).To(Succeed())
			Expect(c.awaitFenced(ctx, "unflushed writes")).To(Succeed())
		}
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		for _, c := range crashed {
			Expect(c.awaitReady(ctx)).To(Succeed())
			Expect(c.check(ctx)).To(Succeed())
			Expect(c.awaitOwner(ctx, nodeB, 2)).To(Succeed())
		}
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())

		By("moving on")
		Expect(works.restart(ctx, nodeA)).To(Succeed())
		Expect(works.check(ctx)).To(Succeed())
		Expect(shown(ctx, "doctor")).To(ContainSubstring("0 errors"))
	}, NodeTimeout(2*specLimit))
})

// crashDirty starts volumes on node A, has them written to, and returns when each has
// unflushed writes, below a writer that goes on.
func crashDirty(ctx context.Context, vols ...*vol) []*crash {
	GinkgoHelper()
	return crashDirtyOn(ctx, nodeA, vols...)
}

func crashDirtyOn(ctx context.Context, node string, vols ...*vol) []*crash {
	GinkgoHelper()
	var out []*crash
	for _, v := range vols {
		Expect(v.start(ctx, node)).To(Succeed())
		c, err := prepareCrash(ctx, v)
		Expect(err).NotTo(HaveOccurred())
		out = append(out, c)
	}
	for _, c := range out {
		Expect(cluster.Await(ctx, soon, func(ctx context.Context) (string, error) {
			counters, err := hoststate.ReadCounters(ctx, k.Host, node, c.Handle)
			if n := c.acknowledged.Load(); n < 20 || counters.Dirty == 0 {
				return fmt.Sprintf("%d writes acknowledged, %d blocks dirty", n, counters.Dirty), err
			}
			return "", err
		})).To(Succeed())
	}
	return out
}

// expectUnflushed fails unless the storage server lacks writes of each volume that were
// acknowledged.
func expectUnflushed(ctx context.Context, crashed []*crash) {
	GinkgoHelper()
	for _, c := range crashed {
		Expect(c.stored(ctx)).To(BeNumerically("<", c.acknowledged.Load()), "volume %s has nothing unflushed", c.claim)
	}
}

// stored is the last record that the filesystem would have if there were no cache; 0 if
// there would be no filesystem.
func (c *crash) stored(ctx context.Context) (int64, error) {
	out, err := k.Host.Run(ctx, cluster.StorageMachine, fmt.Sprintf(`set -e
lv=$(lvs --noheadings -o lv_full_name -S lv_name=nf-%s | tr -d ' ')
probe=${lv%%/*}/e2e-probe
lvcreate --snapshot --setactivationskip n --name e2e-probe $lv >/dev/null
mkdir -p /run/probe
if mount /dev/$probe /run/probe; then
  tail -n 1 /run/probe/log || true
  umount /run/probe
fi
lvremove --yes $probe >/dev/null`, c.Handle))
	if err != nil {
		return 0, err
	}
	last, _ := strconv.ParseInt(strings.TrimSpace(out), 10, 64) // nothing is no number either
	GinkgoWriter.Printf("volume %s: %d records were acknowledged, the storage server has %d\n", c.claim, c.acknowledged.Load(), last)
	return last, nil
}

// awaitClean waits until the storage server has every write of a volume that is attached
// nowhere.
func (v *vol) awaitClean(ctx context.Context) error {
	return v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		if cv.Status.Publication != v1alpha1.PublicationReleased || cv.Status.DirtyState != v1alpha1.DirtyStateClean {
			return "it is not released and clean"
		}
		return ""
	})
}

// awaitFenced waits until the attachment of the pod's volume is refused for node A, by its
// name or by that of its initiator, in an error that says so.
func (v *vol) awaitFenced(ctx context.Context, says string) error {
	_, err := k.AwaitEvent(ctx, v.pod, late, func(e cluster.Event) bool {
		return e.Reason == "FailedAttachVolume" && strings.Contains(e.Message, nodeA) && strings.Contains(e.Message, says)
	})
	return err
}

// restoreRecord has a record vanish, as it does with an API server, and makes it anew,
// without its status if that has no owner.
func restoreRecord(ctx context.Context, record *v1alpha1.CachedVolume) error {
	if err := loseRecord(ctx, record.Name); err != nil {
		return err
	}
	before, status := record.UID, record.Status
	if err := restore(ctx, record); err != nil {
		return err
	}
	if record.UID == before {
		return fmt.Errorf("CachedVolume %s, made anew, has the UID of before", record.Name)
	}
	if status.OwnerNode == "" {
		return nil
	}
	// The controller writes the status of a new record too: the name of its PersistentVolume.
	return records.UpdateStatus(ctx, k.API, volume.ID(record.Name), func(now *v1alpha1.CachedVolume) error {
		now.Status = status
		return nil
	})
}

// forgetLost has the nodes drop the clean caches of records that are lost when the spec
// ends. By themselves they keep them for days: a record of another UID proves nothing.
func forgetLost(lost ...*v1alpha1.CachedVolume) {
	var words []v1alpha1.DeletedVolume
	for _, record := range lost {
		words = append(words, v1alpha1.DeletedVolume{VolumeName: record.Name, VolumeUID: string(record.UID), Generation: new(int64(1000))})
	}
	DeferCleanup(func(ctx SpecContext) {
		for _, node := range []string{nodeA, nodeB} {
			Expect(cluster.Await(ctx, soon, func(ctx context.Context) (string, error) {
				var pool v1alpha1.CachePool
				if err := k.API.Get(ctx, client.ObjectKey{Name: node}, &pool); err != nil {
					return "", err
				}
				pool.Status.Deleted = append(pool.Status.Deleted, words...)
				return "", k.API.Status().Update(ctx, &pool)
			})).To(Succeed())
		}
	}, NodeTimeout(late))
}

// save reads the objects of a volume, as a tool for backups would.
func save(ctx context.Context, v *vol) []client.Object {
	GinkgoHelper()
	record, err := k.CachedVolume(ctx, v.Volume)
	Expect(err).NotTo(HaveOccurred())
	pv, claim := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
	Expect(k.API.Get(ctx, client.ObjectKey{Name: v.PV}, pv)).To(Succeed())
	Expect(k.API.Get(ctx, client.ObjectKey{Namespace: v.space.name, Name: v.claim}, claim)).To(Succeed())
	// They are of a claim, and of a binding, that there will not be.
	pv.Spec.ClaimRef.UID, pv.Spec.ClaimRef.ResourceVersion = "", ""
	delete(claim.Annotations, "pv.kubernetes.io/bind-completed")
	return []client.Object{record, pv, claim}
}

// restore makes an object again that was saved.
func restore(ctx context.Context, o client.Object) error {
	o.SetUID("")
	o.SetResourceVersion("")
	return k.API.Create(ctx, o)
}

// remake makes the PersistentVolume of the how-to for a volume, and its claim. It is
// deleted with its claim, as the volume was.
func (v *vol) remake(ctx context.Context) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(checkout(), recoverPath))
	Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	Expect(found).NotTo(BeNil(), "%s has no PersistentVolume", recoverPath)
	w := &walk{path: recoverPath, s: v.space, words: append(v.words(),
		word{`\bpvc-[0-9a-f-]{36}`, v.Handle}, word{`\bname: data\b`, "name: " + v.claim}, word{`\b20Gi\b`, "128Mi"}, word{`\b10%`, "64Mi"},
		word{`\bRetain\b`, "Delete"}, word{`\bnamespace: nearflash\b`, "namespace: " + k.Namespace})}
	w.prepare(ctx)
	w.mustType(ctx, "kubectl apply -f - <<'END'\n"+string(found[1])+"END")
	class := regexp.MustCompile(`storageClassName: (\S+)`).FindSubmatch(found[1])
	claim := cluster.Claim(cluster.ClaimSpec{Namespace: v.space.name, Name: v.claim, Class: string(class[1]), Size: "128Mi"})
	Expect(k.API.Create(ctx, claim)).To(Succeed())
	again, err := k.AwaitBound(ctx, v.space.name, v.claim, soon)
	Expect(err).NotTo(HaveOccurred())
	Expect(again).To(Equal(v.Volume))
}
