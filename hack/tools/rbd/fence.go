package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Words that are kept with an image.
const (
	// metaNode is the node that it is published to.
	metaNode = "lab.node"
	// metaClients are clients of that node that were there before the image grew, with
	// blanks between: who grows it takes the lock, and a client that nobody can reach after
	// that leaves no trace. One that has unstaged the volume since is fenced too, which
	// keeps nobody out.
	metaClients = "lab.clients"
	// metaFenced are the clients that were fenced for it, a list of fenced in JSON.
	metaFenced = "lab.fenced"
)

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
func (c *controller) fence(ctx context.Context, image, node string, words map[string]string) error {
	clients, err := c.everyClient(ctx, image, words)
	if err != nil || len(clients) == 0 {
		return err
	}
	boot, err := c.boots(ctx, node)
	if err != nil {
		return err
	}
	list, err := fences(words)
	if err != nil {
		return err
	}
	for _, client := range clients {
		if !slices.ContainsFunc(list, func(f fenced) bool { return f.Address == client }) {
			list = append(list, fenced{Address: client, Node: node, Boot: boot})
		}
	}
	if err := c.remember(ctx, image, words, list); err != nil {
		return err
	}
	for _, client := range clients {
		if err := c.ceph.block(ctx, client, fenceLasts); err != nil {
			return err
		}
		klog.InfoS("Fenced", "image", image, "node", node, "client", client)
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
func (c *controller) everyClient(ctx context.Context, image string, words map[string]string) ([]string, error) {
	clients, err := c.ceph.clients(ctx, image)
	clients = append(clients, strings.Fields(words[metaClients])...)
	slices.Sort(clients)
	return slices.Compact(clients), err
}

// grow makes an image larger; who has it open is remembered before that.
func (c *controller) grow(ctx context.Context, image string, size int64) error {
	words, err := c.ceph.metadata(ctx, image)
	if err != nil {
		return err
	}
	if words[metaNode] != "" {
		clients, err := c.everyClient(ctx, image, words)
		if err != nil {
			return err
		}
		if value := strings.Join(clients, " "); value != words[metaClients] {
			if err := c.ceph.setMetadata(ctx, image, metaClients, value); err != nil {
				return err
			}
		}
	}
	return c.ceph.resize(ctx, image, size)
}

// unfence takes away the entries of clients that are gone for certain: their node has
// booted since. An entry of a node that was only cut off stays until its time is over. The
// old mapping may still have writes under way, and would be let in with them; a new one
// is another client, which the entry does not keep out.
func (c *controller) unfence(ctx context.Context, image string, words map[string]string) error {
	list, err := fences(words)
	if err != nil || len(list) == 0 {
		return err
	}
	var kept []fenced
	for _, f := range list {
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
	if len(kept) == len(list) {
		return nil
	}
	return c.remember(ctx, image, words, kept)
}

func fences(words map[string]string) (list []fenced, err error) {
	if words[metaFenced] == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(words[metaFenced]), &list); err != nil {
		return nil, fmt.Errorf("%s: %w", metaFenced, err)
	}
	return list, nil
}

func (c *controller) remember(ctx context.Context, image string, words map[string]string, list []fenced) error {
	value := ""
	if len(list) > 0 {
		b, err := json.Marshal(list)
		if err != nil {
			return err
		}
		value = string(b)
	}
	if value == words[metaFenced] {
		return nil
	}
	if err := c.ceph.setMetadata(ctx, image, metaFenced, value); err != nil {
		return err
	}
	words[metaFenced] = value
	return nil
}
