//go:build e2e

package e2e

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nearflash/nearflash/e2e/cluster"
)

// k is the cluster under test; BeforeSuite sets it.
var k *cluster.Cluster

// nodeA and nodeB are two workers with a pool each; BeforeSuite sets them.
var nodeA, nodeB string

// servers are the machines that are storage servers; BeforeSuite sets them.
var servers []string

// Limits of waiting. They only bound a failing spec: nothing is asserted about
// how long anything takes.
const (
	// soon bounds what takes seconds: a pod start, an event, a claim.
	soon = 90 * time.Second
	// late bounds what a restart of a plugin or a machine is part of, or a loop of
	// the driver that runs every now and then.
	late = 4 * time.Minute
	// specLimit bounds one spec.
	specLimit = 10 * time.Minute
)

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	log.SetLogger(klog.Background())
	RunSpecs(t, "nearflash in a cluster")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	k, err = cluster.Connect(ctx, cluster.DefaultOptions())
	Expect(err).NotTo(HaveOccurred())
	Expect(len(k.Workers)).To(BeNumerically(">=", 2), "workers with the driver: %v", k.Workers)
	nodeA, nodeB = k.Workers[0], k.Workers[1]
	servers = []string{cluster.StorageMachine}
	if hasSecond(ctx) {
		servers = append(servers, secondServer.machine)
	}
}, NodeTimeout(5*time.Minute))

// What crashes machines, cuts networks or counts on a kernel for each node has the
// label lab. It fails at once where it cannot be meant.
var _ = BeforeEach(func() {
	if slices.Contains(CurrentSpecReport().Labels(), "lab") {
		Expect(k.Lab).NotTo(BeNil(), "%v; leave the spec out with the label filter !lab", cluster.ErrNoLab)
	}
})

// Retained caches are given up some time after their volume was deleted, so that
// nothing at all being left is checked once, at the end.
var _ = AfterSuite(func(ctx SpecContext) {
	if k == nil {
		return
	}
	Expect(awaitNothingLeft(ctx, late)).To(Succeed())
}, NodeTimeout(5*time.Minute))
