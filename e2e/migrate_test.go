//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ = DescribeTable("A cache that is copied before the pod moves", Label("warmmove", "migrate", "lab"),
	func(ctx SpecContext, mode v1alpha1.CacheMode) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{
			name: "prewarmed", mode: mode, kind: block, size: "128Mi", cacheSize: "100%",
			// So that some of the progress can be seen.
			parameters: map[string]string{"warmStart": "peer", "warmStartBandwidth": "2Mi"},
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		_, err = v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.warmUp(ctx)).To(Succeed())
		before, err := v.hitRate(ctx)
		Expect(err).NotTo(HaveOccurred())

		By("copying it below a pod that goes on writing")
		enough := v.beginWriter(ctx)
		out, err := shown(ctx, "migrate", "-n", s.name, v.claim, "--to", nodeB)
		writes, werr := enough(ctx)
		Expect(errors.Join(err, werr)).NotTo(HaveOccurred())
		Expect(writes).To(BeNumerically(">", 0), "writes during the copy")
		Expect(out).To(And(MatchRegexp(`(?m)^%s: \d+%% copied, \S+/\S+, \S+/s, `, v.claim), ContainSubstring("node %s has a copy of", nodeB),
			ContainSubstring("next: `kubectl cordon %s`", nodeA)))
		cm, err := v.prewarm(ctx, 1)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Spec.Purpose).To(Equal(v1alpha1.MigrationPrewarm))
		Expect(cm.Spec.SourceNode + " " + cm.Spec.DestinationNode).To(Equal(nodeA + " " + nodeB))
		Expect(cm.Status.Outcome).To(Equal(v1alpha1.MigrationCompleted), cm.Status.OutcomeMessage)
		Expect(shown(ctx, "migrations", "-n", s.name, v.claim)).To(MatchRegexp(`%s +%s +%s +Stream +completed`, v.claim, nodeA, nodeB))
		Expect(v.expectNoLease(ctx, nodeA)).To(Succeed())
		copied, err := v.ssdWritten(ctx, nodeB)
		Expect(err).NotTo(HaveOccurred())
		Expect(copied.bytes).To(BeNumerically(">=", workingSet<<20*9/10), "bytes that were prewarmed")

		By("writing some more, and moving it")
		_, err = v.write(ctx, 3, 1)
		Expect(err).NotTo(HaveOccurred())
		sum, err := v.checksum(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		first, err := v.hitRate(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(first).To(BeNumerically(">=", 0.95*before), "hit rate of the first %d reads; it was %.3f", firstReads, before)
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
		cm, err = v.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Spec.SourceNode).To(Equal(nodeA))
		Expect(v.expectWhole(ctx)).To(Succeed())
		all, err := v.ssdWritten(ctx, nodeB)
		Expect(err).NotTo(HaveOccurred())
		Expect(all.device).To(Equal(copied.device), "the copy must have become the cache")
		moved := all.bytes - copied.bytes
		GinkgoWriter.Printf("prewarmed: %d KiB, by the move: %d KiB\n", copied.bytes>>10, moved>>10)
		Expect(moved).To(And(BeNumerically(">=", 1<<20), BeNumerically("<=", workingSet<<20/2)), "bytes that the move copied, of which %d KiB were written since", 1<<10)
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
		Expect(v.expectLikeOrigin(ctx, nodeA, 0, sum)).To(Succeed())
	},
	Entry("writethrough", Label("slow"), v1alpha1.CacheModeWritethrough, NodeTimeout(specLimit)),
	Entry("writeback", Label("turn-1"), v1alpha1.CacheModeWriteback, NodeTimeout(specLimit)),
)

var _ = Describe("A copy of a cache that is not wanted", Label("warmmove", "migrate", "lab"), func() {
	It("leaves nothing on the node that it was for", Label("turn-2"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "unwanted", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "100%", parameters: slowly})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		v.set = 2 * largeSet
		sum, err := v.write(ctx, 0, v.set)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.warmUp(ctx)).To(Succeed())
		Expect(shown(ctx, "migrate", "-n", s.name, v.claim, "--to", nodeB, "--wait=false")).To(ContainSubstring("copy to node %s requested", nodeB))
		Expect(awaitShown(ctx, []string{v.claim, nodeA, nodeB, "running", "Peer"}, "migrations", "-n", s.name, v.claim)).To(Succeed())
		Expect(v.cacheUUID(ctx, nodeB)).NotTo(BeEmpty(), "the copy is under way")

		By("taking the request back")
		Expect(shown(ctx, "migrate", "-n", s.name, v.claim, "--cancel")).To(ContainSubstring("the copy to node %s is not asked for any more", nodeB))
		Expect(v.awaitNothingOn(ctx, nodeB)).To(Succeed())
		Expect(v.expectNoLease(ctx, nodeA)).To(Succeed())
		cm, err := v.prewarm(ctx, 1)
		Expect(client.IgnoreNotFound(err)).NotTo(HaveOccurred())
		if err == nil {
			Expect(cm.Status.Outcome).To(Equal(v1alpha1.MigrationEnded), cm.Status.OutcomeMessage)
		}
		Expect(shown(ctx, "migrate", "-n", s.name, v.claim, "--cancel")).To(ContainSubstring("no copy was asked for"))
		Expect(v.verify(ctx, 0, v.set, sum)).To(Succeed())
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWritethrough)).To(Succeed())
	}, NodeTimeout(specLimit))

	It("is refused where it makes no sense", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "refused", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "64Mi", cacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		n, err := s.volume(ctx, volumeSpec{name: "uncached", mode: v1alpha1.CacheModeNone, kind: block, size: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(n.start(ctx, nodeA)).To(Succeed())
		refused := func(claim, node, why string) {
			GinkgoHelper()
			out, errOut, status, err := plugin(ctx, "migrate", "-n", s.name, claim, "--to", node)
			Expect(err).NotTo(HaveOccurred())
			Expect(status).To(Equal(1), "%s to %s: %s%s", claim, node, out, errOut)
			Expect(errOut).To(And(HavePrefix("error: "), ContainSubstring(why), HaveSuffix("\n")))
			Expect(strings.Count(errOut, "\n")).To(Equal(1), errOut)
		}
		refused(v.claim, nodeB, "it is attached nowhere")
		Expect(v.start(ctx, nodeA)).To(Succeed())
		refused(v.claim, "nowhere", "node nowhere has no pool of SSDs")
		refused(v.claim, nodeA, "it is on node "+nodeA+" already")
		refused(n.claim, nodeB, "it has no cache that could be copied")
		for _, v := range []*vol{v, n} {
			Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
				if cv.Spec.PrewarmNode+cv.Spec.PrewarmRequest != "" {
					return "a refused command must ask for nothing"
				}
				return ""
			})).To(Succeed())
		}
		By("completing its words")
		Expect(shown(ctx, "__complete", "migrate", "-n", s.name, "ref")).To(HavePrefix(v.claim + "\n"))
		Expect(shown(ctx, "__complete", "migrate", "-n", s.name, v.claim, "--to", nodeB)).To(HavePrefix(nodeB + "\n"))
	}, NodeTimeout(specLimit))
})

// beginWriter writes small blocks in the first MiB of the pod's device, one after the
// other and each synced, until the returned function is called, which returns how many
// there were.
func (v *vol) beginWriter(ctx context.Context) func(context.Context) (int, error) {
	type result struct {
		out string
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := v.run(ctx, fmt.Sprintf(`
rm -f /tmp/enough
for ((i = 0; ; i++)); do
  [[ ! -e /tmp/enough ]] || break
  dd if=/dev/urandom of=%s bs=4k count=1 seek=$((i * 16 %% 256)) oflag=direct conv=notrunc,fsync status=none
  sleep 0.3
done
echo $i`, v.path()))
		done <- result{out, err}
	}()
	return func(ctx context.Context) (int, error) {
		if _, err := v.run(ctx, "touch /tmp/enough"); err != nil {
			return 0, err
		}
		r := <-done
		if r.err != nil {
			return 0, fmt.Errorf("writes during the copy: %w: %s", r.err, r.out)
		}
		return strconv.Atoi(r.out)
	}
}

// checksum reads past the page cache.
func (v *vol) checksum(ctx context.Context, offset, mib int) (string, error) {
	return v.run(ctx, fmt.Sprintf("dd if=%s bs=1M skip=%d count=%d iflag=direct status=none | sha256sum", v.path(), offset, mib))
}

// prewarm returns the CacheMigration of a prewarm.
func (v *vol) prewarm(ctx context.Context, generation int64) (*v1alpha1.CacheMigration, error) {
	cm := &v1alpha1.CacheMigration{}
	return cm, k.API.Get(ctx, client.ObjectKey{Name: moves.PrewarmName(volume.ID(v.Handle), generation)}, cm)
}

// written is what a device has been given to write since it was made.
type written struct {
	device string
	bytes  int64
}

// ssdWritten reads what was written to the logical volume with the volume's cached
// data (Documentation/block/stat.rst: the seventh field, in sectors).
func (v *vol) ssdWritten(ctx context.Context, node string) (written, error) {
	out, err := k.Host.Run(ctx, node, fmt.Sprintf(`
lvs --noheadings -o lv_uuid,lv_kernel_major,lv_kernel_minor -S lv_name=%s.data | {
  read -r uuid major minor
  echo "$uuid" "$(awk '{print $7}' /sys/dev/block/$major:$minor/stat)"
}`, v.Handle))
	if err != nil {
		return written{}, err
	}
	var w written
	if _, err := fmt.Sscan(out, &w.device, &w.bytes); err != nil {
		return written{}, fmt.Errorf("writes to the cache of volume %s on %s: %q: %w", v.claim, node, out, err)
	}
	w.bytes *= 512
	return w, nil
}

// awaitNothingOn waits until a node has nothing of the volume: no device, no logical
// volume, no session, no file.
func (v *vol) awaitNothingOn(ctx context.Context, node string) error {
	return cluster.AwaitEvery(ctx, cluster.Poll, soon, func(ctx context.Context) (string, error) {
		out, err := k.Host.Run(ctx, node, fmt.Sprintf(
			"lvs --noheadings -o lv_name -S 'lv_name=~^%[1]s[.]'; dmsetup ls | grep -F '%[2]s' || true; "+
				"cat /sys/class/iscsi_session/session*/targetname 2>/dev/null | grep -F lend || true; ls -d /var/lib/nearflash/*/%[1]s* 2>/dev/null || true",
			v.Handle, strings.ReplaceAll(v.Handle, "-", "--")))
		if err == nil && strings.TrimSpace(out) != "" {
			return "still there: " + out, nil
		}
		return "", err
	})
}
