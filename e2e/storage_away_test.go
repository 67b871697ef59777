//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// What becomes of pods when no server is there for longer than nodes hold I/O back. What this
// prints is in docs/how-to/storage-server-pair.md.
var _ = Describe("A storage server that is away for longer than I/O is held back", Label("storage", "lab", "slow"), Serial, func() {
	It("fails I/O, and loses nothing that was flushed", func(ctx SpecContext) {
		s := newSpace(ctx)
		var vols []*vol
		for _, mode := range []v1alpha1.CacheMode{v1alpha1.CacheModeNone, v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWriteback} {
			for _, kind := range []kind{block, ext4, xfs} {
				if kind == xfs && mode != v1alpha1.CacheModeWritethrough {
					continue
				}
				spec := volumeSpec{name: string(mode) + "-" + string(kind), mode: mode, kind: kind}
				if mode != v1alpha1.CacheModeNone {
					spec.cacheSize = "64Mi"
				}
				v, err := s.volume(ctx, spec)
				Expect(err).NotTo(HaveOccurred())
				vols = append(vols, v)
			}
		}
		sums := make([]string, len(vols))
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(3)
		for i, v := range vols {
			g.Go(func() (err error) {
				if err = v.start(gctx, nodeA); err == nil {
					sums[i], err = v.write(gctx, 0, 8)
				}
				return err
			})
		}
		Expect(g.Wait()).To(Succeed())

		By("killing the server below running writers, and waiting for their first errors")
		DeferCleanup(func(ctx SpecContext) { serveAgain(ctx) }, NodeTimeout(late))
		Expect(k.Lab.Kill(ctx, cluster.StorageMachine)).To(Succeed())
		down := time.Now()
		firsts := make([]string, len(vols))
		g, gctx = errgroup.WithContext(ctx)
		for i, v := range vols {
			g.Go(func() (err error) { firsts[i], err = v.firstError(gctx, down); return err })
		}
		Expect(g.Wait()).To(Succeed())
		time.Sleep(20 * time.Second)

		By("booting it, and asking what works without a restart")
		serveAgain(ctx)
		Expect(recovered(ctx)).To(Succeed())
		time.Sleep(30 * time.Second) // sessions are back sooner; this is for what gives up later
		for i, v := range vols {
			again := "reads and writes again by itself"
			if out, err := v.run(ctx, fmt.Sprintf("dd if=/dev/zero of=%s bs=1M count=1 seek=32 oflag=direct conv=notrunc,fsync 2>&1 && dd if=%[1]s of=/dev/null bs=1M count=8 iflag=direct 2>&1", v.path())); err != nil {
				again = "does not work by itself: " + lastLine(out)
			}
			GinkgoWriter.Printf("%s: %s; then %s\n", v.claim, firsts[i], again)
		}

		By("restarting every pod, and reading what was flushed")
		var broken error
		for i, v := range vols {
			restarted := "its data are whole after a restart of its pod"
			err := v.restart(ctx, nodeA)
			if err == nil {
				err = v.verify(ctx, 0, 8, sums[i])
			}
			if err == nil {
				_, err = v.write(ctx, 16, 4)
			}
			if err != nil {
				restarted = "after a restart of its pod: " + err.Error()
			}
			GinkgoWriter.Printf("%s: %s\n", v.claim, restarted)
			broken = errors.Join(broken, err)
		}
		Expect(broken).NotTo(HaveOccurred())
	}, NodeTimeout(3*specLimit))
})

// firstError writes and flushes one MiB after the other until that fails, and says when and
// how. Each is longer in coming than the kernel's patience, or the spec fails.
func (v *vol) firstError(ctx context.Context, since time.Time) (string, error) {
	out, err := v.run(ctx, fmt.Sprintf(`n=0
while out=$(dd if=/dev/zero of=%s bs=1M count=1 seek=$((16 + n %% 8)) oflag=direct conv=notrunc,fsync 2>&1); do n=$((n + 1)); done
echo "$n writes were answered; then $(grep -v records <<<"$out" | head -n 1)"`, v.path()))
	took := time.Since(since)
	if err == nil && took < heldBack-10*time.Second {
		err = fmt.Errorf("volume %s: I/O failed %s after the loss of the server: %s", v.claim, took, out)
	}
	return fmt.Sprintf("error after %.0f s, %s", took.Seconds(), lastLine(out)), err
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
