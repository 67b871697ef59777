//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// folderMiB is how much is in each folder, in files of 4 MiB.
const folderMiB = 24

// folder writes files below a folder of the volume's filesystem.
func (v *vol) folder(ctx context.Context, name string) error {
	_, err := v.run(ctx, fmt.Sprintf(`
mkdir -p %[1]s/%[2]s
for i in $(seq %[3]d); do
  dd if=/dev/urandom of=%[1]s/%[2]s/$i bs=1M count=4 oflag=direct conv=fsync status=none
done
sync -f %[1]s`, cluster.MountPath, name, folderMiB/4))
	return err
}

// folderHits reads the files of a folder once, past the page cache, and returns the hit rate of that.
func (v *vol) folderHits(ctx context.Context, name string) (float64, error) {
	before, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	if _, err := v.run(ctx, fmt.Sprintf(`for f in %s/%s/*; do dd if="$f" of=/dev/null bs=64k iflag=direct status=none; done`, cluster.MountPath, name)); err != nil {
		return 0, err
	}
	after, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	delta := after.Sub(before)
	if delta.ReadHits+delta.ReadMisses < folderMiB*16 {
		return 0, fmt.Errorf("%d reads were counted of %d MiB", delta.ReadHits+delta.ReadMisses, folderMiB)
	}
	return delta.ReadHitRate(), nil
}

var _ = Describe("A cache that is filled on demand", Label("preload", "kubectl"), func() {
	const none, wt = v1alpha1.CacheModeNone, v1alpha1.CacheModeWritethrough

	It("has what was asked for before anything is read, and no more", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "preloaded", mode: none, kind: ext4})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.folder(ctx, "models")).To(Succeed())
		Expect(v.folder(ctx, "beside")).To(Succeed())
		// What nobody reads is left for requests that are to be seen under way.
		for _, rest := range []string{"rest", "more"} {
			Expect(v.folder(ctx, rest)).To(Succeed())
		}
		Expect(v.change(ctx, func(spec *v1alpha1.CachedVolumeSpec) { spec.CacheMode, spec.CacheSize = wt, "128Mi" })).To(Succeed())

		By("asking for what is not there")
		_, errOut, status, err := plugin(ctx, "preload", "-n", s.name, v.claim, "--path", "none")
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(1))
		Expect(errOut).To(ContainSubstring("path none: there is no such directory or file in the volume"))

		By("asking for a folder")
		out, err := shown(ctx, "preload", "-n", s.name, v.claim, "--path", "models")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("cached: everything is cached"))
		models, err := v.folderHits(ctx, "models")
		Expect(err).NotTo(HaveOccurred())
		beside, err := v.folderHits(ctx, "beside")
		Expect(err).NotTo(HaveOccurred())
		say("hit rate of first reads after preload --path models: %.3f there, %.3f beside it", models, beside)
		Expect(models).To(BeNumerically(">=", 0.95))
		Expect(beside).To(BeNumerically("<=", models-0.4))
		Expect(shown(ctx, "describe", "-n", s.name, v.claim)).To(ContainSubstring("models: Completed"))

		By("taking another one back")
		_, err = shown(ctx, "preload", "-n", s.name, v.claim, "--bandwidth", "1Mi", "--wait=false")
		Expect(err).NotTo(HaveOccurred())
		Expect(awaitShown(ctx, []string{"everything: Running", "cached"}, "describe", "-n", s.name, v.claim)).To(Succeed())
		Expect(shown(ctx, "preload", "-n", s.name, v.claim, "--cancel")).To(ContainSubstring("not asked for any more"))
		Expect(awaitShown(ctx, []string{"not asked for any more: Cancelled"}, "describe", "-n", s.name, v.claim)).To(Succeed())

		By("advising what is known after so much I/O")
		Expect(awaitShown(ctx, []string{"Volume:", v.claim, "on node " + nodeA, "Now:", "writethrough, 128Mi; of the reads hit", "not known yet: the node has looked for"},
			"advise", "-n", s.name, v.claim)).To(Succeed())
		Expect(shown(ctx, "advise", "-n", s.name)).To(And(ContainSubstring("PREDICTED-HIT%"), ContainSubstring(v.claim), ContainSubstring("POOL"), ContainSubstring(nodeA)))
		text, err := shown(ctx, "advise", "-n", s.name, v.claim, "-o", "json")
		Expect(err).NotTo(HaveOccurred())
		var advised struct {
			Volumes []struct {
				Claim, Node, Verdict string
				Commands             []string
			} `json:"volumes"`
		}
		Expect(json.Unmarshal([]byte(text), &advised)).To(Succeed())
		Expect(advised.Volumes).To(HaveLen(1))
		Expect(advised.Volumes[0].Claim).To(Equal(v.claim))
		Expect(advised.Volumes[0].Verdict).To(Equal("Unknown"))
		Expect(advised.Volumes[0].Commands).To(BeEmpty())

		By("ending the pod in the middle of a preload")
		_, err = shown(ctx, "preload", "-n", s.name, v.claim, "--bandwidth", "1Mi", "--wait=false")
		Expect(err).NotTo(HaveOccurred())
		Expect(awaitShown(ctx, []string{"everything: Running"}, "describe", "-n", s.name, v.claim)).To(Succeed())
		Expect(v.stop(ctx)).To(Succeed())
	}, NodeTimeout(2*specLimit))
})
