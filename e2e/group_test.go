//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// groupLabel is on the claims of a group.
const groupLabel = "nearflash-e2e-group"

// turns appends to two volumes in turn: a line of one is begun when that of the other was
// acknowledged. So at each point in time the first has as many lines as the second, or one more.
type turns struct {
	volumes [2]*vol
	// acked is the number of turns in which both lines were acknowledged.
	acked  atomic.Int64
	cancel context.CancelFunc
	ended  chan error
}

// appendsInTurn writes the lines whose numbers it is told, and says when each was acknowledged.
const appendsInTurn = `
exec 3>>` + appended + `
while read -r n; do
  printf '%-63d\n' "$n" >&3
  echo "$n"
done`

// inTurn begins to write, and goes on until end.
func inTurn(ctx context.Context, first, second *vol) *turns {
	GinkgoHelper()
	t := &turns{volumes: [2]*vol{first, second}, ended: make(chan error, 1)}
	ctx, t.cancel = context.WithCancel(ctx)
	go func() { t.ended <- t.write(ctx) }()
	DeferCleanup(t.cancel)
	t.goesOn(ctx)
	return t
}

func (t *turns) write(ctx context.Context) error {
	var asks [2]*io.PipeWriter
	var says [2]*bufio.Scanner
	for i, v := range t.volumes {
		in, ask := io.Pipe()
		say, out := io.Pipe()
		asks[i], says[i] = ask, bufio.NewScanner(say)
		go func() {
			err := k.ExecPipe(ctx, v.space.name, v.pod, "", "set -euo pipefail\n"+appendsInTurn, in, out)
			in.CloseWithError(err)
			out.CloseWithError(err)
		}()
	}
	for n := 1; ctx.Err() == nil; n++ {
		for i := range t.volumes {
			if _, err := fmt.Fprintln(asks[i], n); err != nil {
				return err
			}
			if !says[i].Scan() {
				return fmt.Errorf("volume %s: line %d was not acknowledged: %w", t.volumes[i].claim, n, says[i].Err())
			}
			if got := says[i].Text(); got != fmt.Sprint(n) {
				return fmt.Errorf("volume %s: %q acknowledges line %d", t.volumes[i].claim, got, n)
			}
		}
		t.acked.Store(int64(n))
	}
	return nil
}

// goesOn waits for several further turns.
func (t *turns) goesOn(ctx context.Context) {
	GinkgoHelper()
	before := t.acked.Load()
	Eventually(func(g Gomega) {
		g.Expect(t.ended).NotTo(Receive())
		g.Expect(t.acked.Load()).To(BeNumerically(">", before+5))
	}).WithContext(ctx).WithTimeout(soon).Should(Succeed())
}

// end ends the writing; what is under way is not waited for.
func (t *turns) end(ctx context.Context) {
	GinkgoHelper()
	t.cancel()
	Eventually(t.ended).WithContext(ctx).WithTimeout(soon).Should(Receive())
}

// inOrder tells whether lines of both are of one point in time.
func inOrder(first, second int) bool { return first == second || first == second+1 }

// groupClass makes a VolumeGroupSnapshotClass that goes with the space.
func (s *space) groupClass(ctx context.Context, parameters map[string]string) string {
	GinkgoHelper()
	class := &groupsnapshotv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{GenerateName: s.name + "-"}, Driver: cluster.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		Parameters: parameters,
	}
	forSpec(ctx, class)
	return class.Name
}

// joins puts the claims of volumes into a group.
func (s *space) joins(ctx context.Context, group string, volumes ...*vol) {
	GinkgoHelper()
	for _, v := range volumes {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: v.claim}}
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, groupLabel, group)
		Expect(k.API.Patch(ctx, claim, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
	}
}

// group asks for a snapshot of all claims of a group.
func (s *space) group(ctx context.Context, class, name, group string) *groupsnapshotv1.VolumeGroupSnapshot {
	GinkgoHelper()
	g := &groupsnapshotv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name},
		Spec: groupsnapshotv1.VolumeGroupSnapshotSpec{
			VolumeGroupSnapshotClassName: &class,
			Source:                       groupsnapshotv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{groupLabel: group}}},
		},
	}
	Expect(k.API.Create(ctx, g)).To(Succeed())
	return g
}

// groupReady says what a group waits for, "" if it is there.
func groupReady(ctx context.Context, g *groupsnapshotv1.VolumeGroupSnapshot) (string, error) {
	if err := k.API.Get(ctx, client.ObjectKeyFromObject(g), g); err != nil {
		return "", err
	}
	switch st := g.Status; {
	case st == nil:
		return "nothing is said of the group", nil
	case st.ReadyToUse != nil && *st.ReadyToUse:
		return "", nil
	case st.Error != nil && st.Error.Message != nil:
		return *st.Error.Message, nil
	}
	return "the group is not ready", nil
}

func awaitGroup(ctx context.Context, g *groupsnapshotv1.VolumeGroupSnapshot) {
	GinkgoHelper()
	Expect(cluster.Await(ctx, backedOff, func(ctx context.Context) (string, error) { return groupReady(ctx, g) })).To(Succeed())
}

// members are the snapshots of a group that are ready, by their claims.
func members(ctx context.Context, g *groupsnapshotv1.VolumeGroupSnapshot, count int) map[string]string {
	GinkgoHelper()
	out := map[string]string{}
	Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		clear(out)
		var all snapshotv1.VolumeSnapshotList
		if err := k.API.List(ctx, &all, client.InNamespace(g.Namespace)); err != nil {
			return "", err
		}
		for _, s := range all.Items {
			of := func(r metav1.OwnerReference) bool { return r.UID == g.UID }
			if slices.ContainsFunc(s.OwnerReferences, of) && s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse {
				out[*s.Spec.Source.PersistentVolumeClaimName] = s.Name
			}
		}
		if len(out) != count {
			return fmt.Sprintf("snapshots of the group that are ready: %v", out), nil
		}
		return "", nil
	})).To(Succeed())
	return out
}

// restored counts the lines of volumes made of snapshots, which are named by the claims of their parents.
func (t *turns) restored(ctx context.Context, name string, snapshots map[string]string) (lines [2]int) {
	GinkgoHelper()
	for i, v := range t.volumes {
		r, err := v.space.madeOn(ctx, v.node, name+"-"+v.claim, v.claimSize(ctx), v, ofSnapshot(snapshots[v.claim]))
		Expect(err).NotTo(HaveOccurred())
		lines[i] = r.lines(ctx)
		Expect(r.stop(ctx)).To(Succeed())
	}
	return lines
}

func (v *vol) claimSize(ctx context.Context) string {
	GinkgoHelper()
	var claim corev1.PersistentVolumeClaim
	Expect(k.API.Get(ctx, client.ObjectKey{Namespace: v.space.name, Name: v.claim}, &claim)).To(Succeed())
	return claim.Spec.Resources.Requests.Storage().String()
}

// expectOnePoint makes a group while the pods write in turn, and counts what it has.
func (t *turns) expectOnePoint(ctx context.Context, class, name string) *groupsnapshotv1.VolumeGroupSnapshot {
	GinkgoHelper()
	s := t.volumes[0].space
	before := int(t.acked.Load())
	g := s.group(ctx, class, name, s.name)
	awaitGroup(ctx, g)
	t.goesOn(ctx)
	after := int(t.acked.Load())
	lines := t.restored(ctx, name, members(ctx, g, 2))
	GinkgoWriter.Printf("group %s has %v lines; %d turns were over before, %d after\n", name, lines, before, after)
	Expect(inOrder(lines[0], lines[1])).To(BeTrue(), "%v", lines)
	Expect(lines[1]).To(And(BeNumerically(">=", before), BeNumerically("<=", after)))
	return g
}

// expectApart makes snapshots one after the other, which are of two points in time: what the
// groups are judged by finds it.
func (t *turns) expectApart(ctx context.Context, class string) {
	GinkgoHelper()
	alone := map[string]string{}
	for _, v := range t.volumes {
		_, err := v.snapshot(ctx, class, "alone-"+v.claim)
		Expect(err).NotTo(HaveOccurred())
		alone[v.claim] = "alone-" + v.claim
		t.goesOn(ctx)
	}
	lines := t.restored(ctx, "apart", alone)
	Expect(inOrder(lines[0], lines[1])).To(BeFalse(), "%v", lines)
}

// expectDeleted deletes a group, and its members with it.
func expectDeleted(ctx context.Context, g *groupsnapshotv1.VolumeGroupSnapshot, names map[string]string) {
	GinkgoHelper()
	Expect(k.DeleteAndWait(ctx, g, late)).To(Succeed())
	for _, name := range names {
		s := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}}
		Expect(k.DeleteAndWait(ctx, s, late)).To(Succeed())
	}
}

var _ = Describe("A group of snapshots", Label("snapshot", "lab", "slow"), func() {
	It("is of one point in time on two nodes; a storage too slow for it makes none", func(ctx SpecContext) {
		s := newSpace(ctx)
		var volumes []*vol
		for i, name := range []string{"log", "data"} {
			v, err := s.volume(ctx, volumeSpec{name: name, mode: v1alpha1.CacheModeWriteback, kind: ext4})
			Expect(err).NotTo(HaveOccurred())
			v.patience = backedOff
			Expect(v.start(ctx, []string{nodeA, nodeB}[i])).To(Succeed())
			volumes = append(volumes, v)
		}
		s.joins(ctx, s.name, volumes...)
		t := inTurn(ctx, volumes[0], volumes[1])
		class := s.groupClass(ctx, nil)

		By("making a group")
		g := t.expectOnePoint(ctx, class, "first")
		names := members(ctx, g, 2)

		By("making snapshots one by one")
		t.expectApart(ctx, s.snapshotClass(ctx, frozenClass(nil)))

		By("asking for a group while the storage takes longer than a filesystem is frozen")
		goOn := slowStorage(ctx)
		slow := s.group(ctx, class, "slow", s.name)
		for _, v := range volumes {
			v.awaitFreeze(ctx, v1alpha1.FreezeStateFailed)
		}
		t.goesOn(ctx)
		why, err := groupReady(ctx, slow)
		Expect(err).NotTo(HaveOccurred())
		Expect(why).NotTo(BeEmpty(), "a group that was not of one point in time")
		goOn(ctx)
		slowFrom := int(t.acked.Load())
		awaitGroup(ctx, slow)
		lines := t.restored(ctx, "slow", members(ctx, slow, 2))
		Expect(inOrder(lines[0], lines[1])).To(BeTrue(), "%v", lines)
		GinkgoWriter.Printf("group slow has %v lines; %d turns were over when the storage went on\n", lines, slowFrom)
		t.end(ctx)

		By("deleting a group")
		expectDeleted(ctx, g, names)
		for _, v := range volumes {
			v.awaitThawed(ctx)
		}
	}, NodeTimeout(2*specLimit))
})

var _ = Describe("A group of snapshots over Ceph RBD", Label("origin-ceph", "lab", "slow"), func() {
	It("is of one point in time on two nodes", func(ctx SpecContext) {
		s := newSpace(ctx)
		origin := map[string]string{"originSnapshotClass": cephRBD.class}
		var volumes []*vol
		for i, name := range []string{"log", "data"} {
			v, err := s.cachedOrigin(ctx, cephRBD, volumeSpec{name: name, mode: v1alpha1.CacheModeWriteback}, []string{nodeA, nodeB}[i])
			Expect(err).NotTo(HaveOccurred())
			v.patience = backedOff
			volumes = append(volumes, v)
		}
		s.joins(ctx, s.name, volumes...)
		t := inTurn(ctx, volumes[0], volumes[1])
		g := t.expectOnePoint(ctx, s.groupClass(ctx, origin), "first")
		t.expectApart(ctx, s.snapshotClass(ctx, frozenClass(origin)))
		t.end(ctx)
		expectDeleted(ctx, g, members(ctx, g, 2))
	}, NodeTimeout(2*specLimit))
})
