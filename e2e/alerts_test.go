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
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// fires wants an alert to fire, and to end when its cause does.
func (p *prometheus) fires(ctx context.Context, name string, labels map[string]string, end func(context.Context) error) {
	GinkgoHelper()
	Expect(p.awaitAlert(ctx, name, labels)).To(Succeed())
	Expect(end(ctx)).To(Succeed())
	Expect(p.awaitResolved(ctx, name)).To(Succeed())
}

// onHost runs a script on a machine.
func onHost(machine, script string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := k.Host.Run(ctx, machine, script)
		return err
	}
}

// caused does something on a machine that is taken back at the end of the spec at the latest.
func caused(ctx context.Context, machine, do, undo string) (end func(context.Context) error) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { Expect(onHost(machine, undo)(ctx)).To(Succeed()) }, NodeTimeout(soon)) // of a part of it, too
	Expect(onHost(machine, do)(ctx)).To(Succeed())
	return onHost(machine, undo)
}

var _ = Describe("The alerts about volumes", Label("alerts", "metrics", "lab", "slow"), Serial, func() {
	It("fire for what is not flushed, and for a dirty limit that is always on", func(ctx SpecContext) {
		s := newSpace(ctx)
		p := startPrometheus(ctx, s)
		spec := volumeSpec{name: "dirty", mode: v1alpha1.CacheModeWriteback, kind: block, size: "128Mi", cacheSize: "100%"}
		dirty, err := s.volume(ctx, spec)
		Expect(err).NotTo(HaveOccurred())
		spec.name, spec.parameters = "limited", map[string]string{"maxDirtyBytes": "16Mi"}
		limited, err := s.volume(ctx, spec)
		Expect(err).NotTo(HaveOccurred())
		for _, v := range []*vol{dirty, limited} {
			Expect(v.start(ctx, nodeA)).To(Succeed())
		}
		labels := map[string]string{"node": nodeA, "namespace": s.name, "severity": "warning"}

		By("keeping dm-cache from flushing while nobody writes")
		hold := fmt.Sprintf("dmsetup message %s 0 migration_threshold ", hoststate.TopDevice(dirty.Handle))
		end := caused(ctx, nodeA, hold+"0", hold+"2048 || true")
		Expect(dirty.makeDirty(ctx)).To(Succeed())
		labels["pvc"] = dirty.claim
		p.fires(ctx, "NearflashDirtyTooOld", labels, func(ctx context.Context) error { return errors.Join(end(ctx), dirty.stop(ctx)) })

		By("writing more than the limit, all the time")
		stop := limited.writeOn(ctx)
		labels["pvc"] = limited.claim
		p.fires(ctx, "NearflashDirtyLimitAlwaysOn", labels, func(context.Context) error { return stop() })
	}, NodeTimeout(specLimit))

	It("fire for a cache that failed, and for one that helps no more", func(ctx SpecContext) {
		s := newSpace(ctx)
		p := startPrometheus(ctx, s)

		By("reading what is cached, and then what is not")
		read, err := s.volume(ctx, volumeSpec{name: "read", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "256Mi", cacheSize: "32Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(read.start(ctx, nodeA)).To(Succeed())
		_, err = read.write(ctx, 0, 256)
		Expect(err).NotTo(HaveOccurred())
		reads := func(ctx context.Context, offset, size string, seconds int) error { // of all places as often
			_, err := read.run(ctx, fmt.Sprintf("fio --name=reads --filename=%s --rw=randread --offset=%s --size=%s --rate_iops=300 --bs=4k --direct=1"+
				" --ioengine=libaio --iodepth=4 --time_based --runtime=%d --minimal >/dev/null", read.path(), offset, size, seconds))
			return err
		}
		Expect(reads(ctx, "0", "16Mi", 150)).To(Succeed())
		working, stop := context.WithCancel(ctx)
		defer stop()
		done := make(chan error, 1)
		go func() { done <- reads(working, "32Mi", "224Mi", 600) }()
		Expect(p.awaitAlert(ctx, "NearflashHitRateCollapsed", map[string]string{"node": nodeA, "pvc": read.claim, "severity": "warning"})).To(Succeed())
		stop()
		<-done // with the error of having been stopped

		By("failing the SSD below a writeback cache; of another mode the volume goes on without the cache")
		failed, err := s.volume(ctx, volumeSpec{name: "failed", mode: v1alpha1.CacheModeWriteback, kind: block, size: "64Mi", cacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		Expect(failed.start(ctx, nodeA)).To(Succeed())
		_, err = failed.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())
		mend, err := failLVUntil(ctx, nodeA, failed.Handle+".meta")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { _ = mend(ctx) }, NodeTimeout(soon)) // the volume may be gone by then
		_, _ = failed.write(ctx, 8, 8)                                           // it is what finds the SSD failing
		Expect(p.awaitAlert(ctx, "NearflashVolumeUnhealthy", map[string]string{"node": nodeA, "pvc": failed.claim, "severity": "critical"})).To(Succeed())
		Expect(mend(ctx)).To(Succeed()) // what comes of it is another spec's
	}, NodeTimeout(2*specLimit))
})

var _ = Describe("The alerts about nodes", Label("alerts", "metrics", "lab", "slow"), Serial, func() {
	It("fire for a pool, a plugin that stands still or is missing, and what does not leave a node", func(ctx SpecContext) {
		s := newSpace(ctx)
		p := startPrometheus(ctx, s)

		By("giving the pool a device with somebody's data; a pool without any is no cause of alarm")
		Expect(awaitEmptyPool(ctx, nodeA)).To(Succeed())
		const file, device = "/run/foreign", "/dev/loop7"
		end := caused(ctx, nodeA, fmt.Sprintf("truncate -s 64M %[1]s && mkfs.ext4 -q -F %[1]s && losetup %[2]s %[1]s", file, device),
			fmt.Sprintf("losetup -d %[2]s 2>/dev/null; rm -f %[1]s", file, device))
		Expect(overridePool(ctx, nodeA, []string{device})).To(Succeed())
		p.fires(ctx, "NearflashPoolNotReady", map[string]string{"node": nodeA}, func(ctx context.Context) error { return errors.Join(resetPool(ctx, nodeA), end(ctx)) })

		By("having somebody on the node keep a raw block volume open, for whose end the kubelet asks again and again")
		held, err := s.volume(ctx, volumeSpec{name: "held", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(held.start(ctx, nodeA)).To(Succeed())
		end = caused(ctx, nodeA,
			fmt.Sprintf(`nohup sleep 3600 </dev/mapper/%s >/dev/null 2>&1 & echo $! >/run/holder`, hoststate.TopDevice(held.Handle)),
			`[ ! -e /run/holder ] || { kill $(cat /run/holder); rm /run/holder; }`)
		Expect(k.API.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: held.pod}})).To(Succeed())
		p.fires(ctx, "NearflashUnstageStuck", nil, func(ctx context.Context) error { return errors.Join(end(ctx), held.stop(ctx)) })

		By("keeping the plugin from reading the state of volumes")
		end = caused(ctx, nodeA, inPlugin+`sh -c 'mount --bind /bin/false $(command -v dmsetup)'`, inPlugin+`sh -c 'umount $(command -v dmsetup) 2>/dev/null || true'`)
		p.fires(ctx, "NearflashMetricsPassFailing", map[string]string{"node": nodeA}, end)

		By("stopping the plugin of a node that has unflushed writes of a volume that nobody uses")
		dirty, err := s.volume(ctx, volumeSpec{name: "dirty", mode: v1alpha1.CacheModeWriteback, kind: block, size: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(dirty.start(ctx, nodeA)).To(Succeed())
		Expect(dirty.makeDirty(ctx)).To(Succeed())
		// Again and again: the kubelet ends what does not answer its probe, and starts another.
		end = caused(ctx, nodeA,
			`touch /run/stopping; nohup sh -c 'while [ -e /run/stopping ]; do kill -STOP $(pidof nearflash-node); sleep 0.5; done' >/dev/null 2>&1 &`,
			`rm -f /run/stopping; sleep 1; kill -CONT $(pidof nearflash-node) || true`)
		Expect(outOfService(ctx, nodeA, true)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(outOfService(ctx, nodeA, false)).To(Succeed()) }, NodeTimeout(soon))
		dirty.takeFromLostNode(ctx)
		Expect(p.awaitAlert(ctx, "NearflashFlushStuck", map[string]string{"node": nodeA, "pvc": dirty.claim})).To(Succeed())
		p.fires(ctx, "NearflashPluginDown", map[string]string{"node": nodeA}, func(ctx context.Context) error {
			return errors.Join(outOfService(ctx, nodeA, false), end(ctx), k.AwaitDriver(ctx, late))
		})
		Expect(dirty.start(ctx, nodeB)).To(Succeed())
		Expect(p.awaitResolved(ctx, "NearflashFlushStuck")).To(Succeed())

		By("removing the plugins")
		DeferCleanup(func(ctx SpecContext) { Expect(runPlugins(ctx, true)).To(Succeed()) }, NodeTimeout(late))
		Expect(dirty.stop(ctx)).To(Succeed())
		Expect(runPlugins(ctx, false)).To(Succeed())
		p.fires(ctx, "NearflashPluginMissing", map[string]string{"node": nodeB}, func(ctx context.Context) error { return runPlugins(ctx, true) })
	}, NodeTimeout(3*specLimit))
})

// runPlugins has the node plugin run on all nodes, or on none.
func runPlugins(ctx context.Context, on bool) error {
	var sets appsv1.DaemonSetList
	if err := k.API.List(ctx, &sets, client.InNamespace(k.Namespace), client.MatchingLabels{"app.kubernetes.io/component": "node"}); err != nil {
		return err
	}
	for i := range sets.Items {
		if err := runOnNodes(ctx, &sets.Items[i], on); err != nil {
			return err
		}
	}
	if !on {
		return nil
	}
	return k.AwaitDriver(ctx, late)
}

// runOnNodes has a DaemonSet run on all its nodes, or on none.
func runOnNodes(ctx context.Context, set *appsv1.DaemonSet, on bool) error {
	const nowhere = "e2e.nearflash.io/nowhere" // a label that no node has
	old, spec := set.DeepCopy(), &set.Spec.Template.Spec
	delete(spec.NodeSelector, nowhere)
	if !on {
		if spec.NodeSelector == nil {
			spec.NodeSelector = map[string]string{}
		}
		spec.NodeSelector[nowhere] = ""
	}
	if err := k.API.Patch(ctx, set, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("DaemonSet %s: %w", set.Name, err)
	}
	return nil
}

var _ = Describe("The alerts about controller and storage server", Label("alerts", "metrics", "lab", "slow"), Serial, func() {
	It("fire for a server that is full, or away, for calls that fail, and for no controller", func(ctx SpecContext) {
		s := newSpace(ctx)
		p := startPrometheus(ctx, s)
		Expect(p.await(ctx, `nearflash_storage_server_up == 1`, one)).To(Succeed())

		By("filling the thin pool")
		end := caused(ctx, cluster.StorageMachine, fmt.Sprintf(fillPool, 92), emptyPool)
		p.fires(ctx, "NearflashStorageServerNearlyFull", map[string]string{"severity": "critical"}, end)

		By("stopping the storage server's service")
		end = caused(ctx, cluster.StorageMachine, `kill -STOP $(pidof nearflash-target)`, `kill -CONT $(pidof nearflash-target)`)
		var claims []*corev1.PersistentVolumeClaim
		class, err := s.class(ctx, "failing", cluster.ClassSpec{Mode: v1alpha1.CacheModeNone})
		Expect(err).NotTo(HaveOccurred())
		for i := range 6 {
			claims = append(claims, cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: fmt.Sprintf("failing-%d", i), Class: class, Size: "16Mi"}))
			Expect(k.API.Create(ctx, claims[i])).To(Succeed())
		}
		Expect(p.awaitAlert(ctx, "NearflashCallsFailing", map[string]string{"method_name": "/csi.v1.Controller/CreateVolume"})).To(Succeed())
		p.fires(ctx, "NearflashStorageServerDown", map[string]string{"severity": "critical"}, end)
		for _, claim := range claims {
			Expect(k.DeleteAndWait(ctx, claim, late)).To(Succeed())
		}
		Expect(p.awaitResolved(ctx, "NearflashCallsFailing")).To(Succeed())

		By("having no controller")
		DeferCleanup(func(ctx SpecContext) { Expect(scaleController(ctx, 1)).To(Succeed()) }, NodeTimeout(late))
		Expect(scaleController(ctx, 0)).To(Succeed())
		p.fires(ctx, "NearflashControllerDown", map[string]string{"severity": "critical"}, func(ctx context.Context) error { return scaleController(ctx, 1) })
	}, NodeTimeout(2*specLimit))
})

// scaleController has so many controllers run, and waits for that.
func scaleController(ctx context.Context, replicas int32) error {
	var deployments appsv1.DeploymentList
	if err := k.API.List(ctx, &deployments, client.InNamespace(k.Namespace), client.MatchingLabels{"app.kubernetes.io/component": "controller"}); err != nil {
		return err
	}
	if len(deployments.Items) != 1 {
		return fmt.Errorf("%d Deployments of the controller, want 1", len(deployments.Items))
	}
	d := &deployments.Items[0]
	old := d.DeepCopy()
	d.Spec.Replicas = ptr.To(replicas)
	if err := k.API.Patch(ctx, d, client.MergeFrom(old)); err != nil {
		return err
	}
	return cluster.AwaitEvery(ctx, time.Second, late, func(ctx context.Context) (string, error) {
		if err := k.API.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return "", err
		}
		if d.Status.ObservedGeneration < d.Generation || d.Status.ReadyReplicas != replicas || d.Status.Replicas != replicas {
			return fmt.Sprintf("%d of %d controllers are ready", d.Status.ReadyReplicas, d.Status.Replicas), nil
		}
		return "", nil
	})
}

// hasty has a rule look back less far: half an hour is a minute, an hour half a minute, a quarter of an
// hour 20 seconds, and what is dirty for five seconds is too old.
func hasty(expr string) string {
	return strings.NewReplacer("dirty_age_seconds > 3600", "dirty_age_seconds > 5", "[1d] offset 30m", "[2m] offset 1m", "[30m]", "[1m]", "[1h]", "[30s]", "[15m]", "[20s]", "offset 15m", "offset 20s").Replace(expr)
}
