package moves

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// checkPeer refuses an answer that leads anywhere but to the source node's own export of the
// volume: a node may say in it what it likes, and another target's session would be taken
// for that of the move, and cut with it.
func (d *Destination) checkPeer(ctx context.Context, obj *v1alpha1.CacheMigration, answer *v1alpha1.MigrationSource) error {
	node, err := d.node(ctx, obj.Spec.SourceNode)
	if err != nil {
		return err
	}
	return leadsTo(node, d.port, volume.ID(obj.Spec.VolumeName), answer)
}

// node reads a Node.
func (d *Destination) node(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := d.client.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return nil, records.Error("read Node "+name, err)
	}
	return node, nil
}

// leadsTo is an error unless an answer names the export of a node for a volume, at addresses of
// that node.
func leadsTo(node *corev1.Node, port int, id volume.ID, answer *v1alpha1.MigrationSource) error {
	if want := volume.ExportIQN(node.Name, id); answer.IQN != want {
		return fmt.Errorf("it names the target %q, and the export of volume %s on node %s is %q", answer.IQN, id, node.Name, want)
	}
	own := internalAddresses(node)
	for _, portal := range answer.Portals {
		at, err := netip.ParseAddrPort(portal)
		if err != nil || !slices.Contains(own, at.Addr().Unmap()) || int(at.Port()) != port {
			return fmt.Errorf("it names the portal %q, and node %s has the internal addresses %v, and exports at port %d", portal, node.Name, own, port)
		}
	}
	return nil
}

// internalAddresses are those that a node has in the cluster's network.
func internalAddresses(node *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range node.Status.Addresses {
		if at, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			out = append(out, at.Unmap())
		}
	}
	return out
}
