//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// The pod writes and verifies all the time: fio compares every block that it has
// written, and ends with an error at the first that differs.
const verifiedLoad = `
rm -f /tmp/stop /tmp/rounds
until [ -e /tmp/stop ]; do
  fio --name=load --filename=%[1]s --rw=randwrite --bs=4k --size=32M --io_size=8M --offset=%[2]s --direct=1 \
      --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 --allow_file_create=1 --output=/tmp/fio.log >/dev/null || { cat /tmp/fio.log; exit 1; }
  echo round >>/tmp/rounds
done
wc -l </tmp/rounds`

var _ = Describe("A volume that is changed while its pod runs", Label("change"), func() {
	const none, wt, wb = v1alpha1.CacheModeNone, v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWriteback
	DescribeTable("goes through every mode and size, and no block is lost",
		func(ctx SpecContext, kind kind) {
			s := newSpace(ctx)
			v, err := s.volume(ctx, volumeSpec{name: "changing", mode: wt, kind: kind, cacheSize: "64Mi"})
			Expect(err).NotTo(HaveOccurred())
			Expect(v.start(ctx, nodeA)).To(Succeed())
			sum, err := v.write(ctx, 0, 16)
			Expect(err).NotTo(HaveOccurred())
			load := v.startLoad(ctx)
			for _, c := range []struct {
				by   string
				mode v1alpha1.CacheMode
				size string
			}{
				{"to writeback", wb, "64Mi"},
				{"giving it more cache", wb, "96Mi"},
				{"back to writethrough", wt, "96Mi"},
				{"giving the SSD space back", none, "96Mi"},
				{"caching it again, with less", wb, "48Mi"},
				{"giving that back too", none, "48Mi"},
				{"and once more", wt, "48Mi"},
			} {
				By(c.by)
				Expect(v.change(ctx, func(spec *v1alpha1.CachedVolumeSpec) {
					spec.CacheMode, spec.CacheSize, spec.AcceptDirtyLoss = c.mode, c.size, v1alpha1.DirtyLossNodeLoss
				})).To(Succeed())
				Expect(v.expectTable(ctx, c.mode)).To(Succeed())
				Expect(v.expectDirtyState(ctx, c.mode)).To(Succeed())
			}
			Expect(load.end(ctx)).To(Succeed())
			Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())

			By("reading it on the other node")
			Expect(v.restart(ctx, nodeB)).To(Succeed())
			Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		},
		Entry("as a filesystem", Label("turn-2"), ext4, NodeTimeout(specLimit)),
		Entry("as a raw block device", Label("slow"), block, NodeTimeout(specLimit)),
	)

	It("is flushed when somebody asks, and stays writeback", Label("turn-2"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "flushed", mode: wb, kind: block, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.makeDirty(ctx)).To(Succeed())
		Expect(v.change(ctx, func(spec *v1alpha1.CachedVolumeSpec) { spec.FlushRequest = "now" })).To(Succeed())
		c, err := hoststate.ReadCounters(ctx, k.Host, nodeA, v.Handle)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Dirty).To(BeZero())
		cv, err := k.CachedVolume(ctx, v.Volume)
		Expect(err).NotTo(HaveOccurred())
		Expect(cv.Status.Flush.Request).To(Equal("now"))
		Expect(v.expectTable(ctx, wb)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// change changes the volume's spec and waits until the node has carried it out.
func (v *vol) change(ctx context.Context, change func(*v1alpha1.CachedVolumeSpec)) error {
	return k.Change(ctx, v.Volume, late, change)
}

// expectDirtyState fails if the record, or the kernel, says dirty without cause.
func (v *vol) expectDirtyState(ctx context.Context, mode v1alpha1.CacheMode) error {
	cv, err := k.CachedVolume(ctx, v.Volume)
	if err != nil {
		return err
	}
	want := v1alpha1.DirtyStateClean
	if mode == v1alpha1.CacheModeWriteback {
		want = v1alpha1.DirtyStatePossiblyDirty
	}
	if got := cv.Status.DirtyState; got != want && (got != "" || want != v1alpha1.DirtyStateClean) {
		return fmt.Errorf("volume %s in mode %s is %q, want %s", v.Handle, mode, got, want)
	}
	if mode != v1alpha1.CacheModeWritethrough {
		return nil
	}
	c, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return err
	}
	if c.Dirty > 0 {
		return fmt.Errorf("volume %s in mode %s has %d dirty blocks", v.Handle, mode, c.Dirty)
	}
	return nil
}

// load is a verified load that runs in the volume's pod.
type load struct {
	v    *vol
	done chan error
	out  string
}

func (v *vol) startLoad(ctx context.Context) *load {
	l := &load{v: v, done: make(chan error, 1)}
	// A file of its own: fio lays out the whole of a file that is too short.
	path, offset := cluster.MountPath+"/load", "0"
	if v.block {
		path, offset = v.path(), "64M"
	}
	go func() {
		var err error
		l.out, err = v.run(ctx, fmt.Sprintf(verifiedLoad, path, offset))
		l.done <- err
	}()
	return l
}

// end stops the load and fails if it found a wrong block, or did nothing.
func (l *load) end(ctx context.Context) error {
	if _, err := l.v.run(ctx, "touch /tmp/stop"); err != nil {
		return err
	}
	select {
	case err := <-l.done:
		if err != nil {
			return fmt.Errorf("verified load: %w: %s", err, l.out)
		}
	case <-time.After(late):
		return fmt.Errorf("verified load did not end in %s", late)
	case <-ctx.Done():
		return ctx.Err()
	}
	var rounds int
	if _, err := fmt.Sscan(l.out, &rounds); err != nil || rounds == 0 {
		return fmt.Errorf("verified load did %q rounds", l.out)
	}
	return nil
}

// makeDirty writes to the same blocks until some of them are only in the cache.
func (v *vol) makeDirty(ctx context.Context) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		if _, err := v.write(ctx, 0, 2); err != nil {
			return "", err
		}
		c, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
		if err != nil || c.Dirty > 0 {
			return "", err
		}
		return "no block is dirty yet", nil
	})
}
