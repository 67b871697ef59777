//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// server is a storage server of a lab that has two: its machine, its name in the chart's values, and
// its address.
type server struct{ machine, name, address string }

var (
	firstServer  = server{machine: cluster.StorageMachine, address: "10.88.0.20:9443"}
	secondServer = server{machine: "storage-2", name: "second", address: "10.88.0.22:9443"}
)

// parameters are those of a class whose volumes are on the server.
func (s server) parameters() map[string]string {
	if s.name == "" {
		return nil
	}
	return map[string]string{"target": s.name}
}

// hasSecond says whether the lab has a storage server beside the first, and not in its place.
func hasSecond(ctx context.Context) bool {
	if k.Lab == nil {
		return false
	}
	_, err := k.Host.Run(ctx, nodeA, "grep -q ' "+secondServer.machine+"$' /etc/hosts")
	return err == nil
}

// serversOf are the storage servers that have anything of a volume.
func serversOf(ctx context.Context, handle string) (found []string) {
	GinkgoHelper()
	for _, server := range servers {
		items, err := hoststate.Storage(ctx, k.Host, server)
		Expect(err).NotTo(HaveOccurred())
		if len(hoststate.Mentioning(items, handle)) > 0 {
			found = append(found, server)
		}
	}
	return found
}

// expectOn: the volume is on that storage server alone, and its record says so.
func (v *vol) expectOn(ctx context.Context, on server) {
	GinkgoHelper()
	Expect(serversOf(ctx, v.Handle)).To(ConsistOf(on.machine), "servers that have volume %s", v.Handle)
	cv, err := k.CachedVolume(ctx, v.Volume)
	Expect(err).NotTo(HaveOccurred())
	Expect(cv.Spec.Target).To(Equal(on.name))
}

// refused makes a claim, waits until an event says all of these words, and deletes it. Nothing of
// its volume may be on any server.
func (s *space) refused(ctx context.Context, claim *corev1.PersistentVolumeClaim, words ...string) {
	GinkgoHelper()
	Expect(k.API.Create(ctx, claim)).To(Succeed())
	awaitProvisioningFailed(ctx, claim, soon, words...)
	Expect(serversOf(ctx, "pvc-"+string(claim.UID))).To(BeEmpty())
	Expect(k.DeleteAndWait(ctx, claim, soon)).To(Succeed())
}

// serverOff crashes a storage server until the returned function is called, or the spec ends.
func serverOff(ctx context.Context, s server) (on func()) {
	GinkgoHelper()
	start := func(ctx context.Context) { Expect(k.Lab.Start(ctx, s.machine)).To(Succeed()) }
	DeferCleanup(func(ctx SpecContext) { start(ctx) }, NodeTimeout(late))
	Expect(k.Lab.Kill(ctx, s.machine)).To(Succeed())
	return func() { start(ctx) }
}

// awaitDoctor waits until doctor says of a server that it answers the controller, or does not.
func (s server) awaitDoctor(ctx context.Context, says string) {
	GinkgoHelper()
	Eventually(ctx, func() (string, error) {
		out, _, _, err := plugin(ctx, "doctor")
		return out, err
	}).WithTimeout(late).WithPolling(time.Second).Should(MatchRegexp("storage server .*%s.*: %s", regexp.QuoteMeta(s.address), says))
}

// remove deletes the volume's pod and claim, and waits until the driver has forgotten it.
func (v *vol) remove(ctx context.Context) {
	GinkgoHelper()
	Expect(v.deleteClaim(ctx)).To(Succeed())
	Expect(v.space.awaitVolumeGone(ctx, v)).To(Succeed())
}

// liveWithout does with a volume of one server what may be done with one, while the other server is
// off: it runs, moves, grows, gives snapshots, and a new one is made and deleted.
func (v *vol) liveWithout(ctx context.Context, on server, sum string) {
	GinkgoHelper()
	By("moving a volume of the other one, and growing it")
	Expect(v.write(ctx, 16, 4)).NotTo(BeEmpty())
	Expect(v.restart(ctx, otherNode(v.node))).To(Succeed())
	Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
	_, err := growInUse(ctx, v, sum)
	Expect(err).NotTo(HaveOccurred())

	By("taking a snapshot of it, and deleting that")
	snapshot, err := v.snapshot(ctx, v.space.snapshotClass(ctx, nil), v.claim+"-while")
	Expect(err).NotTo(HaveOccurred())
	Expect(k.DeleteAndWait(ctx, snapshot, late)).To(Succeed())

	By("making a volume there, and deleting it")
	made, err := v.space.volume(ctx, volumeSpec{name: v.claim + "-new", mode: v1alpha1.CacheModeWriteback, kind: ext4, parameters: on.parameters()})
	Expect(err).NotTo(HaveOccurred())
	Expect(made.start(ctx, nodeB)).To(Succeed())
	Expect(made.write(ctx, 0, 8)).NotTo(BeEmpty())
	made.remove(ctx)
}

// forgotten takes the finalizer off a snapshot that external-provisioner leaves when the claim that is to
// be made of it goes while that is refused. Its own sweep of them comes minutes later.
func forgotten(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot) {
	GinkgoHelper()
	Expect(k.API.Get(ctx, client.ObjectKeyFromObject(snapshot), snapshot)).To(Succeed())
	old := snapshot.DeepCopy()
	snapshot.Finalizers = slices.DeleteFunc(snapshot.Finalizers, func(f string) bool {
		return f == "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
	})
	Expect(k.API.Patch(ctx, snapshot, client.MergeFrom(old))).To(Succeed())
}

var _ = Describe("A second storage server", Label("second-storage", "lab", "slow"), Serial, func() {
	BeforeEach(func() {
		if !slices.Contains(servers, secondServer.machine) {
			Skip("the lab has one storage server (`lab up --second-storage`)")
		}
	})

	It("has the volumes of the classes that name it, with their caches, snapshots and clones", func(ctx SpecContext) {
		s := newSpace(ctx)
		first := s.inUse(ctx, "first", v1alpha1.CacheModeWritethrough)
		v, err := s.volume(ctx, volumeSpec{name: "second", mode: v1alpha1.CacheModeWriteback, kind: block, cacheSize: "128Mi", parameters: secondServer.parameters()})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		first.expectOn(ctx, firstServer)
		v.expectOn(ctx, secondServer)
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWriteback)).To(Succeed())

		By("moving it with its cache, and growing it")
		sum, before, _ := v.warm(ctx)
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		v.expectHits(ctx, before)
		_, err = v.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		_, err = growInUse(ctx, v, sum)
		Expect(err).NotTo(HaveOccurred())

		By("restoring a snapshot, and cloning")
		snapshot, err := v.snapshot(ctx, s.snapshotClass(ctx, nil), "before")
		Expect(err).NotTo(HaveOccurred())
		later, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		restored, err := s.made(ctx, "restored", "480Mi", v, ofSnapshot(snapshot.Name))
		Expect(err).NotTo(HaveOccurred())
		clone, err := s.made(ctx, "clone", "480Mi", v, corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: v.claim})
		Expect(err).NotTo(HaveOccurred())
		for made, want := range map[*vol]string{restored: sum, clone: later} {
			made.expectOn(ctx, secondServer)
			Expect(made.start(ctx, nodeA)).To(Succeed())
			Expect(made.verify(ctx, 0, 16, want)).To(Succeed())
		}
		Expect(snapshotHandle(ctx, snapshot)).To(HavePrefix("iscsi@" + secondServer.name + "/"))

		By("being refused: a restore and a clone on the other server, and a server that there is not")
		s.expectOtherServerRefused(ctx, v, snapshot)

		By("deleting all of it")
		for _, gone := range []*vol{restored, clone, v, first} {
			gone.remove(ctx)
		}
		forgotten(ctx, snapshot)
		Expect(k.DeleteAndWait(ctx, snapshot, late)).To(Succeed())
		Expect(s.awaitNoLeaks(ctx, late)).To(Succeed())
	}, NodeTimeout(2*specLimit))

	It("serves on while the first one is off, and the first one while it is off", func(ctx SpecContext) {
		s := newSpace(ctx)
		vols, sums := s.onEach(ctx, []server{firstServer, secondServer})
		for _, pair := range [][2]server{{firstServer, secondServer}, {secondServer, firstServer}} {
			down, up := pair[0], pair[1]
			By("switching " + down.machine + " off")
			// A pod that waits for longer than I/O is held back would get errors, which is another spec's.
			Expect(vols[down].stop(ctx)).To(Succeed())
			on := serverOff(ctx, down)
			waits := cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: "waits-for-" + down.machine, Class: s.name + "-" + vols[down].claim, Size: "64Mi"})
			Expect(k.API.Create(ctx, waits)).To(Succeed())
			down.awaitDoctor(ctx, "does not answer")
			up.awaitDoctor(ctx, "answers")
			vols[up].liveWithout(ctx, up, sums[up])
			Expect(k.API.Get(ctx, client.ObjectKeyFromObject(waits), waits)).To(Succeed())
			Expect(waits.Status.Phase).To(Equal(corev1.ClaimPending))

			By("switching " + down.machine + " on")
			on()
			s.adopt(ctx, waits.Name).expectOn(ctx, down)
			Expect(vols[down].start(ctx, nodeA)).To(Succeed())
			Expect(vols[down].verify(ctx, 0, workingSet, sums[down])).To(Succeed())
		}
	}, NodeTimeout(4*specLimit))

	It("is taken over by itself after a restore of etcd", func(ctx SpecContext) {
		const backup = "servers"
		s := newSpace(ctx)
		both := []server{firstServer, secondServer}
		vols, sums := s.onEach(ctx, both)
		Expect(k.Lab.SaveEtcd(ctx, backup)).To(Succeed())
		Expect(recovered(ctx)).To(Succeed())
		for _, on := range both {
			Expect(swapEpoch(ctx, on.machine)).To(Succeed())
		}
		Expect(k.Lab.RestoreEtcd(ctx, backup)).To(Succeed())
		Expect(recovered(ctx)).To(Succeed())
		for _, on := range both {
			Expect(awaitRefused(ctx, on.machine)).To(Succeed())
		}
		_, errOut, status, err := plugin(ctx, "takeover", "--accept-cutoff")
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(1))
		Expect(errOut).To(ContainSubstring("name one of"))

		for i, on := range []server{secondServer, firstServer} {
			By("taking over " + on.machine)
			Expect(shown(ctx, "takeover", on.machine, "--accept-cutoff")).To(ContainSubstring("takes the orders of this cluster"))
			Expect(vols[on].restart(ctx, nodeB)).To(Succeed())
			Expect(vols[on].verify(ctx, 0, workingSet, sums[on])).To(Succeed())
			Expect(vols[on].awaitOwner(ctx, nodeB, 2)).To(Succeed())
			if i == 0 {
				Expect(awaitRefused(ctx, firstServer.machine)).To(Succeed(), "the other one still refuses")
				Expect(vols[firstServer].verify(ctx, 0, workingSet, sums[firstServer])).To(Succeed(), "its pod goes on")
			}
		}
	}, NodeTimeout(2*specLimit))
})

// onEach makes a volume on each of some servers, used on node A, and returns the sums of what was
// written to them.
func (s *space) onEach(ctx context.Context, all []server) (vols map[server]*vol, sums map[server]string) {
	GinkgoHelper()
	vols, sums = map[server]*vol{}, map[server]string{}
	for _, on := range all {
		v, err := s.volume(ctx, volumeSpec{name: "of-" + on.machine, mode: v1alpha1.CacheModeWriteback, kind: block, cacheSize: "128Mi", parameters: on.parameters()})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sums[on], err = v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		vols[on] = v
	}
	return vols, sums
}

// expectOtherServerRefused: what begins as a volume, or as a snapshot, of the second server is made
// there or not at all; nor is a volume of a server that there is not.
func (s *space) expectOtherServerRefused(ctx context.Context, v *vol, snapshot *snapshotv1.VolumeSnapshot) {
	GinkgoHelper()
	elsewhere, err := s.class(ctx, "elsewhere", cluster.ClassSpec{Mode: v1alpha1.CacheModeWritethrough})
	Expect(err).NotTo(HaveOccurred())
	for name, from := range map[string]corev1.TypedLocalObjectReference{
		"restored-elsewhere": ofSnapshot(snapshot.Name),
		"cloned-elsewhere":   {Kind: "PersistentVolumeClaim", Name: v.claim},
	} {
		claim := cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: name, Class: elsewhere, Size: "480Mi", Block: v.block})
		claim.Spec.DataSource = &from
		s.refused(ctx, claim, secondServer.name, "storage server")
	}
	nowhere, err := s.class(ctx, "nowhere", cluster.ClassSpec{Mode: v1alpha1.CacheModeWritethrough, Parameters: map[string]string{"target": "third"}})
	Expect(err).NotTo(HaveOccurred())
	s.refused(ctx, cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: "nowhere", Class: nowhere, Size: "64Mi"}), "target", `"third"`, "accepted", secondServer.name)
}

// snapshotHandle is what the driver calls a snapshot.
func snapshotHandle(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot) (string, error) {
	var content snapshotv1.VolumeSnapshotContent
	if err := k.API.Get(ctx, client.ObjectKey{Name: *snapshot.Status.BoundVolumeSnapshotContentName}, &content); err != nil {
		return "", err
	}
	if content.Status == nil || content.Status.SnapshotHandle == nil {
		return "", fmt.Errorf("snapshot content %s has no handle", content.Name)
	}
	return *content.Status.SnapshotHandle, nil
}
