//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
	"github.com/nearflash/nearflash/pkg/moves"
)

var _ = DescribeTable("A pod that moves finds its cache warm", Label("warmmove"),
	func(ctx SpecContext, mode v1alpha1.CacheMode) {
		v, sum, before, old := startWarm(ctx, volumeSpec{name: "follow", mode: mode, kind: block, size: "128Mi", cacheSize: "100%"})

		By("moving it away")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		first, err := v.hitRate(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(first).To(BeNumerically(">=", 0.95*before), "hit rate of the first %d reads; it was %.3f", firstReads, before)
		cm, err := v.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Spec.SourceNode).To(Equal(nodeA))
		Expect(cm.Status.Progress.ServedFrom).To(BeElementOf(v1alpha1.ServedFromPeer, v1alpha1.ServedFrom("")))
		Expect(v.expectWhole(ctx)).To(Succeed())
		_, err = k.AwaitEvent(ctx, v.claim, soon, func(e cluster.Event) bool {
			return e.Reason == moves.EventCompleted && e.Type == corev1.EventTypeNormal
		})
		Expect(err).NotTo(HaveOccurred())

		By("looking at what the old node has kept")
		Expect(v.awaitCacheGone(ctx, nodeA, old)).To(Succeed())
		Expect(v.expectNoLease(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())

		By("writing there, and moving it back")
		sum, err = v.write(ctx, 4, workingSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		back, err := v.hitRate(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(back).To(BeNumerically(">=", 0.9))
		Expect(v.verify(ctx, 4, workingSet, sum)).To(Succeed())
		_, err = v.awaitMoved(ctx, 3)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.expectLikeOrigin(ctx, nodeB, 4, sum)).To(Succeed())
	},
	Entry("writethrough", Label("turn-2"), v1alpha1.CacheModeWritethrough, NodeTimeout(specLimit)),
	Entry("writeback", Label("slow"), v1alpha1.CacheModeWriteback, NodeTimeout(specLimit)),
)

// largeSet in MiB is what a slow hydration copies in about half a minute.
const largeSet = 32

// slowly makes a hydration last long enough to be disturbed.
var slowly = map[string]string{"warmStart": "peer", "warmStartBandwidth": "1Mi"}

var _ = DescribeTable("A warm move whose source is lost in the middle", Label("warmmove", "lost", "lab"),
	func(ctx SpecContext, lose func(context.Context) error, restore func(context.Context) error) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "lost", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "100%", parameters: slowly})
		Expect(err).NotTo(HaveOccurred())
		v.set = largeSet
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, largeSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.warmUp(ctx)).To(Succeed())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.awaitHydrating(ctx, 2)).To(Succeed())

		By("losing it under a verified load")
		DeferCleanup(func(ctx SpecContext) { Expect(restore(ctx)).To(Succeed()) }, NodeTimeout(2*late))
		load := v.beginLoad(ctx)
		Expect(lose(ctx)).To(Succeed())
		Expect(v.awaitRemapped(ctx)).To(Succeed())
		pause, err := load()
		Expect(err).NotTo(HaveOccurred(), "no I/O may fail, no byte may be wrong")
		GinkgoWriter.Printf("longest I/O while the source was lost: %s\n", pause)
		Expect(v.verify(ctx, 0, largeSet, sum)).To(Succeed())
		cm, err := v.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Status.Progress.ServedFrom).To(Equal(v1alpha1.ServedFromOrigin))
		Expect(v.expectWhole(ctx)).To(Succeed())
		Expect(v.verify(ctx, 0, largeSet, sum)).To(Succeed())
	},
	Entry("its node dies", Label("slow"), func(ctx context.Context) error { return powerOff(ctx, nodeA) }, func(ctx context.Context) error {
		if err := k.Lab.Start(ctx, nodeA); err != nil {
			return err
		}
		return k.AwaitDriver(ctx, late)
	}, NodeTimeout(specLimit)),
	Entry("the network between the nodes is cut", Label("slow"), func(ctx context.Context) error { return k.Lab.Cut(ctx, nodeA, nodeB) },
		func(ctx context.Context) error { return k.Lab.Heal(ctx) }, NodeTimeout(specLimit)),
	Entry("its SSD fails", Label("slow"), func(ctx context.Context) error { return failExported(ctx, nodeA) }, func(context.Context) error { return nil }, NodeTimeout(specLimit)),
)

var _ = Describe("A volume whose old node cannot export", Label("warmmove", "lost", "lab"), func() {
	It("starts from its hot set", Label("slow"), func(ctx SpecContext) {
		v, sum := newSpace(ctx).hot(ctx)
		Expect(v.stop(ctx)).To(Succeed())
		Expect(v.awaitHotSet(ctx)).To(Succeed())

		By("losing the node that has the retained cache")
		loseNode(ctx)
		Expect(v.start(ctx, nodeB)).To(Succeed())
		v.expectFromHotSet(ctx, 2, sum)
	}, NodeTimeout(specLimit))
})

var _ = Describe("A volume that moves again before its cache is whole", Label("warmmove", "slow"), func() {
	It("goes on where it was, and is right everywhere", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "restless", mode: v1alpha1.CacheModeWriteback, kind: block, size: "128Mi", cacheSize: "100%", parameters: slowly})
		Expect(err).NotTo(HaveOccurred())
		v.set = largeSet
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, largeSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.warmUp(ctx)).To(Succeed())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.awaitHydrating(ctx, 2)).To(Succeed())
		late, err := v.write(ctx, 64, 4)
		Expect(err).NotTo(HaveOccurred())

		By("returning to the same node")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.awaitHydrating(ctx, 2)).To(Succeed())
		Expect(v.verify(ctx, 0, largeSet, sum)).To(Succeed())
		Expect(v.verify(ctx, 64, 4, late)).To(Succeed())

		By("moving back to the first one, whose retained cache is stale")
		sum, err = v.write(ctx, 0, largeSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, largeSet, sum)).To(Succeed())
		Expect(v.verify(ctx, 64, 4, late)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// hot starts a volume on node A with a working set that its cache has, of which it returns the
// checksum.
func (s *space) hot(ctx context.Context) (v *vol, sum string) {
	GinkgoHelper()
	v, err := s.volume(ctx, volumeSpec{name: "hot", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "100%"})
	Expect(err).NotTo(HaveOccurred())
	Expect(v.start(ctx, nodeA)).To(Succeed())
	sum, err = v.write(ctx, 0, workingSet)
	Expect(err).NotTo(HaveOccurred())
	Expect(v.warmUp(ctx)).To(Succeed())
	return v, sum
}

// expectFromHotSet: an ownership has begun with its cache filled from the origin with the hot set,
// and reads it there.
func (v *vol) expectFromHotSet(ctx context.Context, generation int64, sum string) {
	GinkgoHelper()
	cm, err := v.awaitMoved(ctx, generation)
	Expect(err).NotTo(HaveOccurred())
	Expect(cm.Spec.SourceNode).To(BeEmpty(), "it is a hydration from the origin: the second try, where a node was lost")
	Expect(v.expectWhole(ctx)).To(Succeed())
	rate, err := v.hitRate(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(rate).To(BeNumerically(">=", 0.95))
	Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
}

// migration returns the CacheMigration of an ownership.
func (v *vol) migration(ctx context.Context, generation int64) (*v1alpha1.CacheMigration, error) {
	cm := &v1alpha1.CacheMigration{}
	return cm, k.API.Get(ctx, client.ObjectKey{Name: v.Handle + "-" + strconv.FormatInt(generation, 10)}, cm)
}

// awaitMoved waits until a move is complete.
func (v *vol) awaitMoved(ctx context.Context, generation int64) (*v1alpha1.CacheMigration, error) {
	cm, err := v.awaitMoveEnded(ctx, generation)
	if err == nil && cm.Status.Outcome != v1alpha1.MigrationCompleted {
		err = fmt.Errorf("CacheMigration %s: outcome %q, %s", cm.Name, cm.Status.Outcome, cm.Status.OutcomeMessage)
	}
	return cm, err
}

// awaitMoveEnded waits until a move has ended, as it may.
func (v *vol) awaitMoveEnded(ctx context.Context, generation int64) (cm *v1alpha1.CacheMigration, err error) {
	err = cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		if cm, err = v.migration(ctx, generation); err != nil {
			return "", err
		}
		if cm.Status.Outcome == "" {
			return fmt.Sprintf("CacheMigration %s: no outcome; source %+v, progress %+v", cm.Name, cm.Status.Source, cm.Status.Progress), nil
		}
		return "", nil
	})
	return cm, err
}

// awaitHydrating waits until a hydration is under way and shown.
func (v *vol) awaitHydrating(ctx context.Context, generation int64) error {
	return cluster.Await(ctx, soon, func(ctx context.Context) (string, error) {
		cm, err := v.migration(ctx, generation)
		if err != nil {
			return "", err
		}
		switch total := ptr.Deref(cm.Status.Progress.TotalBytes, 0); {
		case cm.Status.Outcome != "":
			return "", fmt.Errorf("the move has ended already: %s, %s", cm.Status.Outcome, cm.Status.OutcomeMessage)
		case total == 0:
			return "no progress is shown", nil
		}
		return "", nil
	})
}

// dataTable is the table of the device below the cache.
func (v *vol) dataTable(ctx context.Context) (string, error) {
	return k.Host.Run(ctx, v.node, "dmsetup table nf-"+v.Handle+".data")
}

// expectWhole fails unless the cache lies on the SSD alone and nothing of a hydration is
// left.
func (v *vol) expectWhole(ctx context.Context) error {
	return cluster.Await(ctx, soon, func(ctx context.Context) (string, error) {
		table, err := v.dataTable(ctx)
		if err != nil {
			return "", err
		}
		if f := strings.Fields(table); len(f) < 3 || f[2] != "linear" {
			return "the data device has the table " + table, nil
		}
		left, err := k.Host.Run(ctx, v.node, fmt.Sprintf(
			"dmsetup ls | grep -E 'nf-%[1]s.(path|source)|%[2]s.fill' || true; ls /var/lib/nearflash/fills | grep -vE '[.](stay|heat)$' || true; cat /sys/class/iscsi_session/session*/targetname | grep lend || true",
			v.Handle, strings.ReplaceAll(v.Handle, "-", "--")))
		if err == nil && strings.TrimSpace(left) != "" {
			return "still there: " + left, nil
		}
		return "", err
	})
}

// expectNoLease fails while a node exports the volume's cache.
func (v *vol) expectNoLease(ctx context.Context, node string) error {
	return awaitNone(ctx, soon, func(items []hoststate.Item) []hoststate.Item {
		var out []hoststate.Item
		for _, i := range hoststate.Mentioning(items, v.Handle) {
			if i.Machine == node && (i.Kind == "target" || i.Kind == "backstore" || i.Kind == "dm" && strings.HasSuffix(i.Name, ".exported")) {
				out = append(out, i)
			}
		}
		return out
	})
}

// awaitRemapped waits until the hydration's path leads to the origin.
func (v *vol) awaitRemapped(ctx context.Context) error {
	remapped, err := v.awaitRemappedOrWhole(ctx)
	if err == nil && !remapped {
		err = fmt.Errorf("the hydration of volume %s ended before its path led to the origin", v.Handle)
	}
	return err
}

// awaitRemappedOrWhole waits until a hydration goes on from the origin, or has ended before it
// had to, and tells which.
func (v *vol) awaitRemappedOrWhole(ctx context.Context) (remapped bool, err error) {
	err = cluster.AwaitEvery(ctx, cluster.Poll, soon, func(ctx context.Context) (string, error) {
		out, err := k.Host.Run(ctx, v.node, "dmsetup table nf-"+v.Handle+".data; { dmsetup table nf-"+v.Handle+".source > /dev/null && dmsetup table nf-"+v.Handle+".path || true; } 2>/dev/null | wc -l")
		f := strings.Fields(out)
		if err != nil || len(f) < 3 {
			return out, err
		}
		lines, err := strconv.Atoi(f[len(f)-1])
		// Without a source, no peer was copied from.
		if remapped = lines > 2; remapped || f[2] == "linear" {
			return "", err
		}
		return "the path is still the peer's: " + out, err
	})
	return remapped, err
}

// awaitWhole waits until nothing is being copied into the volume's cache.
func (v *vol) awaitWhole(ctx context.Context) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		table, err := v.dataTable(ctx)
		if f := strings.Fields(table); err == nil && (len(f) < 3 || f[2] != "linear") {
			return "the data device has the table " + table, nil
		}
		return "", err
	})
}

// loadTime is how long a load runs, in seconds.
const loadTime = 25

// beginLoad reads and writes at random behind the working set, from 64 MiB to 96,
// verifying every block, and reads the working set itself, for a while. The returned
// function waits for the end and returns the longest I/O, and any error.
func (v *vol) beginLoad(ctx context.Context) func() (time.Duration, error) {
	const common = " --filename=" + cluster.DevicePath + " --bs=4k --direct=1 --ioengine=libaio --time_based --output-format=terse --terse-version=3"
	script := fmt.Sprintf("fio --name=load --offset=64m --size=32m --rw=randrw --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_backlog=64 --runtime=%[2]d%[1]s & a=$!; "+
		"fio --name=look --size=%[3]dm --rw=randread --norandommap --iodepth=2 --rate_iops=200 --runtime=%[2]d%[1]s & b=$!; wait $a; wait $b", common, loadTime, max(v.set, workingSet))
	type result struct {
		out string
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := v.run(ctx, script)
		done <- result{out, err}
	}()
	return func() (time.Duration, error) {
		r := <-done
		if r.err != nil {
			return 0, fmt.Errorf("load: %w: %s", r.err, r.out)
		}
		return longestIO(r.out)
	}
}

// longestIO is the maximum of the total latencies that fio prints (fio(1), "Terse
// output", version 3, microseconds): the reads' and the writes' of every job. A job that
// did nothing, as one does whose place is behind the end of the device, is an error.
func longestIO(terse string) (time.Duration, error) {
	longest, jobs := 0.0, 0
	for line := range strings.Lines(terse) {
		f := strings.Split(line, ";")
		if len(f) < 80 {
			continue
		}
		jobs++
		if f[5] == "0" && f[46] == "0" {
			return 0, fmt.Errorf("load: job %s read and wrote nothing", f[2])
		}
		for _, i := range []int{38, 79} {
			us, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return 0, fmt.Errorf("load: fio printed %q as a latency", f[i])
			}
			longest = max(longest, us)
		}
	}
	if jobs != 2 {
		return 0, fmt.Errorf("load: fio printed the results of %d jobs: %.300s", jobs, terse)
	}
	return time.Duration(longest) * time.Microsecond, nil
}

// failExported makes the SSD below an exported cache fail.
func failExported(ctx context.Context, node string) error {
	_, err := k.Host.Run(ctx, node, `
d=$(dmsetup ls | awk '/[.]exported/ {print $1; exit}')
n=$(dmsetup table "$d" | awk '{s+=$2} END {print s}')
echo "0 $n error" | dmsetup load "$d"
dmsetup resume "$d"`)
	return err
}

// awaitHotSet waits until the volume's hot set is stored.
func (v *vol) awaitHotSet(ctx context.Context) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var h v1alpha1.CacheHotSet
		if err := k.API.Get(ctx, client.ObjectKey{Name: v.Handle}, &h); err != nil {
			return "no hot set: " + err.Error(), client.IgnoreNotFound(err)
		}
		return "", nil
	})
}

// expectLikeOrigin reads what was written without the cache: after a stop, on a node
// that has none.
func (v *vol) expectLikeOrigin(ctx context.Context, node string, offset int, sum string) error {
	if err := v.stop(ctx); err != nil {
		return err
	}
	if err := v.start(ctx, node); err != nil {
		return err
	}
	out, err := k.Host.Run(ctx, node, fmt.Sprintf(
		"dd if=/dev/mapper/nf-%s.origin bs=1M skip=%d count=%d iflag=direct status=none | sha256sum", v.Handle, offset, workingSet))
	if err != nil {
		return err
	}
	if !strings.HasPrefix(strings.TrimSpace(out), strings.TrimSpace(sum[:64])) {
		return fmt.Errorf("the origin of volume %s differs from what was written: %s, wrote %s", v.Handle, out, sum)
	}
	return nil
}

var _ = Describe("The plugins of both nodes", Label("warmmove", "lost", "lab"), func() {
	It("may be replaced during a move", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "upgrade", mode: v1alpha1.CacheModeWriteback, kind: block, size: "128Mi", cacheSize: "100%", parameters: slowly})
		Expect(err).NotTo(HaveOccurred())
		v.set = largeSet
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, largeSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.warmUp(ctx)).To(Succeed())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.awaitHydrating(ctx, 2)).To(Succeed())

		By("replacing both under a verified load")
		load := v.beginLoad(ctx)
		for _, node := range []string{nodeA, nodeB} {
			plugin, err := k.NodePlugin(ctx, node)
			Expect(err).NotTo(HaveOccurred())
			Expect(replacePlugin(ctx, plugin)).To(Succeed())
		}
		_, err = load()
		Expect(err).NotTo(HaveOccurred())
		cm, err := v.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Status.Progress.ServedFrom).To(Equal(v1alpha1.ServedFromPeer), "the lease must outlive both processes")
		Expect(v.expectWhole(ctx)).To(Succeed())
		Expect(v.expectNoLease(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, largeSet, sum)).To(Succeed())
	}, NodeTimeout(specLimit))
})

var _ = Describe("Many volumes that leave a node at once", Label("warmmove", "slow"), func() {
	It("all find their caches warm", func(ctx SpecContext) {
		s := newSpace(ctx)
		const n = 3
		vols, sums := make([]*vol, n), make([]string, n)
		each := func(do func(i int) error) error {
			g := errgroup.Group{}
			for i := range n {
				g.Go(func() error { return do(i) })
			}
			return g.Wait()
		}
		Expect(each(func(i int) (err error) {
			vols[i], err = s.volume(ctx, volumeSpec{name: fmt.Sprintf("drained%d", i), mode: v1alpha1.CacheModeWritethrough, kind: ext4, size: "64Mi", cacheSize: "100%"})
			if err != nil {
				return err
			}
			if err := vols[i].start(ctx, nodeA); err != nil {
				return err
			}
			sums[i], err = vols[i].write(ctx, 0, 8)
			return err
		})).To(Succeed())
		Expect(each(func(i int) error { return vols[i].restart(ctx, nodeB) })).To(Succeed())
		Expect(each(func(i int) error {
			if err := vols[i].verify(ctx, 0, 8, sums[i]); err != nil {
				return err
			}
			cm, err := vols[i].awaitMoved(ctx, 2)
			if err == nil && cm.Spec.SourceNode != nodeA {
				err = fmt.Errorf("volume %s did not begin from its old node: %+v", vols[i].claim, cm.Status)
			}
			return err
		})).To(Succeed())
		Expect(each(func(i int) error {
			if err := vols[i].expectNoLease(ctx, nodeA); err != nil {
				return err
			}
			return vols[i].verify(ctx, 0, 8, sums[i])
		})).To(Succeed())
	}, NodeTimeout(specLimit))
})

var _ = Describe("A pod that may run anywhere", Label("warmmove"), func() {
	It("prefers the node that has its cache", Label("turn-3"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "anywhere", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "100%", parameters: slowly})
		Expect(err).NotTo(HaveOccurred())
		v.set = 2 * largeSet
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, v.set)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.warmUp(ctx)).To(Succeed())
		for _, node := range []string{nodeA, nodeB} {
			if node == nodeB {
				By("leaving a node before the cache is whole there")
				Expect(v.start(ctx, nodeB)).To(Succeed())
				Expect(v.awaitHydrating(ctx, 2)).To(Succeed())
			}
			Expect(v.stop(ctx)).To(Succeed())
			Expect(v.awaitRecord(ctx, retainedOn(node))).To(Succeed())
			cv, err := k.CachedVolume(ctx, v.Volume)
			Expect(err).NotTo(HaveOccurred())
			for _, r := range cv.Status.RetainedCaches {
				Expect(r.Content == v1alpha1.RetainedCachePartial).To(Equal(r.NodeName == nodeB), "%+v", r)
			}
			Expect(v.start(ctx, "")).To(Succeed())
			pod := &corev1.Pod{}
			Expect(k.API.Get(ctx, client.ObjectKey{Namespace: s.name, Name: v.pod}, pod)).To(Succeed())
			Expect(pod.Spec.NodeName).To(Equal(node))
			Expect(fmt.Sprint(pod.Spec.Affinity)).To(ContainSubstring(node), "the preference must be written on the pod")
			v.node = node
			Expect(v.verify(ctx, 0, v.set, sum)).To(Succeed())
			Expect(v.stop(ctx)).To(Succeed())
		}
	}, NodeTimeout(specLimit))
})
