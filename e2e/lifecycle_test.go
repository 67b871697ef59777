//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// Each mode is tried with all kinds at the same time: most of a volume's life is
// waiting for a sidecar or the kubelet.
var _ = DescribeTable("A volume's life", Label("lifecycle", "smoke"),
	func(ctx SpecContext, mode v1alpha1.CacheMode) {
		s := newSpace(ctx)
		g, gctx := errgroup.WithContext(ctx)
		for kind, node := range map[kind]string{ext4: nodeA, xfs: nodeB, block: nodeA} {
			g.Go(func() error {
				if err := live(gctx, s, mode, kind, node); err != nil {
					return fmt.Errorf("%s: %w", kind, err)
				}
				return nil
			})
		}
		Expect(g.Wait()).To(Succeed())
	},
	Entry("without a cache", Label("slow"), v1alpha1.CacheModeNone, NodeTimeout(specLimit)),
	Entry("writethrough", Label("slow"), v1alpha1.CacheModeWritethrough, NodeTimeout(specLimit)),
	Entry("writeback", v1alpha1.CacheModeWriteback, NodeTimeout(specLimit)),
)

// live provisions, uses, expands and restarts one volume; the space deletes it.
func live(ctx context.Context, s *space, mode v1alpha1.CacheMode, kind kind, node string) error {
	v, err := s.volume(ctx, volumeSpec{name: string(kind), mode: mode, kind: kind})
	if err != nil {
		return err
	}
	if err := v.start(ctx, node); err != nil {
		return err
	}
	if err := v.expectTable(ctx, mode); err != nil {
		return err
	}
	sum, err := v.write(ctx, 0, 16)
	if err != nil {
		return err
	}
	second, err := growInUse(ctx, v, sum)
	if err != nil {
		return err
	}
	before, err := v.cacheUUID(ctx, node)
	if err != nil {
		return err
	}
	if err := v.restart(ctx, node); err != nil {
		return fmt.Errorf("restart on the same node: %w", err)
	}
	after, err := v.cacheUUID(ctx, node)
	if err != nil {
		return err
	}
	if before != after || (after == "") != (mode == v1alpha1.CacheModeNone) {
		return fmt.Errorf("cache %q before the restart, %q after it: mode %s", before, after, mode)
	}
	if err := v.awaitOwner(ctx, node, 1); err != nil {
		return err
	}
	if err := v.verify(ctx, 0, 16, sum); err != nil {
		return err
	}
	return v.verify(ctx, offsetNew, 8, second)
}

// offsetNew in MiB lies beyond the first size of a volume, inside the second.
const offsetNew = 400

// growInUse expands a volume below a running pod, checks what it held, and
// returns the checksum of what it wrote to the new space.
func growInUse(ctx context.Context, v *vol, sum string) (string, error) {
	before, err := v.size(ctx)
	if err != nil {
		return "", err
	}
	if err := k.Expand(ctx, v.space.name, v.claim, v.pod, "480Mi", late); err != nil {
		return "", err
	}
	const grown = 140 << 20 // 160 MiB less what a filesystem keeps for itself
	err = cluster.Await(ctx, soon, func(ctx context.Context) (string, error) {
		after, err := v.size(ctx)
		if err == nil && after < before+grown {
			return fmt.Sprintf("the pod sees %d bytes, before the expansion %d", after, before), nil
		}
		return "", err
	})
	if err != nil {
		return "", fmt.Errorf("expansion: %w", err)
	}
	if err := v.verify(ctx, 0, 16, sum); err != nil {
		return "", fmt.Errorf("after the expansion: %w", err)
	}
	return v.write(ctx, offsetNew, 8)
}

var _ = Describe("A pod's wishes", Label("lifecycle", "smoke"), func() {
	It("are met: mount options, fsGroup, a read-write-once-pod claim", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{
			name: "wishes", mode: v1alpha1.CacheModeWritethrough, kind: ext4,
			mountOptions: []string{"noatime", "data=journal"}, accessMode: "ReadWriteOncePod",
		})
		Expect(err).NotTo(HaveOccurred())
		v.user, v.group = 1000, 2000
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.run(ctx, "id -u; touch /data/mine; stat -c %g /data/mine")).To(Equal("1000\n2000"))
		Expect(v.run(ctx, "grep ' /data ' /proc/self/mounts")).To(And(ContainSubstring("noatime"), ContainSubstring("data=journal")))
	}, NodeTimeout(specLimit))
})

var _ = DescribeTable("A pod that returns to its node finds a warm cache", Label("warm"),
	func(ctx SpecContext, mode v1alpha1.CacheMode) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{
			name: "warm", mode: mode, kind: block, size: "128Mi", cacheSize: "100%", parameters: map[string]string{"warmStart": "off"},
		})
		Expect(err).NotTo(HaveOccurred())
		// Blocks that were never written would be read without the storage
		// server's disk; written here, they would be cached here.
		Expect(v.start(ctx, nodeB)).To(Succeed())
		sum, err := v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())

		Expect(v.start(ctx, nodeA)).To(Succeed())
		cold, err := v.hitRate(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(cold).To(BeNumerically("<", 0.5), "hit rate of a cold cache: the check below could not fail")
		Expect(v.warmUp(ctx)).To(Succeed())
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		warm, err := v.hitRate(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(warm).To(BeNumerically(">=", 0.95), "hit rate of the first %d reads", firstReads)
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
	},
	Entry("writethrough", Label("slow"), v1alpha1.CacheModeWritethrough, NodeTimeout(specLimit)),
	Entry("writeback", Label("slow"), v1alpha1.CacheModeWriteback, NodeTimeout(specLimit)),
)

const (
	// workingSet in MiB is what the warm specs read.
	workingSet = 16
	// firstReads is the number of reads that a hit rate is taken of.
	firstReads = 1000
)

// read is fio reading the working set at random; the rest of its options follow.
func (v *vol) read() string {
	return fmt.Sprintf("fio --name=read --filename=%s --size=%dm --rw=randread --bs=4k --direct=1 "+
		"--ioengine=libaio --iodepth=16 --norandommap --randrepeat=0 --minimal ", cluster.DevicePath, max(v.set, workingSet))
}

// hitRate reads at random and returns the hit rate of just these reads, a
// fraction of 1.
func (v *vol) hitRate(ctx context.Context) (float64, error) {
	before, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	if _, err := v.run(ctx, v.read()+fmt.Sprintf("--number_ios=%d >/dev/null", firstReads)); err != nil {
		return 0, err
	}
	after, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	delta := after.Sub(before)
	if n := delta.ReadHits + delta.ReadMisses; n < firstReads {
		return 0, fmt.Errorf("%d reads were counted, %d were made", n, firstReads)
	}
	return delta.ReadHitRate(), nil
}

// warmUp reads the working set until the cache has it.
func (v *vol) warmUp(ctx context.Context) error {
	return cluster.AwaitEvery(ctx, time.Millisecond, late, func(ctx context.Context) (string, error) {
		if _, err := v.run(ctx, v.read()+"--time_based --runtime=2 >/dev/null"); err != nil {
			return "", err
		}
		rate, err := v.hitRate(ctx)
		if err == nil && rate < 0.99 {
			return fmt.Sprintf("hit rate %.3f", rate), nil
		}
		return "", err
	})
}
