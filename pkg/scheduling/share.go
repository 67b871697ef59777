package scheduling

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// taken is what the caches of one namespace take of a node's pool, by their records: one copy of each,
// and in second one more of those that ask for two. Caches that nodes have retained are part of all.
type taken struct{ all, retained, second, secondRetained int64 }

// copies is what they take of a pool that may have two of each.
func (t taken) copies(p *v1alpha1.CachePool) taken {
	if p.Spec.Redundancy == v1alpha1.RedundancyMirror {
		return taken{all: 2 * t.all, retained: 2 * t.retained}
	}
	return taken{all: t.all + t.second, retained: t.retained + t.secondRetained}
}

// add counts a cache of that many bytes.
func (t taken) add(bytes int64, retained, mirror bool) taken {
	t.all += bytes
	if retained {
		t.retained += bytes
	}
	if mirror {
		t.second += bytes
	}
	if mirror && retained {
		t.secondRetained += bytes
	}
	return t
}

// within cuts a pool's room down to what a share leaves (states.md, The share of a namespace): of
// retained caches only the namespace's own give theirs.
func (p Pool) within(share int64, t taken) Pool {
	free := max(min(p.Free, share-t.all), 0)
	all := max(min(p.Free+p.RetainedCache, share-t.all+t.retained), free)
	p.Free, p.RetainedCache = free, all-free
	return p
}

// taken returns what the caches of a namespace take of each node's pool.
func (g *gatherer) taken(ctx context.Context, namespace string) (map[string]taken, error) {
	list := &v1alpha1.CachedVolumeList{}
	if err := g.informed.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list CachedVolumes: %w", err)
	}
	out := map[string]taken{}
	for i := range list.Items {
		if ref := list.Items[i].Spec.ClaimRef; ref != nil && ref.Namespace == namespace {
			count(out, &list.Items[i])
		}
	}
	return out, nil
}

// count adds the caches of one volume to what nodes have.
func count(nodes map[string]taken, obj *v1alpha1.CachedVolume) {
	owner, mirror := "", obj.Spec.Redundancy == v1alpha1.RedundancyMirror
	if c := ofRecord(obj, 0); c != nil && meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionCached) {
		owner = c.Owner
		nodes[owner] = nodes[owner].add(c.Bytes, false, mirror)
	}
	for _, r := range obj.Status.RetainedCaches {
		if r.NodeName == owner {
			continue // it is in use again
		}
		nodes[r.NodeName] = nodes[r.NodeName].add(ptr.Deref(r.SizeBytes, 0), true, mirror)
	}
}
