//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

var _ = Describe("A node that loses power", Label("crash", "lab"), func() {
	It("comes back with everything that was acknowledged", func(ctx SpecContext) {
		s := newSpace(ctx)
		modes := []v1alpha1.CacheMode{v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWriteback}
		crashed := make([]*crash, len(modes))
		for i, mode := range modes {
			v, err := s.volume(ctx, volumeSpec{name: string(mode), mode: mode, kind: ext4})
			Expect(err).NotTo(HaveOccurred())
			Expect(v.start(ctx, nodeA)).To(Succeed())
			crashed[i], err = prepareCrash(ctx, v)
			Expect(err).NotTo(HaveOccurred())
		}
		for _, c := range crashed {
			Expect(cluster.Await(ctx, soon, func(context.Context) (string, error) {
				if n := c.acknowledged.Load(); n < 20 {
					return fmt.Sprintf("%d writes acknowledged", n), nil
				}
				return "", nil
			})).To(Succeed())
		}

		By("killing the node")
		Expect(powerOff(ctx, nodeA)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		for _, c := range crashed {
			Expect(c.awaitRestarted(ctx)).To(Succeed())
			Expect(c.check(ctx)).To(Succeed())
		}
		writethrough, writeback := crashed[0], crashed[1]
		Expect(writethrough.cacheUUID(ctx, nodeA)).NotTo(Equal(writethrough.cache),
			"after an unclean stop a writethrough cache must be made anew (I4)")
		Expect(writeback.cacheUUID(ctx, nodeA)).To(Equal(writeback.cache),
			"after an unclean stop a writeback cache must be kept and flushed (I4)")
		Expect(writeback.awaitOwner(ctx, nodeA, 1)).To(Succeed())

		By("moving both to the other node")
		g, gctx := errgroup.WithContext(ctx)
		for _, c := range crashed {
			g.Go(func() error {
				if err := c.restart(gctx, nodeB); err != nil {
					return err
				}
				return c.check(gctx)
			})
		}
		Expect(g.Wait()).To(Succeed())
	}, NodeTimeout(specLimit))

	It("is the only one that may attach its unflushed volume", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "fenced", mode: v1alpha1.CacheModeWriteback, kind: ext4})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())

		By("killing the node and taking the volume from it by force")
		loseNode(ctx)
		v.takeFromLostNode(ctx)
		Expect(v.begin(ctx, nodeB)).To(Succeed())
		Expect(v.awaitFenced(ctx, "fenced")).To(Succeed(), "the refusal must name the node that holds the writes (I1, I2)")

		By("bringing the node back")
		Expect(outOfService(ctx, nodeA, false)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(v.awaitReady(ctx)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
		Expect(v.awaitOwner(ctx, nodeB, 2)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// powerOff kills a node. The kubelet does not sync the small files by which it
// knows a pod's volumes after a restart, and leaves their folders for ever if
// they are empty then; they are synced for it. The volumes' own filesystems are
// not.
func powerOff(ctx context.Context, node string) error {
	if _, err := k.Host.Run(ctx, node, "sync --file-system /var/lib/kubelet"); err != nil {
		return err
	}
	return k.Lab.Kill(ctx, node)
}

// keepOff powers node A off for as long as the spec takes.
func keepOff(ctx context.Context) {
	GinkgoHelper()
	Expect(powerOff(ctx, nodeA)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(outOfService(ctx, nodeA, false)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
	}, NodeTimeout(2*late))
}

// loseNode powers node A off for as long as the spec takes, and says so to Kubernetes:
// the controller may run there.
func loseNode(ctx context.Context) {
	GinkgoHelper()
	keepOff(ctx)
	Expect(outOfService(ctx, nodeA, true)).To(Succeed())
}

// takeFromLostNode removes the pod by force and waits until the volume is detached.
func (v *vol) takeFromLostNode(ctx context.Context) {
	GinkgoHelper()
	Expect(v.detachLost(ctx, late)).To(Succeed())
}

// detachLost removes the pod of a node that is off, and waits until the volume is detached.
func (v *vol) detachLost(ctx context.Context, wait time.Duration) error {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = v.space.name, v.pod
	if err := k.DeleteAndWait(ctx, pod, soon, client.GracePeriodSeconds(0)); err != nil {
		return err
	}
	return k.AwaitDetached(ctx, v.Volume, wait)
}

// outOfService adds or removes the taint by which an administrator says that a
// node is off: Kubernetes then detaches its volumes at once.
func outOfService(ctx context.Context, node string, out bool) error {
	var n corev1.Node
	if err := k.API.Get(ctx, client.ObjectKey{Name: node}, &n); err != nil {
		return err
	}
	old := n.DeepCopy()
	kept := n.Spec.Taints[:0:0]
	for _, t := range n.Spec.Taints {
		if t.Key != corev1.TaintNodeOutOfService {
			kept = append(kept, t)
		}
	}
	if n.Spec.Taints = kept; out {
		n.Spec.Taints = append(kept, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
	}
	return k.API.Patch(ctx, &n, client.MergeFrom(old))
}

// crash is a volume that is written to until its node dies.
type crash struct {
	*vol
	sum, cache string
	// acknowledged counts the records that the pod said were written and synced.
	acknowledged atomic.Int64
}

// prepareCrash fills a volume and starts a writer that reports each record once
// fsync has returned.
func prepareCrash(ctx context.Context, v *vol) (*crash, error) {
	c := &crash{vol: v}
	var err error
	if c.sum, err = v.write(ctx, 0, 16); err != nil {
		return nil, err
	}
	if c.cache, err = v.cacheUUID(ctx, v.node); err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	go func() {
		err := k.ExecStream(ctx, v.space.name, v.pod, "", `
for ((i = 1;; i++)); do
  printf '%08d\n' $i | dd of=/data/log oflag=append conv=notrunc,fsync status=none || exit 1
  echo $i
done`, w)
		w.CloseWithError(err) // the node's death ends it
	}()
	go func() {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if n, err := strconv.ParseInt(strings.TrimSpace(lines.Text()), 10, 64); err == nil {
				c.acknowledged.Store(n)
			}
		}
	}()
	return c, nil
}

// awaitRestarted waits until the pod's container runs again after the crash.
func (c *crash) awaitRestarted(ctx context.Context) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var pod corev1.Pod
		if err := k.API.Get(ctx, client.ObjectKey{Namespace: c.space.name, Name: c.pod}, &pod); err != nil {
			return "", err
		}
		for _, s := range pod.Status.ContainerStatuses {
			if s.RestartCount > 0 && s.Ready {
				return "", nil
			}
		}
		return fmt.Sprintf("pod %s has not restarted: %+v", c.pod, pod.Status.ContainerStatuses), nil
	})
}

// check reads back everything that was acknowledged before the crash.
func (c *crash) check(ctx context.Context) error {
	if err := c.verify(ctx, 0, 16, c.sum); err != nil {
		return err
	}
	n := c.acknowledged.Load()
	out, err := c.run(ctx, fmt.Sprintf("cmp <(head -n %[1]d /data/log) <(seq -f %%08.0f 1 %[1]d) && echo same", n))
	if err != nil || out != "same" {
		return fmt.Errorf("volume %s lost some of %d acknowledged records: %s: %w", c.claim, n, out, err)
	}
	return nil
}
