//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// inPlugin begins a command that runs with the files of the node plugin's container: of the oldest of
// its processes, as commands that outlive the plugin are begun by another.
const inPlugin = `nsenter --target $(pgrep -o -x nearflash-node) --mount `

var _ = Describe("The alerts about what an SSD holds", Label("alerts", "metrics", "lab", "slow"), Serial, func() {
	It("fire for a failed cache that stays in use, and for a copy that stands still", func(ctx SpecContext) {
		s := newSpace(ctx)
		p := startPrometheus(ctx, s)

		By("failing the SSD below a writethrough cache, while no device gets another table")
		failed, err := s.volume(ctx, volumeSpec{name: "failed", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "64Mi", cacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		Expect(failed.start(ctx, nodeA)).To(Succeed())
		sum, err := failed.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())
		const dmsetup = `'cp -f $(command -v dmsetup) /tmp/dmsetup.real
printf "#!/bin/sh\ncase \"\$*\" in *load*) exit 1 ;; esac\nexec /tmp/dmsetup.real \"\$@\"\n" >/tmp/dmsetup
chmod 755 /tmp/dmsetup && mount --bind /tmp/dmsetup $(command -v dmsetup)'`
		end := caused(ctx, nodeA, inPlugin+"sh -c "+dmsetup, inPlugin+`sh -c 'umount $(command -v dmsetup) 2>/dev/null || true'`)
		mend, err := failLVUntil(ctx, nodeA, failed.Handle+".meta")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { _ = mend(ctx) }, NodeTimeout(soon)) // the cache may be gone by then
		_, _ = failed.write(ctx, 8, 8)                                           // it is what finds the SSD failing
		p.fires(ctx, "NearflashVolumeUnhealthy", map[string]string{"node": nodeA, "pvc": failed.claim, "severity": "warning"}, end)
		Expect(failed.verify(ctx, 0, 8, sum)).To(Succeed())
		Expect(failed.stop(ctx)).To(Succeed())

		By("holding up the SSD that a cache is copied to")
		parameters := maps.Clone(slowly)
		parameters["warmStartMethod"] = "clone"
		moved, err := s.volume(ctx, volumeSpec{name: "moved", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "100%", parameters: parameters})
		Expect(err).NotTo(HaveOccurred())
		moved.set = largeSet
		Expect(moved.start(ctx, nodeA)).To(Succeed())
		_, err = moved.write(ctx, 0, largeSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(moved.warmUp(ctx)).To(Succeed())
		Expect(moved.restart(ctx, nodeB)).To(Succeed())
		Expect(moved.awaitHydrating(ctx, 2)).To(Succeed())
		path := fmt.Sprintf(`$(lvs --noheadings -o lv_dm_path -S 'lv_name=%s.data' | tr -d ' ')`, moved.Handle)
		end = caused(ctx, nodeB, "dmsetup suspend --noflush --nolockfs "+path, "dmsetup resume "+path+" || true")
		p.fires(ctx, "NearflashHydrationStalled", map[string]string{"node": nodeB, "pvc": moved.claim}, end)
		_, err = moved.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(2*specLimit))

	It("fire for writes of which nobody knows whether they are wanted", func(ctx SpecContext) {
		s := newSpace(ctx)
		p := startPrometheus(ctx, s)
		v, err := s.volume(ctx, volumeSpec{name: "unknown", mode: v1alpha1.CacheModeWriteback, kind: block, size: "64Mi", cacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		_, err = k.Host.Run(ctx, nodeA, fmt.Sprintf("dmsetup message %s 0 migration_threshold 0", hoststate.TopDevice(v.Handle)))
		Expect(err).NotTo(HaveOccurred())
		Expect(v.makeDirty(ctx)).To(Succeed())
		sum, err := v.write(ctx, 4, 4)
		Expect(err).NotTo(HaveOccurred())

		By("losing the node, and the record")
		loseNode(ctx)
		v.takeFromLostNode(ctx)
		record, err := k.CachedVolume(ctx, v.Volume)
		Expect(err).NotTo(HaveOccurred())
		forgetLost(record)
		Expect(loseRecord(ctx, record.Name)).To(Succeed())

		By("bringing the node back without a way to the storage server")
		DeferCleanup(func(ctx SpecContext) { Expect(k.Lab.Heal(ctx)).To(Succeed()) }, NodeTimeout(soon))
		Expect(k.Lab.Cut(ctx, nodeA, cluster.StorageMachine)).To(Succeed())
		Expect(outOfService(ctx, nodeA, false)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		p.fires(ctx, "NearflashWritesKept", map[string]string{"node": nodeA, "severity": "critical"}, func(ctx context.Context) error {
			return errors.Join(k.Lab.Heal(ctx), restoreRecord(ctx, record))
		})
		Expect(v.start(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 4, 4, sum)).To(Succeed())
	}, NodeTimeout(2*specLimit))

	It("fire for an SSD that is worn out", func(ctx SpecContext) {
		s := newSpace(ctx)
		p := startPrometheus(ctx, s)

		By("having smartctl answer as a worn NVMe disk had it answer; virtual disks have no SMART")
		text, err := os.ReadFile(filepath.Join(checkout(), "pkg", "smart", "testdata", "nvme-worn.json"))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { Expect(restartPlugin(ctx, nodeB)).To(Succeed()) }, NodeTimeout(late))
		_, err = k.Lab.RunInput(ctx, nodeB, inPlugin+`sh -c 'cat >/tmp/worn.json
printf "#!/bin/sh\nexec cat /tmp/worn.json\n" >/tmp/smartctl
chmod 755 /tmp/smartctl && mount --bind /tmp/smartctl $(command -v smartctl)'`, text)
		Expect(err).NotTo(HaveOccurred())
		// A plugin asks its disks every ten minutes.
		Expect(p.awaitFiring(ctx, "NearflashSSDWearingOut", map[string]string{"node": nodeB}, 1, 10*time.Minute+late)).To(Succeed())
		Expect(restartPlugin(ctx, nodeB)).To(Succeed()) // with the files of the image
		Expect(p.awaitResolved(ctx, "NearflashSSDWearingOut")).To(Succeed())
	}, NodeTimeout(3*specLimit))
})

// restartPlugin ends the node plugin's process, and waits until another one serves.
func restartPlugin(ctx context.Context, node string) error {
	if _, err := k.Host.Run(ctx, node, "kill $(pidof nearflash-node)"); err != nil {
		return err
	}
	return k.AwaitDriver(ctx, late)
}

// loseRecord deletes the record of a volume as if it had never been.
func loseRecord(ctx context.Context, name string) error {
	lost := &v1alpha1.CachedVolume{}
	lost.Name = name
	if err := k.API.Patch(ctx, lost, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		return client.IgnoreNotFound(err)
	}
	return k.DeleteAndWait(ctx, lost, soon)
}
