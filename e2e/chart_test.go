//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("The chart", Label("chart"), func() {
	It("finds by helm test that everything it has installed works together", func(ctx SpecContext) {
		pods, err := k.DriverPods(ctx)
		Expect(err).NotTo(HaveOccurred())
		test := exec.CommandContext(ctx, "helm", "test", "nearflash", "--namespace", pods[0].Namespace, "--logs", "--timeout", late.String())
		out, err := test.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		Expect(string(out)).To(And(ContainSubstring("Phase:          Succeeded"), Not(ContainSubstring("WRONG"))))
		for _, node := range k.Workers {
			Expect(string(out)).To(ContainSubstring(fmt.Sprintf("the kubelet of node %s knows the driver", node)))
		}
	}, NodeTimeout(specLimit))
})
