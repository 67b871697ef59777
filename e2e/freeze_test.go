//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/pkg/freeze"
)

// frozenClass are the parameters of a class whose snapshots are of a frozen filesystem.
func frozenClass(more map[string]string) map[string]string {
	out := map[string]string{"freeze": "true"}
	for key, value := range more {
		out[key] = value
	}
	return out
}

const (
	// appended is what the writer appends to, and each line of it is lineBytes long.
	appended  = cluster.MountPath + "/log"
	lineBytes = 64
	// appends writes numbered lines without a pause, syncs none of them, and notes outside of the
	// volume when each was acknowledged.
	appends = `
exec 3>` + appended + ` 4>/tmp/acked
n=0
while [[ ! -e /tmp/stop ]]; do
  printf '%-63d\n' $((++n)) >&3
  printf '%d %s\n' $n $EPOCHREALTIME >&4
done`
	// countLines prints how many lines the file $log has, and fails unless they are what was
	// appended, in its order.
	countLines = `
n=$(($(stat -c %s "$log") / 64))
seq -f '%-63.0f' 1 $n | cmp - "$log"
echo $n`
)

// appender is a pod that writes without a pause.
type appender struct {
	v     *vol
	ended chan error
}

func (v *vol) appends(ctx context.Context) *appender {
	GinkgoHelper()
	a := &appender{v: v, ended: make(chan error, 1)}
	go func() {
		_, err := v.run(ctx, appends)
		a.ended <- err
	}()
	a.goesOn(ctx)
	return a
}

// acked is the number of lines that were acknowledged.
func (a *appender) acked(ctx context.Context) int {
	GinkgoHelper()
	out, err := a.v.run(ctx, "tail -n 1 /tmp/acked")
	Expect(err).NotTo(HaveOccurred())
	n, _, _ := strings.Cut(out, " ")
	if n == "" {
		return 0
	}
	count, err := strconv.Atoi(n)
	Expect(err).NotTo(HaveOccurred())
	return count
}

// goesOn waits for further lines.
func (a *appender) goesOn(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() error { _, err := a.v.run(ctx, "test -s /tmp/acked"); return err }).WithContext(ctx).WithTimeout(soon).Should(Succeed())
	before := a.acked(ctx)
	Eventually(a.acked).WithContext(ctx).WithTimeout(soon).Should(BeNumerically(">", before))
}

// end ends the writer, and returns when each line was acknowledged.
func (a *appender) end(ctx context.Context) []time.Duration {
	GinkgoHelper()
	_, err := a.v.run(ctx, "touch /tmp/stop")
	Expect(err).NotTo(HaveOccurred())
	Eventually(a.ended).WithContext(ctx).WithTimeout(soon).Should(Receive(BeNil()))
	out, err := a.v.run(ctx, "cut -d' ' -f2 /tmp/acked")
	Expect(err).NotTo(HaveOccurred())
	var at []time.Duration
	for line := range strings.Lines(out) {
		seconds, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		Expect(err).NotTo(HaveOccurred())
		at = append(at, time.Duration(seconds*float64(time.Second)))
	}
	return at
}

// longest is the longest pause between the lines from and to.
func longest(at []time.Duration, from, to int) time.Duration {
	out := time.Duration(0)
	for n := max(from, 1); n < min(to, len(at)); n++ {
		out = max(out, at[n]-at[n-1])
	}
	return out
}

// needsRecovery tells by the first superblock of ext4 whether its journal has to be replayed:
// the bit INCOMPAT_RECOVER of s_feature_incompat (fs/ext4/ext4.h). from is a program that prints
// the device's first bytes.
func needsRecovery(ctx context.Context, run func(context.Context, string) (string, error), from string) bool {
	GinkgoHelper()
	out, err := run(ctx, from+" | od -An -tx1 -j1080 -N44")
	Expect(err).NotTo(HaveOccurred())
	b := strings.Fields(out)
	Expect(b).To(HaveLen(44))
	Expect(b[:2]).To(Equal([]string{"53", "ef"}), "this is no ext4")
	incompat, err := strconv.ParseUint(b[40], 16, 8) // at 1120
	Expect(err).NotTo(HaveOccurred())
	return incompat&4 != 0
}

// freezes are the orders and the guards of freezes that the node has.
func (v *vol) freezes(ctx context.Context) (string, error) {
	return k.Host.Run(ctx, v.node, `cd /var/lib/nearflash/freezes || exit 1
ls
for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline 2>/dev/null && echo; done | grep '[n]earflash-node freeze' || true`)
}

// awaitThawed waits until the node has none.
func (v *vol) awaitThawed(ctx context.Context) {
	GinkgoHelper()
	Eventually(v.freezes).WithContext(ctx).WithTimeout(soon).Should(BeEmpty())
}

// awaitFreeze waits for what the node says of a freeze.
func (v *vol) awaitFreeze(ctx context.Context, s v1alpha1.FreezeState) {
	GinkgoHelper()
	Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		if cv.Status.Freeze.State != s {
			return "the node does not say " + string(s)
		}
		return ""
	})).To(Succeed())
}

// onStorage is the device of a volume that no node has, on the storage server.
func (v *vol) onStorage() string { return "/dev/storage/nf-" + v.Handle }

func runOn(machine string) func(context.Context, string) (string, error) {
	return func(ctx context.Context, script string) (string, error) {
		return k.Host.Run(ctx, machine, "set -euo pipefail\n"+script)
	}
}

// linesUnreplayed are the lines that a volume has without a replay of its journal.
func (v *vol) linesUnreplayed(ctx context.Context) int {
	GinkgoHelper()
	out, err := runOn(cluster.StorageMachine)(ctx, fmt.Sprintf(`
dir=$(mktemp -d)
mount -t ext4 -o ro,noload %s $dir
trap 'umount $dir; rmdir $dir' EXIT
log=$dir/log`, v.onStorage())+countLines)
	Expect(err).NotTo(HaveOccurred())
	n, err := strconv.Atoi(strings.TrimSpace(out))
	Expect(err).NotTo(HaveOccurred())
	return n
}

// lines are those that the pod of a volume reads.
func (v *vol) lines(ctx context.Context) int {
	GinkgoHelper()
	out, err := v.run(ctx, "log="+appended+countLines)
	Expect(err).NotTo(HaveOccurred())
	n, err := strconv.Atoi(out)
	Expect(err).NotTo(HaveOccurred())
	return n
}

// frozenSnapshot makes a snapshot below the writer, which goes on, and returns how many lines were
// acknowledged before it was asked for, and after it was there.
func (a *appender) frozenSnapshot(ctx context.Context, class, name string) (before, after int) {
	GinkgoHelper()
	before = a.acked(ctx)
	_, err := a.v.snapshot(ctx, class, name)
	Expect(err).NotTo(HaveOccurred())
	after = a.acked(ctx)
	a.goesOn(ctx)
	a.v.awaitFreeze(ctx, v1alpha1.FreezeStateHeld)
	a.v.awaitThawed(ctx)
	return before, after
}

// slowStorage has LVM on the storage server wait with every change of its volume group until it
// is told to go on: a shared lock on the group keeps those out that want it for themselves.
func slowStorage(ctx context.Context) (goOn func(context.Context)) {
	GinkgoHelper()
	const flag = "/run/nearflash-e2e-slow"
	ended := make(chan error, 1)
	goOn = func(ctx context.Context) {
		_, err := k.Host.Run(ctx, cluster.StorageMachine, "rm -f "+flag)
		Expect(err).NotTo(HaveOccurred())
	}
	_, err := k.Host.Run(ctx, cluster.StorageMachine, "touch "+flag)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { goOn(ctx) }, NodeTimeout(soon))
	go func() {
		_, err := k.Host.Run(ctx, cluster.StorageMachine, `
until exec 9>>/run/lock/lvm/V_storage; flock --shared 9; [[ /proc/self/fd/9 -ef /run/lock/lvm/V_storage ]]; do :; done # LVM removes it
touch `+flag+`.locked
while [[ -e `+flag+` ]]; do sleep 0.1; done
rm `+flag+`.locked`)
		ended <- err
	}()
	Expect(cluster.Await(ctx, soon, func(ctx context.Context) (string, error) {
		select {
		case err := <-ended:
			return "", errors.Join(err, errors.New("the lock was not kept"))
		default:
		}
		_, err := k.Host.Run(ctx, cluster.StorageMachine, "test -e "+flag+".locked")
		if err != nil {
			return "the volume group is not locked: " + err.Error(), nil
		}
		return "", nil
	})).To(Succeed())
	return goOn
}

var _ = Describe("A snapshot of a frozen filesystem", Label("snapshot", "lab", "slow"), func() {
	It("needs no journal, and has what a pod wrote that never pauses; a storage too slow for it makes none", func(ctx SpecContext) {
		s := newSpace(ctx)
		plain, frozen := s.snapshotClass(ctx, nil), s.snapshotClass(ctx, frozenClass(nil))
		v, err := s.volume(ctx, volumeSpec{name: "data", mode: v1alpha1.CacheModeWriteback, kind: ext4})
		Expect(err).NotTo(HaveOccurred())
		v.patience = backedOff // a busy lab needs more than five seconds now and then, and waits longer each time
		Expect(v.start(ctx, nodeA)).To(Succeed())
		a := v.appends(ctx)

		By("taking one of each class")
		_, err = v.snapshot(ctx, plain, "plain")
		Expect(err).NotTo(HaveOccurred())
		before, after := a.frozenSnapshot(ctx, frozen, "frozen")

		By("taking one while the storage takes longer than a filesystem is frozen")
		goOn := slowStorage(ctx)
		slowFrom := a.acked(ctx)
		made := make(chan error, 1)
		go func() {
			_, err := v.snapshot(ctx, frozen, "slow")
			made <- err
		}()
		Eventually(v.freezes).WithContext(ctx).WithPolling(100*time.Millisecond).WithTimeout(late).Should(
			And(ContainSubstring(".order"), ContainSubstring("nearflash-node freeze")), "an order and its guard")
		v.awaitFreeze(ctx, v1alpha1.FreezeStateFailed)
		a.goesOn(ctx) // while nothing was cut
		slowTo := a.acked(ctx)
		Expect(made).NotTo(Receive())
		v.awaitThawed(ctx)
		goOn(ctx)
		Eventually(made).WithContext(ctx).WithTimeout(backedOff).Should(Receive(BeNil()))
		a.goesOn(ctx)
		v.awaitFreeze(ctx, v1alpha1.FreezeStateHeld)
		at := a.end(ctx)

		By("comparing what they have")
		noise := longest(at, 0, before)
		GinkgoWriter.Printf("longest pause of the pod: %s before, %s with a frozen snapshot, %s with a storage too slow\n",
			noise, longest(at, before, after), longest(at, slowFrom, slowTo))
		Expect(longest(at, before, after)).To(BeNumerically("<", freeze.Limit+noise))
		Expect(longest(at, slowFrom, slowTo)).To(BeNumerically("<", freeze.Limit+noise))
		for name, asked := range map[string]int{"frozen": before, "slow": slowTo} {
			restored, err := s.made(ctx, "restored-"+name, "320Mi", v, ofSnapshot(name))
			Expect(err).NotTo(HaveOccurred())
			Expect(needsRecovery(ctx, runOn(cluster.StorageMachine), "head -c 4096 "+restored.onStorage())).To(BeFalse(), name)
			n := restored.linesUnreplayed(ctx)
			Expect(n).To(BeNumerically(">=", asked), name)
			Expect(n).To(BeNumerically("<=", len(at)), name)
			GinkgoWriter.Printf("%s has %d lines, %d were acknowledged before; the next one was %s later\n", name, n, asked, longest(at, n, n+1))
			Expect(restored.start(ctx, nodeA)).To(Succeed())
			Expect(restored.lines(ctx)).To(Equal(n), name)
		}
		unfrozen, err := s.made(ctx, "restored-plain", "320Mi", v, ofSnapshot("plain"))
		Expect(err).NotTo(HaveOccurred())
		Expect(needsRecovery(ctx, runOn(cluster.StorageMachine), "head -c 4096 "+unfrozen.onStorage())).To(BeTrue(), "one that was not frozen has to be told")
	}, NodeTimeout(2*specLimit))
})

var _ = Describe("A snapshot of a frozen filesystem over Ceph RBD", Label("origin-ceph", "lab", "slow"), func() {
	It("needs no journal, and has what a pod wrote that never pauses", func(ctx SpecContext) {
		s := newSpace(ctx)
		origin := map[string]string{"originSnapshotClass": cephRBD.class}
		plain, frozen := s.snapshotClass(ctx, origin), s.snapshotClass(ctx, frozenClass(origin))
		v, err := s.cachedOrigin(ctx, cephRBD, volumeSpec{name: "parent", mode: v1alpha1.CacheModeWriteback}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		pv, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		v.patience = backedOff
		a := v.appends(ctx)
		snaps := func() (names []string) {
			var list []struct {
				Name string `json:"name"`
			}
			Expect(cephJSON(ctx, &list, "rbd", "snap", "ls", image(pv.Name))).To(Succeed())
			for _, snap := range list {
				names = append(names, snap.Name)
			}
			return names
		}
		onCeph := func(ctx context.Context, script string) (string, error) { return k.Lab.Ceph(ctx, "bash", "-c", script) }
		first := func(snap string) string {
			return fmt.Sprintf("rbd export --no-progress %s@%s - 2>/dev/null | head -c 4096", image(pv.Name), snap)
		}

		By("taking one of each class")
		_, err = v.snapshot(ctx, plain, "plain")
		Expect(err).NotTo(HaveOccurred())
		unfrozen := snaps()
		Expect(unfrozen).To(HaveLen(1))
		before, after := a.frozenSnapshot(ctx, frozen, "frozen")
		at := a.end(ctx)
		noise := longest(at, 0, before)
		GinkgoWriter.Printf("longest pause of the pod: %s before, %s with a frozen snapshot\n", noise, longest(at, before, after))
		Expect(longest(at, before, after)).To(BeNumerically("<", freeze.Limit+noise))

		By("comparing what they have")
		Expect(needsRecovery(ctx, onCeph, first(unfrozen[0]))).To(BeTrue(), "one that was not frozen has to be told")
		for _, snap := range snaps() {
			if snap != unfrozen[0] {
				Expect(needsRecovery(ctx, onCeph, first(snap))).To(BeFalse())
			}
		}
		Expect(snaps()).To(HaveLen(2))
		restored, err := s.madeOn(ctx, nodeA, "restored", "1Gi", v, ofSnapshot("frozen"))
		Expect(err).NotTo(HaveOccurred())
		Expect(restored.lines(ctx)).To(And(BeNumerically(">=", before), BeNumerically("<=", len(at))))
	}, NodeTimeout(2*specLimit))
})
