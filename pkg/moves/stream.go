package moves

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// streamKeyBytes is the length of the key that a node proves itself by.
const streamKeyBytes = 32

// streamOf is the lease of a move by stream. The answer says how large the cache is; where it
// comes from and by which key are what the API server has of the source node, so that no
// answer leads anywhere else.
func (d *Destination) streamOf(ctx context.Context, obj *v1alpha1.CacheMigration, answer *v1alpha1.MigrationSource) (*volume.Lease, error) {
	name := obj.Spec.SourceNode
	lease, err := streamLease(idOf(obj), answer)
	if err != nil {
		return nil, unusable(name, err)
	}
	node, err := d.node(ctx, name)
	if err != nil {
		return nil, unavailable("the addresses of node %s are not known: %v", name, err)
	}
	pool := &v1alpha1.CachePool{}
	if err := d.client.Get(ctx, types.NamespacedName{Name: name}, pool); err != nil {
		return nil, unavailable("the key of node %s is not known: %v", name, records.Error("read CachePool "+name, err))
	}
	if lease.Stream, err = streamSource(node, pool, d.streamPort); err != nil {
		return nil, err
	}
	return lease, nil
}

// streamLease reads of an answer what a stream has; leaseOf reads the rest.
func streamLease(m volume.MoveID, answer *v1alpha1.MigrationSource) (*volume.Lease, error) {
	if err := checkData(answer); err != nil {
		return nil, err
	}
	return &volume.Lease{
		Move:           m,
		ChunkSectors:   uint64(answer.ChunkSizeBytes) / sectorSize,
		DataBytes:      answer.DataBytes,
		WWID:           answer.UnitID,
		WrittenThrough: answer.Modes == v1alpha1.ExportedWritethroughOnly,
		Tracked:        trackedOf(answer),
	}, nil
}

// streamSource is where a node sends its caches from. Errors: ErrUnavailable.
func streamSource(node *corev1.Node, pool *v1alpha1.CachePool, port int) (*volume.StreamSource, error) {
	own := internalAddresses(node)
	if len(own) == 0 {
		return nil, unavailable("node %s has no internal address", node.Name)
	}
	key := pool.Status.StreamPublicKey
	if key == "" {
		return nil, unavailable("CachePool %s has no streamPublicKey", pool.Name)
	}
	if b, err := base64.StdEncoding.DecodeString(key); err != nil || len(b) != streamKeyBytes {
		return nil, unavailable("streamPublicKey of CachePool %s is no key: %q", pool.Name, key)
	}
	out := &volume.StreamSource{PublicKey: key}
	for _, at := range own {
		out.Addresses = append(out.Addresses, netip.AddrPortFrom(at, uint16(port)).String())
	}
	return out, nil
}

// methodOf is how a move fills its cache, for the node that is asked: an object of an earlier
// version does not say it. Errors: ErrInvalid for a method of which this version knows nothing.
func methodOf(obj *v1alpha1.CacheMigration) (volume.MoveMethod, error) {
	switch m := obj.Spec.Method; m {
	case "", v1alpha1.MigrationClone:
		return volume.MethodClone, nil
	case v1alpha1.MigrationStream:
		return volume.MethodStream, nil
	default:
		return "", fmt.Errorf("%w: this node serves no cache by method %q; it knows %s and %s", volume.ErrInvalid, m, volume.MethodClone, volume.MethodStream)
	}
}
