package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// notes are what the controller knows of an image.
type notes struct {
	// Node is the one that it is published to.
	Node string `json:"node,omitempty"`
	// Clients are those of that node that were there before the image grew or had a snapshot
	// made: who does that takes the lock, and a client that nobody can reach after that leaves no trace. One
	// that has unstaged the volume since is fenced too, which keeps nobody out.
	Clients []string `json:"clients,omitempty"`
	// Fenced are the clients that were fenced for it.
	Fenced []fenced `json:"fenced,omitempty"`
}

// fenceLasts bounds an entry that nobody takes away, of a node that never comes back. It is
// far above the time for which a kernel holds on to a write.
const fenceLasts = 24 * time.Hour

// fenced is a client on the blocklist.
type fenced struct {
	// Address is the client's: of a machine, with a number of the mapping.
	Address string `json:"address"`
	Node    string `json:"node"`
	// Boot is that of the node which its kubelet had reported when it was fenced.
	Boot string `json:"boot"`
}

// boots tells the boot id of a node, as its kubelet has reported it last; "" for a node
// that does not exist.
type boots func(ctx context.Context, node string) (string, error)

func newNodeBoots(kubeconfig string) (boots, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return func(ctx context.Context, name string) (string, error) {
		node, err := clients.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("node %s: %w", name, err)
		}
		return node.Status.NodeInfo.BootID, nil
	}, nil
}

// fence keeps out whoever has an image open, so that none of its writes arrives any more,
// and takes the lock from it. An image is published to one node, which is therefore that of
// its clients. A fence is remembered before it is made: a call that was killed in between is
// repeated.
func (c *controller) fence(ctx context.Context, image string, n *notes) error {
	clients, err := c.everyClient(ctx, image, n)
	if err != nil || len(clients) == 0 {
		return err
	}
	boot, err := c.boots(ctx, n.Node)
	if err != nil {
		return err
	}
	for _, client := range clients {
		if !slices.ContainsFunc(n.Fenced, func(f fenced) bool { return f.Address == client }) {
			n.Fenced = append(n.Fenced, fenced{Address: client, Node: n.Node, Boot: boot})
		}
	}
	if err := c.ceph.setNotes(ctx, image, *n); err != nil {
		return err
	}
	for _, client := range clients {
		if err := c.ceph.block(ctx, client, fenceLasts); err != nil {
			return err
		}
		klog.InfoS("Fenced", "image", image, "node", n.Node, "client", client)
	}
	locks, err := c.ceph.locks(ctx, image)
	for _, l := range locks {
		if err := c.ceph.breakLock(ctx, image, l); err != nil {
			return err
		}
	}
	return err
}

// everyClient are the clients that an image has, and those remembered.
func (c *controller) everyClient(ctx context.Context, image string, n *notes) ([]string, error) {
	clients, err := c.ceph.clients(ctx, image)
	clients = append(clients, n.Clients...)
	slices.Sort(clients)
	return slices.Compact(clients), err
}

// withLock does what takes the lock of an image from the client that has it; who has the image
// open is remembered before that.
func (c *controller) withLock(ctx context.Context, image string, do func() error) error {
	n, err := c.ceph.notes(ctx, image)
	if err != nil {
		return err
	}
	if n.Node != "" {
		if n.Clients, err = c.everyClient(ctx, image, &n); err != nil {
			return err
		}
		if err := c.ceph.setNotes(ctx, image, n); err != nil {
			return err
		}
	}
	return do()
}

// unfence takes away the entries of clients that are gone for certain: their node has
// booted since. An entry of a node that was only cut off stays until its time is over. The
// old mapping may still have writes under way, and would be let in with them; a new one
// is another client, which the entry does not keep out. The notes are the caller's to keep.
func (c *controller) unfence(ctx context.Context, image string, n *notes) error {
	var kept []fenced
	for _, f := range n.Fenced {
		boot, err := c.boots(ctx, f.Node)
		if err != nil {
			return err
		}
		if f.Boot == "" || boot == "" || boot == f.Boot {
			kept = append(kept, f)
			continue
		}
		if err := c.ceph.allow(ctx, f.Address); err != nil {
			return err
		}
		klog.InfoS("Taken off the blocklist", "image", image, "node", f.Node, "client", f.Address)
	}
	n.Fenced = kept
	return nil
}
