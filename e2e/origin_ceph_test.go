//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// cephRBD is what `lab up --origin ceph` brings. Nodes need a key of Ceph, which its class
// names as node-stage secret; ours names the same.
var cephRBD = originDriver{class: "rbd", parameters: map[string]string{
	"csi.storage.k8s.io/node-stage-secret-name":      "rbd-node",
	"csi.storage.k8s.io/node-stage-secret-namespace": "lab-origin",
}}

// cephSCSI has nodes show an image as a disk of SCSI (hack/tools/rbd).
var cephSCSI = map[string]string{"disk": "scsi"}

// cephJSON asks Ceph.
func cephJSON(ctx context.Context, into any, args ...string) error {
	out, err := k.Lab.Ceph(ctx, append(args, "--format", "json")...)
	if err != nil {
		return err
	}
	// Of several values the first: the blocklist is followed by one of ranges.
	if err := json.NewDecoder(strings.NewReader(out)).Decode(into); err != nil {
		return fmt.Errorf("%v printed %.200q: %w", args, out, err)
	}
	return nil
}

// image is the RBD image of a PersistentVolume.
func image(pv string) string { return "rbd/" + pv }

// lockHolder is the address of the client that has the exclusive lock of an image, "" for
// none.
func lockHolder(ctx context.Context, pv string) (string, error) {
	var locks []struct {
		Address string `json:"address"`
	}
	if err := cephJSON(ctx, &locks, "rbd", "lock", "list", image(pv)); err != nil || len(locks) == 0 {
		return "", err
	}
	return locks[0].Address, nil
}

// blocklisted are the addresses of clients whose writes the OSDs refuse.
func blocklisted(ctx context.Context) ([]string, error) {
	var list []struct {
		Address string `json:"addr"`
	}
	err := cephJSON(ctx, &list, "ceph", "osd", "blocklist", "ls")
	var out []string
	for _, b := range list {
		out = append(out, b.Address)
	}
	return out, err
}

// expectImageGone: neither Kubernetes nor Ceph knows the disk, and no node has it mapped.
func expectImageGone(ctx context.Context, pv string) {
	GinkgoHelper()
	expectDiskGone(ctx, pv)
	var images []string
	Expect(cephJSON(ctx, &images, "rbd", "ls")).To(Succeed())
	Expect(images).NotTo(ContainElement(pv))
	for _, node := range []string{nodeA, nodeB} {
		mapped, err := k.Host.Run(ctx, node, "cat /sys/bus/rbd/devices/*/name 2>/dev/null || true")
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Fields(mapped)).NotTo(ContainElement(pv), "node %s", node)
	}
}

// deleteCeph ends the pod of a volume, deletes it and looks for what is left.
func (v *vol) deleteCeph(ctx context.Context, pv string) {
	GinkgoHelper()
	Expect(v.deleteClaim(ctx)).To(Succeed())
	expectImageGone(ctx, pv)
}

var _ = Describe("A volume over Ceph RBD", Label("origin-ceph", "lab", "slow"), func() {
	for _, mode := range []v1alpha1.CacheMode{v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWriteback} {
		It(fmt.Sprintf("is cached (%s), moves, grows, and is deleted with the image", mode), func(ctx SpecContext) {
			s := newSpace(ctx)
			v, err := s.cachedOrigin(ctx, cephRBD, volumeSpec{name: "over", mode: mode}, nodeA)
			Expect(err).NotTo(HaveOccurred())
			Expect(v.expectTable(ctx, mode)).To(Succeed())
			pv, err := v.origin(ctx)
			Expect(err).NotTo(HaveOccurred())
			sum, err := v.write(ctx, 0, 16)
			Expect(err).NotTo(HaveOccurred())
			first, err := lockHolder(ctx, pv.Name)
			Expect(err).NotTo(HaveOccurred())
			Expect(first).NotTo(BeEmpty(), "the node that has the volume has the lock")

			By("moving it to the other node")
			Expect(v.restart(ctx, nodeB)).To(Succeed())
			Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
			Expect(v.expectTable(ctx, mode)).To(Succeed())
			Expect(attachedTo(ctx, pv.Name)).To(ConsistOf(nodeB))
			Expect(lockHolder(ctx, pv.Name)).NotTo(Or(BeEmpty(), Equal(first)))
			Expect(blocklisted(ctx)).NotTo(ContainElement(first), "who gave the volume away is not fenced")

			By("growing it while it is in use")
			Expect(k.Expand(ctx, s.name, v.claim, v.pod, "2Gi", late)).To(Succeed())
			Expect(v.size(ctx)).To(BeNumerically(">", 3<<29))
			Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())

			By("deleting it")
			v.deleteCeph(ctx, pv.Name)
			Expect(attachedTo(ctx, pv.Name)).To(BeEmpty())
		}, NodeTimeout(specLimit))
	}

	It("has snapshots and clones, with what a writeback cache had acknowledged and nothing of later", func(ctx SpecContext) {
		s := newSpace(ctx)
		class := s.snapshotClass(ctx, map[string]string{"originSnapshotClass": cephRBD.class})
		v, err := s.cachedOrigin(ctx, cephRBD, volumeSpec{name: "parent", mode: v1alpha1.CacheModeWriteback}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		pv, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		snapshot, sum, later := v.snapshotBetween(ctx, class)

		By("restoring it, larger, and cloning the volume, beside it")
		restored, err := s.madeOn(ctx, nodeA, "restored", "2Gi", v, ofSnapshot(snapshot.Name))
		Expect(err).NotTo(HaveOccurred())
		Expect(restored.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(restored.size(ctx)).To(BeNumerically(">", 3<<29))
		clone, err := s.madeOn(ctx, nodeA, "clone", "1Gi", v, corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: v.claim})
		Expect(err).NotTo(HaveOccurred())
		Expect(clone.verify(ctx, 0, 16, later)).To(Succeed())

		By("deleting snapshot and parent, which their children outlive")
		Expect(k.DeleteAndWait(ctx, snapshot, late)).To(Succeed())
		v.deleteCeph(ctx, pv.Name)
		Expect(restored.restart(ctx, nodeB)).To(Succeed())
		Expect(restored.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(clone.restart(ctx, nodeB)).To(Succeed())
		Expect(clone.verify(ctx, 0, 16, later)).To(Succeed())
	}, NodeTimeout(specLimit))

	It("moves with its cache, where nodes show it as a disk of SCSI, which counts what it fails", func(ctx SpecContext) {
		s := newSpace(ctx)
		driver, err := s.originClass(ctx, cephRBD, "scsi", cephSCSI)
		Expect(err).NotTo(HaveOccurred())
		v, err := s.cachedOrigin(ctx, driver, volumeSpec{name: "scsi", mode: v1alpha1.CacheModeWriteback, kind: block, cacheSize: "128Mi"}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		pv, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		sum, before, _ := v.warm(ctx)

		Expect(v.restart(ctx, nodeB)).To(Succeed())
		v.expectCloned(ctx, 2, before)
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
		v.deleteCeph(ctx, pv.Name)
	}, NodeTimeout(specLimit))

	It("waits for an OSD that was killed, and loses nothing", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.cachedOrigin(ctx, cephRBD, volumeSpec{name: "osd", mode: v1alpha1.CacheModeWritethrough, kind: block}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		pv, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())

		By("killing the OSD below a load")
		load := make(chan error, 1)
		go func() {
			defer GinkgoRecover()
			_, err := v.run(ctx, verified+" --rw=randwrite --rate_iops=150 --do_verify=0")
			load <- err
		}()
		Expect(v.awaitWrites(ctx, func(before, now uint64) bool { return now > before })).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(k.Lab.StartOrigin(ctx)).To(Succeed()) }, NodeTimeout(late))
		Expect(k.Lab.KillOrigin(ctx, "osd")).To(Succeed())
		Expect(v.awaitWrites(ctx, func(before, now uint64) bool { return now == before })).To(Succeed(), "writethrough waits for Ceph")
		Expect(load).NotTo(Receive(), "the pod waits, without an error")

		By("starting it again")
		Expect(k.Lab.StartOrigin(ctx)).To(Succeed())
		Eventually(load).WithContext(ctx).WithTimeout(late).Should(Receive(BeNil()))
		_, err = v.run(ctx, verified+" --rw=randwrite --verify_only")
		Expect(err).NotTo(HaveOccurred())

		By("reading it where nothing is cached")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		_, err = v.run(ctx, verified+" --rw=randwrite --verify_only")
		Expect(err).NotTo(HaveOccurred())
		v.deleteCeph(ctx, pv.Name)
	}, NodeTimeout(specLimit))

	DescribeTable("is taken from a lost node that has the exclusive lock, which is fenced; unflushed writes stay with the node", func(ctx SpecContext, parameters map[string]string) {
		s := newSpace(ctx)
		driver, err := s.originClass(ctx, cephRBD, "lost", parameters)
		Expect(err).NotTo(HaveOccurred())
		clean, err := s.cachedOrigin(ctx, driver, volumeSpec{name: "clean", mode: v1alpha1.CacheModeWritethrough}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		dirty, err := s.cachedOrigin(ctx, driver, volumeSpec{name: "dirty", mode: v1alpha1.CacheModeWriteback}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		sums, disks, holders := map[*vol]string{}, map[*vol]string{}, map[*vol]string{}
		for _, v := range []*vol{clean, dirty} {
			sums[v], err = v.write(ctx, 0, 16)
			Expect(err).NotTo(HaveOccurred())
			pv, err := v.origin(ctx)
			Expect(err).NotTo(HaveOccurred())
			disks[v] = pv.Name
			holders[v], err = lockHolder(ctx, pv.Name)
			Expect(err).NotTo(HaveOccurred())
			Expect(holders[v]).NotTo(BeEmpty())
		}
		Expect(holders[clean]).NotTo(Equal(holders[dirty]), "each volume is a client of its own, or a fence would take both")

		By("losing the node, and taking the volumes from it by force")
		loseNode(ctx)
		Expect(blocklisted(ctx)).NotTo(ContainElement(holders[clean]))
		clean.takeFromLostNode(ctx)
		dirty.takeFromLostNode(ctx)
		Expect(blocklisted(ctx)).To(And(ContainElement(holders[clean]), Not(ContainElement(holders[dirty]))))
		Expect(attachedTo(ctx, disks[clean])).To(BeEmpty())
		Expect(attachedTo(ctx, disks[dirty])).To(ConsistOf(nodeA), "the node keeps the disk that its writes belong to")

		By("going on elsewhere")
		Expect(clean.start(ctx, nodeB)).To(Succeed())
		Expect(clean.verify(ctx, 0, 16, sums[clean])).To(Succeed())
		Expect(dirty.begin(ctx, nodeB)).To(Succeed())
		Expect(dirty.awaitFenced(ctx, "fenced")).To(Succeed())

		By("bringing the node back")
		Expect(outOfService(ctx, nodeA, false)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		// The other driver wants a secret to stage a volume. The plugin that has booted knows
		// none, and gets it with a pod of the volume: nothing flushes the cache before that.
		Expect(dirty.restart(ctx, nodeA)).To(Succeed())
		Expect(dirty.verify(ctx, 0, 16, sums[dirty])).To(Succeed())
		Expect(dirty.restart(ctx, nodeB)).To(Succeed())
		Expect(dirty.verify(ctx, 0, 16, sums[dirty])).To(Succeed())
		Expect(clean.verify(ctx, 0, 16, sums[clean])).To(Succeed())
		Expect(attachedTo(ctx, disks[dirty])).To(ConsistOf(nodeB))

		By("letting it in again with the volume that was taken from it")
		Expect(clean.restart(ctx, nodeA)).To(Succeed())
		Expect(clean.verify(ctx, 0, 16, sums[clean])).To(Succeed())
		Expect(blocklisted(ctx)).NotTo(ContainElement(holders[clean]), "the node has booted since")
		for _, v := range []*vol{clean, dirty} {
			v.deleteCeph(ctx, disks[v])
		}
	},
		Entry("of the kernel's own block devices", map[string]string{}, NodeTimeout(2*specLimit)),
		Entry("of disks of SCSI", cephSCSI, NodeTimeout(2*specLimit)),
	)
})

// verified writes or reads blocks that tell whether they are right. The rate makes the load
// outlast what is done to it meanwhile.
const verified = "fio --name=load --filename=" + cluster.DevicePath + " --size=32M --bs=4k --direct=1 --ioengine=libaio --iodepth=4 " +
	"--verify=crc32c --verify_fatal=1 --randrepeat=1 --minimal >/dev/null"

// writesPace is the time between two readings of what was written: longer than a load's
// writes are apart by far.
const writesPace = 3 * time.Second

// awaitWrites waits until ok says so of two readings of the number of writes.
func (v *vol) awaitWrites(ctx context.Context, ok func(before, now uint64) bool) error {
	var readings []uint64
	return cluster.AwaitEvery(ctx, writesPace, late, func(ctx context.Context) (string, error) {
		c, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
		if err != nil {
			return "", err
		}
		readings = append(readings, c.WriteHits+c.WriteMisses)
		last := readings[max(0, len(readings)-2):]
		if len(last) == 2 && ok(last[0], last[1]) {
			return "", nil
		}
		return fmt.Sprintf("writes: %v", slices.Clone(readings)), nil
	})
}
