package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// leavingPatience is how long the Node object is looked at: the kubelet writes that
	// the node is shut down while it begins to stop pods.
	leavingPatience, leavingPoll = 2 * time.Second, 200 * time.Millisecond
	// handOverTimeout bounds everything that is done for leases at the end. Kubelets
	// commonly give critical pods 10 s of a shutdown.
	handOverTimeout = 8 * time.Second

	// shuttingDown is what the kubelet says in the message of the condition Ready
	// (pkg/kubelet/nodeshutdown, ShutdownStatus); its reason is that of any other
	// trouble.
	shuttingDown = "node is shutting down"
)

// leaving says why a node is about to go, "" if nothing says so: the table of
// states.md, A node that is shut down. That no pod is to be scheduled to it says
// nothing: a node is cordoned for a drain, in which its caches are needed.
func leaving(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, shuttingDown) {
			return fmt.Sprintf("node %s is shutting down", n.Name)
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeOutOfService {
			return fmt.Sprintf("node %s is out of service", n.Name)
		}
	}
	if n.DeletionTimestamp != nil {
		return fmt.Sprintf("node %s is being deleted", n.Name)
	}
	return ""
}

// awaitLeaving reads a Node until something says that the node goes, or for
// leavingPatience. A node that cannot be read goes nowhere.
func awaitLeaving(ctx context.Context, api client.Reader, name string) (reason string) {
	_ = wait.PollUntilContextTimeout(ctx, leavingPoll, leavingPatience, true, func(ctx context.Context) (bool, error) {
		n := &corev1.Node{}
		err := api.Get(ctx, client.ObjectKey{Name: name}, n)
		if err == nil {
			reason = leaving(n)
		} else if ctx.Err() == nil {
			klog.FromContext(ctx).Info("Whether this node is shut down is not known", "reason", err.Error())
		}
		return reason != "", nil
	}) // that it has timed out is the answer
	return reason
}

// handOver gives the leases of a node up that is shut down. ctx has ended by the
// signal; the leases of a plugin that is restarted stay.
func (p *plugin) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOverTimeout)
	defer cancel()
	log := klog.FromContext(ctx)
	leases, err := p.attacher.Lessor().Leases(ctx)
	if err != nil || len(leases) == 0 {
		return // nobody reads from here; who exports and cannot say so serves on
	}
	reason := awaitLeaving(ctx, p.api, p.cfg.NodeName)
	if reason == "" {
		log.Info("Leases go on without the plugin", "leases", len(leases))
		return
	}
	if err := p.leases.HandOver(ctx, reason); err != nil {
		log.Error(err, "Some leases go on until the kernel stops")
	}
}

// serveLeases answers moves until ctx ends. If that was by the signal, of which stopped
// tells, and the node itself goes, the leases are given up then.
func (p *plugin) serveLeases(ctx, stopped context.Context) error {
	if p.leases == nil {
		return nil
	}
	err := p.leases.Run(ctx)
	if stopped.Err() != nil {
		p.handOver(stopped)
	}
	return err
}
