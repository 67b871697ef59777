//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/e2e/cluster"
)

// desk is the folder on the storage server, which is no node, from which an administrator types:
// unlike this program, it can be cut off from the API server.
const desk = "/var/tmp/desk"

// setDesk brings the plugin and a kubeconfig there until the spec ends.
func setDesk(ctx context.Context) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) {
		Expect(k.Lab.Heal(ctx)).To(Succeed())
		_, err := k.Host.Run(ctx, cluster.StorageMachine, "rm -rf "+desk)
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(soon))
	program, err := os.ReadFile(os.Getenv(pluginVariable))
	Expect(err).NotTo(HaveOccurred(), pluginVariable)
	config, err := exec.CommandContext(ctx, "kubectl", "config", "view", "--raw", "--flatten").Output()
	Expect(err).NotTo(HaveOccurred())
	for name, content := range map[string][]byte{"kubectl-nearflash": program, "kubeconfig": config} {
		_, err := k.Lab.RunInput(ctx, cluster.StorageMachine, fmt.Sprintf("umask 077; mkdir -p %s; cat >%s/%s; chmod 0700 %s/%s", desk, desk, name, desk, name), content)
		Expect(err).NotTo(HaveOccurred())
	}
}

// atDesk runs the plugin there. Its own failure is no error, but a status.
func atDesk(ctx context.Context, args ...string) (output string, status int, err error) {
	script := fmt.Sprintf("cd %s; ./kubectl-nearflash --kubeconfig=kubeconfig %s 2>&1; echo \"status $?\"", desk, strings.Join(args, " "))
	out, err := k.Host.Run(ctx, cluster.StorageMachine, script)
	if err != nil {
		return out, 0, err
	}
	at := strings.LastIndex(out, "status ")
	if at < 0 {
		return out, 0, fmt.Errorf("no status in %q", out)
	}
	_, err = fmt.Sscanf(out[at:], "status %d", &status)
	return out[:at], status, err
}

// cutAt runs a command at the desk and cuts it off from the API server once something is so there.
// It returns whether that has ended it.
func cutAt(ctx context.Context, is func(context.Context) (bool, error), args ...string) bool {
	GinkgoHelper()
	type answer struct {
		output string
		status int
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		a.output, a.status, a.err = atDesk(ctx, args...)
		done <- a
	}()
	Expect(cluster.AwaitEvery(ctx, cutPace, soon, func(ctx context.Context) (string, error) {
		now, err := is(ctx)
		if err == nil && !now {
			return "the command has not come so far", nil
		}
		return "", err
	})).To(Succeed())
	Expect(k.Lab.Cut(ctx, cluster.StorageMachine, "api")).To(Succeed())
	var a answer
	Eventually(done).WithContext(ctx).WithTimeout(late).Should(Receive(&a), "a command that is cut off must end by itself")
	Expect(k.Lab.Heal(ctx)).To(Succeed())
	Expect(a.err).NotTo(HaveOccurred())
	GinkgoWriter.Printf("%v, cut off: status %d\n%s", args, a.status, a.output)
	if a.status != 0 {
		Expect(a.output).To(ContainSubstring("nothing is lost, and the same command goes on"))
	}
	return a.status != 0
}

// cutPace is how often it is looked whether a command is to be cut off.
const cutPace = 20 * time.Millisecond

// gone says whether an object is not there, or another than the one that is known.
func gone(obj client.Object) func(context.Context) (bool, error) {
	uid := obj.GetUID()
	return func(ctx context.Context) (bool, error) {
		err := k.API.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return err == nil && obj.GetUID() != uid, err
	}
}

// journalled says whether an adoption has begun.
func journalled(ctx context.Context) (bool, error) {
	var journals corev1.ConfigMapList
	err := k.API.List(ctx, &journals, client.InNamespace(originsNamespace), client.HasLabels{"nearflash.io/adoption"})
	return len(journals.Items) > 0, err
}

var _ = Describe("Who adopts a claim and gives it back", Label("origin", "lab", "slow"), Serial, func() {
	It("is cut off from the API server in the middle, again and again, and goes on without loss", func(ctx SpecContext) {
		s := newSpace(ctx)
		setDesk(ctx)
		v, err := s.originVolume(ctx, pd, "cut", nodeA, false)
		Expect(err).NotTo(HaveOccurred())
		before, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())
		awaitDetached(ctx, before.Name)
		claim := &corev1.PersistentVolumeClaim{}
		Expect(k.API.Get(ctx, client.ObjectKey{Namespace: s.name, Name: v.claim}, claim)).To(Succeed())
		adopt := []string{"adopt", "-n", s.name, v.claim, "--yes"}

		By("adopting it")
		hit := cutAt(ctx, journalled, adopt...)
		hit = cutAt(ctx, gone(claim.DeepCopy()), adopt...) || hit
		hit = cutAt(ctx, gone(before.DeepCopy()), adopt...) || hit
		Expect(hit).To(BeTrue(), "each time the command was through before it was cut off")
		out, status, err := atDesk(ctx, adopt...)
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(0), out)
		front, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(front.Spec.CSI.Driver).To(Equal(cluster.DriverName))
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		more, err := v.write(ctx, 16, 16)
		Expect(err).NotTo(HaveOccurred())
		block, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())
		awaitDetached(ctx, front.Name)
		awaitDetached(ctx, block.Name)

		By("giving it back")
		Expect(k.API.Get(ctx, client.ObjectKey{Namespace: s.name, Name: v.claim}, claim)).To(Succeed())
		release := []string{"release", "-n", s.name, v.claim, "--yes"}
		hit = cutAt(ctx, gone(claim.DeepCopy()), release...)
		hit = cutAt(ctx, gone(block.DeepCopy()), release...) || hit
		Expect(hit).To(BeTrue(), "each time the command was through before it was cut off")
		out, status, err = atDesk(ctx, release...)
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(0), out)
		Expect(journalled(ctx)).To(BeFalse(), "the journal goes with the adoption")
		after, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(after.Name).To(Equal(before.Name))
		Expect(after.Spec.CSI.VolumeHandle).To(Equal(before.Spec.CSI.VolumeHandle))
		Expect(after.Spec.PersistentVolumeReclaimPolicy).To(Equal(before.Spec.PersistentVolumeReclaimPolicy))

		By("reading it without nearflash")
		Expect(v.start(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(v.verify(ctx, 16, 16, more)).To(Succeed())
		expectGone(ctx, v)
	}, NodeTimeout(3*specLimit))
})
