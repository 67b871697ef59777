//go:build e2e

// The upgrade from the first version whose formats this one reads, the way back, and the upgrade
// again, by docs/how-to/upgrade.md. hack/upgrade-ring.sh builds that version from the repository's
// history and has it installed when these specs begin. They go on from each other.

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// usualFormat is the journal's of this version, of a volume that needs no other.
const usualFormat = 6

var _ = Describe("A cluster of the first version", Ordered, Serial, Label("upgrade-first", "lab", "slow"), func() {
	f := &firstVersion{sums: map[*vol]string{}, caches: map[*vol]string{}, off: map[*vol]bool{}, next: map[string]string{}}

	BeforeAll(func(ctx SpecContext) {
		f.dir = os.Getenv("NEARFLASH_UPGRADE_FROM")
		Expect(f.dir).NotTo(BeEmpty(), "use make test-upgrade: it builds that version, installs it, and says where it is")
		f.space = newSpace(ctx)
		f.values = filepath.Join(GinkgoT().TempDir(), "values.yaml")
		f.prepare(ctx)
	}, NodeTimeout(2*specLimit))

	It("is upgraded below pods that work, in the middle of a move", func(ctx SpecContext) {
		var before map[*vol]kernelState
		f.upgrade(ctx, func() {
			f.beginMove(ctx)
			f.work(ctx)
			before = f.look(ctx, f.running())
			Expect(before[f.moves].tables()).To(ContainSubstring(" clone "), "the move must be under way")
		}, nil)
		f.expectKept(before, f.look(ctx, f.running()))
		f.endWork(ctx)
		f.verify(ctx)
		f.expectWarm(ctx)
		f.expectFormats(ctx, func(format int) bool { return format >= usualFormat })
	}, NodeTimeout(3*specLimit))

	It("goes back too early, which loses nothing, and forward again", func(ctx SpecContext) {
		f.work(ctx, f.kept)
		f.early = true
		f.rollBack(ctx)
		f.expectRefused(ctx, f.kept)
		By("working on a new volume, which the old version can")
		fresh, err := f.space.volume(ctx, volumeSpec{name: "fresh", mode: v1alpha1.CacheModeWriteback, kind: block, size: "64Mi", cacheSize: "32Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(fresh.start(ctx, nodeA)).To(Succeed())
		sum, err := fresh.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())

		f.upgrade(ctx, nil, nil)
		f.endWork(ctx)
		Expect(k.AwaitDetached(ctx, f.kept.Volume, late)).To(Succeed(), "the new version goes on where the old one refused")
		Expect(f.kept.start(ctx, f.kept.node)).To(Succeed())
		delete(f.off, f.kept)
		// Kubernetes detached it below its cache, which is not kept after that: what it begins with is the hot set.
		Expect(f.kept.hitRate(ctx)).To(BeNumerically(">=", 0.95))
		f.caches[f.kept], err = f.kept.cacheUUID(ctx, f.kept.node)
		Expect(err).NotTo(HaveOccurred())
		f.verify(ctx)
		Expect(fresh.restart(ctx, nodeB)).To(Succeed())
		Expect(fresh.verify(ctx, 0, workingSet, sum)).To(Succeed())
		Expect(fresh.stop(ctx)).To(Succeed())
	}, NodeTimeout(3*specLimit))

	It("goes back when no volume is attached and no cache is kept", func(ctx SpecContext) {
		f.leave(ctx)
		// As the document says: what the old version attaches has none.
		f.shell(ctx, `for v in $(kubectl get cvol -o name); do kubectl patch $v --subresource=status --type=merge -p '{"status":{"activation":null,"pendingActivation":null}}'; done`)
		f.rollBack(ctx)
		f.replaceTarget(ctx, filepath.Join(f.dir, "bin", "nearflash-target"))
		for _, v := range f.all() {
			Expect(v.start(ctx, nodeA)).To(Succeed())
			delete(f.off, v)
		}
		By("moving a volume there and back: the old version works with the new definitions")
		Expect(f.through.restart(ctx, nodeB)).To(Succeed())
		Expect(f.through.verify(ctx, 0, workingSet, f.sums[f.through])).To(Succeed())
		Expect(f.through.restart(ctx, nodeA)).To(Succeed())
		f.verify(ctx)
		f.expectFormats(ctx, func(format int) bool { return format < usualFormat })
	}, NodeTimeout(3*specLimit))

	It("is upgraded while a node with unflushed writes dies", func(ctx SpecContext) {
		dies, err := f.space.volume(ctx, volumeSpec{name: "dies", mode: v1alpha1.CacheModeWriteback, kind: ext4, cacheSize: "128Mi"})
		Expect(err).NotTo(HaveOccurred())
		c := crashDirtyOn(ctx, nodeB, dies)[0]
		// What is dirty stays so until the node dies, however long that takes.
		_, err = k.Host.Run(ctx, nodeB, fmt.Sprintf("dmsetup message %s 0 migration_threshold 0", hoststate.TopDevice(dies.Handle)))
		Expect(err).NotTo(HaveOccurred())
		f.work(ctx)
		f.upgrade(ctx, nil, func() {
			Expect(powerOff(ctx, nodeB)).To(Succeed())
			expectUnflushed(ctx, []*crash{c})
			Expect(k.Lab.Start(ctx, nodeB)).To(Succeed())
		})
		f.endWork(ctx)
		Expect(c.awaitRestarted(ctx)).To(Succeed())
		Expect(c.check(ctx)).To(Succeed())
		Expect(c.cacheUUID(ctx, nodeB)).To(Equal(c.cache), "the cache must be recovered, not made anew")
		f.verify(ctx)

		By("moving everything to the other node")
		Expect(c.restart(ctx, nodeA)).To(Succeed())
		Expect(c.check(ctx)).To(Succeed())
		for _, v := range f.all() {
			Expect(v.restart(ctx, nodeB)).To(Succeed())
		}
		f.verify(ctx)
		f.expectDoctor(ctx, os.Getenv(pluginVariable))
	}, NodeTimeout(3*specLimit))
})

// firstVersion is the cluster of these specs.
type firstVersion struct {
	// dir has the old version's chart and programs, values is what step 2 of the document makes.
	dir, values string
	space       *space
	token       string
	// old and next are the images of the two versions.
	old, next map[string]string
	// through, back, plain and files are in use at the first upgrade; kept was, and moves is being moved.
	through, back, plain, files, kept, moves *vol
	// sums and caches are what each volume holds and the identity of its cache; the pods of those that
	// are off have ended.
	sums, caches map[*vol]string
	off          map[*vol]bool
	ends         []func(context.Context) error
	// early: the old version runs beside entries that it cannot read.
	early bool
}

func (f *firstVersion) all() []*vol {
	return []*vol{f.through, f.back, f.plain, f.files, f.kept, f.moves}
}

// running are the volumes whose pods run.
func (f *firstVersion) running() []*vol {
	return slices.DeleteFunc(f.all(), func(v *vol) bool { return f.off[v] })
}

// prepare fills volumes of all modes with the old version.
func (f *firstVersion) prepare(ctx context.Context) {
	GinkgoHelper()
	f.token = readerToken(ctx, f.space)
	f.old = (&release{}).running(ctx)
	for part := range f.old {
		f.next[part] = "nearflash.local/nearflash-" + part + ":dev"
		Expect(f.old[part]).NotTo(Equal(f.next[part]), "the old version must be installed")
	}
	f.expectDoctor(ctx, filepath.Join(f.dir, "bin", "kubectl-nearflash"))
	f.through = f.fill(ctx, nodeA, volumeSpec{name: "through", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "64Mi"})
	f.back = f.fill(ctx, nodeA, volumeSpec{name: "back", mode: v1alpha1.CacheModeWriteback, kind: block, size: "128Mi", cacheSize: "64Mi"})
	f.plain = f.fill(ctx, nodeB, volumeSpec{name: "plain", mode: v1alpha1.CacheModeNone, kind: block, size: "128Mi"})
	f.files = f.fill(ctx, nodeB, volumeSpec{name: "files", mode: v1alpha1.CacheModeWriteback, kind: ext4, cacheSize: "64Mi"})
	f.kept = f.fill(ctx, nodeB, volumeSpec{name: "kept", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "64Mi"})
	Expect(f.kept.stop(ctx)).To(Succeed())
	f.off[f.kept] = true
	f.moves = f.fill(ctx, nodeA, volumeSpec{name: "moves", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "256Mi", cacheSize: "100%", parameters: slowly})
	f.expectFormats(ctx, func(format int) bool { return format < usualFormat })
}

// movedSet in MiB is what a slow hydration copies in three minutes.
const movedSet = 192

// beginMove has the old version begin a move: last of all, so that it is not over when the plugins are
// replaced, and below the new definitions.
func (f *firstVersion) beginMove(ctx context.Context) {
	GinkgoHelper()
	By("beginning a move")
	Expect(f.moves.restart(ctx, nodeB)).To(Succeed())
	Expect(f.moves.awaitHydrating(ctx, 2)).To(Succeed())
	cm, err := f.moves.migration(ctx, 2)
	Expect(err).NotTo(HaveOccurred())
	Expect(cm.Status.Source.State).To(BeEquivalentTo("Lent"), "the old version's word, which the new definitions take")
}

// fill makes a volume and warms its cache.
func (f *firstVersion) fill(ctx context.Context, node string, spec volumeSpec) *vol {
	GinkgoHelper()
	v, err := f.space.volume(ctx, spec)
	Expect(err).NotTo(HaveOccurred())
	Expect(v.start(ctx, node)).To(Succeed())
	if v.set = workingSet; spec.parameters != nil {
		v.set = movedSet
	}
	f.sums[v], err = v.write(ctx, 0, v.set)
	Expect(err).NotTo(HaveOccurred())
	if spec.mode != v1alpha1.CacheModeNone && v.block {
		Expect(v.warmUp(ctx)).To(Succeed())
	}
	f.caches[v], err = v.cacheUUID(ctx, node)
	Expect(err).NotTo(HaveOccurred())
	return v
}

// work has the pods that run write and read, every block verified, until endWork.
func (f *firstVersion) work(ctx context.Context, except ...*vol) {
	for _, v := range f.running() {
		switch {
		case slices.Contains(except, v):
		case v.block:
			f.ends = append(f.ends, v.work(ctx))
		default:
			f.ends = append(f.ends, v.startLoad(ctx).end)
		}
	}
}

func (f *firstVersion) endWork(ctx context.Context) {
	GinkgoHelper()
	for _, end := range f.ends {
		Expect(end(ctx)).To(Succeed(), "no I/O may fail, no byte may be wrong")
	}
	f.ends = nil
}

func (f *firstVersion) verify(ctx context.Context) {
	GinkgoHelper()
	for _, v := range f.running() {
		Expect(v.verify(ctx, 0, v.set, f.sums[v])).To(Succeed())
	}
}

// expectWarm restarts pods where their caches are, with the new version's plugin, and waits for the end of
// the move that the old one began.
func (f *firstVersion) expectWarm(ctx context.Context) {
	GinkgoHelper()
	By("starting a pod whose cache the old version kept, and restarting others")
	Expect(f.kept.start(ctx, nodeB)).To(Succeed())
	delete(f.off, f.kept)
	Expect(f.kept.expectStillWarm(ctx, f.caches[f.kept])).To(Succeed())
	for _, v := range []*vol{f.through, f.back} {
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.expectStillWarm(ctx, f.caches[v])).To(Succeed())
	}
	_, err := f.moves.awaitMoved(ctx, 2)
	Expect(err).NotTo(HaveOccurred())
	Expect(f.moves.expectWhole(ctx)).To(Succeed())
	Expect(f.moves.restart(ctx, nodeB)).To(Succeed())
	rate, err := f.moves.hitRate(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(rate).To(BeNumerically(">=", 0.95), "a move that one version began and another ended")
	f.verify(ctx)
}

// expectStillWarm fails unless the volume has the cache of that identity, and its first reads hit.
func (v *vol) expectStillWarm(ctx context.Context, cache string) error {
	is, err := v.cacheUUID(ctx, v.node)
	if err != nil {
		return err
	}
	rate, err := v.hitRate(ctx)
	if err == nil && (is != cache || rate < 0.95) {
		err = fmt.Errorf("volume %s: the cache is %s, it was %s; hit rate %.3f", v.claim, is, cache, rate)
	}
	return err
}
