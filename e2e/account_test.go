//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/loginaccount"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ = Describe("The account of a volume", Label("account", "lab"), func() {
	It("is of its node alone: root on another one cannot log in", Label("turn-2"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v := s.inUse(ctx, "theirs", v1alpha1.CacheModeWritethrough)
		sum, err := v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		node, evil := v.node, nodeB
		if node == evil {
			evil = nodeA
		}
		at, fence := attachmentOf(ctx, v)
		Expect(at).To(HaveKey("loginKey"), "the volume has an account of its own")
		pool, err := poolOf(ctx, node)
		Expect(err).NotTo(HaveOccurred())

		By("logging in with all that the other node has")
		own, err := k.Host.Run(ctx, evil, "cat /var/lib/nearflash/login.key")
		Expect(err).NotTo(HaveOccurred())
		key, err := keyagreement.Parse(own)
		Expect(err).NotTo(HaveOccurred())
		derived, err := loginaccount.AtNode(key, at["loginKey"], loginaccount.Admission{Volume: volume.ID(v.Handle), Fence: fence})
		Expect(err).NotTo(HaveOccurred())
		played, err := loginaccount.AtNode(key, pool.Status.LoginPublicKey, loginaccount.Admission{Volume: volume.ID(v.Handle), Fence: fence})
		Expect(err).NotTo(HaveOccurred())
		accounts := []volume.Credentials{derived, played, secretAccount(ctx)}
		// As the server knows it, with the passwords that the node has.
		name, err := k.Host.Run(ctx, node, fmt.Sprintf("sed -n 's/^node.session.auth.username = //p' $(find /var/lib/iscsi/nodes/%s -type f | head -1)", at["iqn"]))
		Expect(err).NotTo(HaveOccurred())
		for _, known := range accounts[:3] {
			accounts = append(accounts, volume.Credentials{Username: strings.TrimSpace(name), Password: known.Password})
		}
		for _, account := range accounts {
			code, err := tryLogin(ctx, evil, pool.Status.InitiatorIQN, at, account)
			Expect(err).NotTo(HaveOccurred())
			Expect(code).To(Equal("24"), "the code of iscsiadm for a login that is not authorised, as %s", account.Username)
		}
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
	}, NodeTimeout(specLimit))

	It("is renewed for a node that has lost its key", Label("slow"), Serial, func(ctx SpecContext) {
		s := newSpace(ctx)
		v := s.inUse(ctx, "renewed", v1alpha1.CacheModeWritethrough)
		sum, err := v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		before, err := poolOf(ctx, v.node)
		Expect(err).NotTo(HaveOccurred())
		_, fence := attachmentOf(ctx, v)

		By("cutting its power: it comes back without its key, and without records of the initiator")
		_, err = k.Host.Run(ctx, v.node, "rm -rf /var/lib/nearflash/login.key /var/lib/iscsi/nodes/* && sync")
		Expect(err).NotTo(HaveOccurred())
		Expect(powerOff(ctx, v.node)).To(Succeed())
		Expect(k.Lab.Start(ctx, v.node)).To(Succeed())
		Eventually(ctx, func() (string, error) {
			pool, err := poolOf(ctx, v.node)
			return pool.Status.LoginPublicKey, err
		}).WithTimeout(late).ShouldNot(BeElementOf("", before.Status.LoginPublicKey))
		Expect(v.awaitReady(ctx)).To(Succeed())
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
		_, now := attachmentOf(ctx, v)
		Expect(now).To(Equal(fence), "the volume was not published anew")
	}, NodeTimeout(specLimit))
})

// attachmentOf returns the publish context of a volume that is attached once, and its ownership.
func attachmentOf(ctx context.Context, v *vol) (map[string]string, volume.Fence) {
	GinkgoHelper()
	all, err := k.Attachments(ctx, v.PV)
	Expect(err).NotTo(HaveOccurred())
	Expect(all).To(HaveLen(1))
	at := all[0].Status.AttachmentMetadata
	var generation int64
	_, err = fmt.Sscan(at["generation"], &generation)
	Expect(err).NotTo(HaveOccurred())
	return at, volume.Fence{UID: at["uid"], Generation: generation, Node: at["node"]}
}

// secretAccount is that of the Secret that the classes name.
func secretAccount(ctx context.Context) volume.Credentials {
	GinkgoHelper()
	secret := &corev1.Secret{}
	key := client.ObjectKey{
		Namespace: k.SecretParameters["csi.storage.k8s.io/node-stage-secret-namespace"], Name: k.SecretParameters["csi.storage.k8s.io/node-stage-secret-name"],
	}
	Expect(k.API.Get(ctx, key, secret)).To(Succeed())
	return volume.Credentials{Username: string(secret.Data["node.session.auth.username"]), Password: string(secret.Data["node.session.auth.password"])}
}

// tryLogin logs in by hand under the name of another initiator, and returns the exit code of
// iscsiadm. What it leaves on the machine is removed.
func tryLogin(ctx context.Context, machine, initiator string, at map[string]string, account volume.Credentials) (string, error) {
	portal, _, _ := strings.Cut(at["portals"], ",")
	out, err := k.Host.Run(ctx, machine, fmt.Sprintf(`set -e
adm() { iscsiadm --mode node --targetname %[1]s --portal %[2]s --interface e2e-evil "$@"; }
end() {
  adm --logout >/dev/null 2>&1 || true
  adm --op delete >/dev/null 2>&1 || true
  iscsiadm --mode iface --interface e2e-evil --op delete >/dev/null 2>&1 || true
}
trap end EXIT
iscsiadm --mode iface --interface e2e-evil --op new >&2
iscsiadm --mode iface --interface e2e-evil --op update --name iface.transport_name --value tcp >&2
iscsiadm --mode iface --interface e2e-evil --op update --name iface.initiatorname --value %[3]s >&2
adm --op new >&2
set_() { adm --op update --name "$1" --value "$2" >&2; }
set_ node.session.auth.authmethod CHAP
set_ node.session.auth.username '%[4]s'
set_ node.session.auth.password '%[5]s'
set_ node.session.initial_login_retry_max 1
code=0
adm --login >&2 || code=$?
echo $code`, at["iqn"], portal, initiator, account.Username, account.Password))
	return strings.TrimSpace(out), err
}
