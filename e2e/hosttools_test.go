//go:build e2e

package e2e

import (
	"fmt"
	"path"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/preflight/hosttools"
)

// The lab's nodes run udev with the rules of LVM, and the plugin writes its own (node.udevRule).
// What they do without it is asked too, so that the spec knows that they would have looked.
var _ = Describe("The tools of a node", Label("host-tools", "lab", "slow"), func() {
	It("leave alone what pods write, by the plugin's rule of udev", func(ctx SpecContext) {
		const uuid = "6e656172-666c-4173-a800-000000000001"
		// unseen has LVM activate at the next event what it has noted as activated (pvscan(8)).
		const unseen = "rm -f /run/lvm/pvs_online/* /run/lvm/vgs_online/*"
		// udev remembers of a device what the rule said of it: the volumes come without the rule.
		By("taking the rule away")
		victim, err := k.NodePlugin(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		_, err = k.Host.Run(ctx, nodeA, "rm -f "+path.Join(hosttools.RuleDir, hosttools.RuleFile)+" && udevadm control --reload")
		Expect(err).NotTo(HaveOccurred())
		placed := func(ctx SpecContext) {
			Expect(replacePlugin(ctx, victim)).To(Succeed())
			Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		}

		By("writing a filesystem, and a physical volume of LVM")
		s := newSpace(ctx)
		group := strings.ReplaceAll(s.name, "-", "")
		DeferCleanup(func(ctx SpecContext) {
			if !CurrentSpecReport().Failed() {
				return
			}
			placed(ctx)
			// It would keep the volume from leaving.
			_, err := k.Host.Run(ctx, nodeA, "dmsetup remove "+group+"-pod || true")
			Expect(err).NotTo(HaveOccurred())
		}, NodeTimeout(specLimit))
		spec := volumeSpec{name: "filesystem", mode: v1alpha1.CacheModeWriteback, kind: block, size: "64Mi", cacheSize: "32Mi"}
		filesystem, err := s.volume(ctx, spec)
		Expect(err).NotTo(HaveOccurred())
		spec.name = "member"
		member, err := s.volume(ctx, spec)
		Expect(err).NotTo(HaveOccurred())
		for _, v := range []*vol{filesystem, member} {
			Expect(v.start(ctx, nodeA)).To(Succeed())
		}
		_, err = filesystem.run(ctx, "mkfs.ext4 -q -U "+uuid+" "+filesystem.path())
		Expect(err).NotTo(HaveOccurred())
		// The pods' image has no LVM: their node writes what a pod with one would.
		// The devices below have the same bytes, and LVM must not see these twice.
		_, err = k.Host.Run(ctx, nodeA, fmt.Sprintf(`set -e
only='devices/filter=["a|^/dev/mapper/nf-%[2]s$|","r|.*|"]'
vgcreate -q --config "$only" %[1]s /dev/mapper/nf-%[2]s
lvcreate -q --config "$only" -n pod -l 1 %[1]s
vgchange -q --config "$only" -an %[1]s
# There are events of the volume while it leaves, which it could not if LVM activated it then.
mkdir -p /run/lvm/vgs_online
touch /run/lvm/vgs_online/%[1]s
udevadm settle --timeout=60
dmsetup remove %[1]s-pod 2>/dev/null || true`, group, member.Handle))
		Expect(err).NotTo(HaveOccurred())

		// looked says what has come of udev's look: the link by the filesystem's UUID, and the
		// logical volume, which would keep the volume from leaving.
		looked := func(ctx SpecContext) string {
			GinkgoHelper()
			out, err := k.Host.Run(ctx, nodeA, fmt.Sprintf(`udevadm settle --timeout=60 || exit
if [ -e /dev/disk/by-uuid/%s ]; then echo link; fi
if dmsetup remove %s-pod 2>/dev/null; then echo logical volume; fi`, uuid, group))
			Expect(err).NotTo(HaveOccurred())
			return out
		}
		attached := func(ctx SpecContext) {
			GinkgoHelper()
			for _, v := range []*vol{filesystem, member} {
				Expect(v.stop(ctx)).To(Succeed())
			}
			_, err := k.Host.Run(ctx, nodeA, unseen)
			Expect(err).NotTo(HaveOccurred())
			for _, v := range []*vol{filesystem, member} {
				Expect(v.start(ctx, nodeA)).To(Succeed())
			}
		}

		By("attaching them")
		attached(ctx)
		Expect(looked(ctx)).To(Equal("link\nlogical volume\n"))

		By("having the plugin write the rule when it starts")
		placed(ctx)
		_, err = k.Host.Run(ctx, nodeA, unseen+" && udevadm trigger --settle --subsystem-match=block")
		Expect(err).NotTo(HaveOccurred())
		Expect(looked(ctx)).To(BeEmpty(), "the rule holds with the next event of what is there")

		By("attaching them by the rule")
		attached(ctx)
		Expect(looked(ctx)).To(BeEmpty())
		Expect(filesystem.run(ctx, "blkid -p -s UUID -o value "+filesystem.path())).To(Equal(uuid))
	}, NodeTimeout(specLimit))
})
