package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Parameters of a StorageClass, and attributes of a static PersistentVolume, that
// say how large a cache will be, and what a class without them gets.
const (
	keyCacheMode     = "cacheMode"
	keyCacheSize     = "cacheSize"
	keyMaxCacheSize  = "maxCacheSize"
	keyRedundancy    = "redundancy"
	defaultCacheSize = "10%"
)

// gatherer finds what is known of a pod's volumes. Everything is read from
// informers; what they do not have is not known.
type gatherer struct {
	informed client.Reader
	driver   string
}

// caches returns the caches of a pod's volumes.
func (g *gatherer) caches(ctx context.Context, namespace string, pod *corev1.Pod) ([]Cache, error) {
	var out []Cache
	seen := map[string]bool{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		var c *Cache
		var err error
		switch {
		case v.PersistentVolumeClaim != nil && !seen[v.PersistentVolumeClaim.ClaimName]:
			seen[v.PersistentVolumeClaim.ClaimName] = true
			c, err = g.ofClaim(ctx, client.ObjectKey{Namespace: namespace, Name: v.PersistentVolumeClaim.ClaimName})
		case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
			// Its claim is made after the pod, so there is nothing warm.
			c, err = g.planned(ctx, &v.Ephemeral.VolumeClaimTemplate.Spec)
		}
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		if c != nil {
			out = append(out, *c)
		}
	}
	return out, nil
}

// ofClaim returns nil if the claim's volume is not one of nearflash, or has no
// cache.
func (g *gatherer) ofClaim(ctx context.Context, key client.ObjectKey) (*Cache, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if found, err := g.get(ctx, key, claim); err != nil || !found {
		return nil, err
	}
	if claim.Spec.VolumeName == "" {
		return g.planned(ctx, &claim.Spec)
	}
	pv := &corev1.PersistentVolume{}
	if found, err := g.get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, pv); err != nil || !found {
		return nil, err
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != g.driver {
		return nil, nil
	}
	capacity := ptr.To(pv.Spec.Capacity[corev1.ResourceStorage]).Value()
	record := &v1alpha1.CachedVolume{}
	found, err := g.get(ctx, client.ObjectKey{Name: pv.Spec.CSI.VolumeHandle}, record)
	if err != nil {
		return nil, err
	}
	if !found { // a static volume that was never attached
		return ofParameters(pv.Spec.CSI.VolumeAttributes, capacity), nil
	}
	return ofRecord(record, capacity), nil
}

// planned returns the cache that a volume will have once it is made.
func (g *gatherer) planned(ctx context.Context, claim *corev1.PersistentVolumeClaimSpec) (*Cache, error) {
	if ptr.Deref(claim.StorageClassName, "") == "" {
		return nil, nil
	}
	class := &storagev1.StorageClass{}
	if found, err := g.get(ctx, client.ObjectKey{Name: *claim.StorageClassName}, class); err != nil || !found {
		return nil, err
	}
	if class.Provisioner != g.driver {
		return nil, nil
	}
	return ofParameters(class.Parameters, ptr.To(claim.Resources.Requests[corev1.ResourceStorage]).Value()), nil
}

// ofParameters returns the cache that CreateVolume, or the first attach of a
// static volume, will ask for. What these refuse has no known size.
func ofParameters(params map[string]string, capacity int64) *Cache {
	if params[keyCacheMode] == string(v1alpha1.CacheModeNone) {
		return nil
	}
	return &Cache{Mirror: params[keyRedundancy] == string(v1alpha1.RedundancyMirror), Bytes: sizeOf(cmp.Or(params[keyCacheSize], defaultCacheSize), params[keyMaxCacheSize], capacity)}
}

// ofRecord returns the cache of a volume and where it is. The capacity is that of
// the PersistentVolume.
func ofRecord(obj *v1alpha1.CachedVolume, capacity int64) *Cache {
	dirty := obj.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty
	if obj.Spec.CacheMode == v1alpha1.CacheModeNone && !dirty {
		return nil
	}
	c := &Cache{Mirror: obj.Spec.Redundancy == v1alpha1.RedundancyMirror, Bytes: sizeOf(obj.Spec.CacheSize, obj.Spec.MaxCacheSize, cmp.Or(ptr.Deref(obj.Spec.CapacityBytes, 0), capacity))}
	switch many := obj.Status.OwnerNode == volume.Readers; {
	case many: // any node may read it, and those that do have a cache of it
		c.RetainedOn = slices.Clone(obj.Status.Readers)
	case dirty || obj.Status.Publication == v1alpha1.PublicationPublished:
		c.Owner = obj.Status.OwnerNode
	}
	for _, r := range obj.Status.RetainedCaches {
		if r.Generation == ptr.Deref(obj.Status.Generation, 0) { // states.md, I3
			c.RetainedOn = append(c.RetainedOn, r.NodeName)
		}
	}
	return c
}

// sizeOf returns 0 for a size that is not known.
func sizeOf(text, most string, capacity int64) int64 {
	size, err := quantity.Size(text)
	if err != nil {
		return 0
	}
	spec := volume.Spec{Cache: size}
	if n, err := quantity.Bytes(most); err == nil {
		spec.MaxCacheBytes = n
	}
	return spec.CacheBytes(capacity)
}

// pools returns the cache space that all nodes have for volumes of a namespace.
func (g *gatherer) pools(ctx context.Context, namespace string) ([]Pool, error) {
	list := &v1alpha1.CachePoolList{}
	if err := g.informed.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list CachePools: %w", err)
	}
	out := make([]Pool, 0, len(list.Items))
	var there map[string]taken
	for i := range list.Items {
		p := &list.Items[i]
		pool := Pool{
			Node: p.Name, Mirror: p.Spec.Redundancy == v1alpha1.RedundancyMirror, Pairs: pairs(p),
			Ready: meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady),
			Free:  p.Status.Free.Value(), RetainedCache: p.Status.Retained.Value(),
		}
		if p.Spec.NamespaceSharePercent > 0 {
			if there == nil {
				var err error
				if there, err = g.taken(ctx, namespace); err != nil {
					return nil, err
				}
			}
			pool = pool.within(volume.ShareBytes(p.Status.Capacity.Value(), p.Spec.NamespaceSharePercent), there[p.Name].copies(p))
		}
		out = append(out, pool)
	}
	return out, nil
}

// pairs reports whether the pool keeps two copies of a cache that asks for them: that takes two devices
// that stay, and no checksums (For in package pool).
func pairs(p *v1alpha1.CachePool) bool {
	used := slices.DeleteFunc(slices.Clone(p.Status.Devices), func(d v1alpha1.CachePoolDevice) bool { return d.Message != "" || d.Evacuation != nil })
	return len(used) > 1 && !p.Spec.Integrity
}

// get reports whether there is such an object.
func (g *gatherer) get(ctx context.Context, key client.ObjectKey, obj client.Object) (bool, error) {
	err := g.informed.Get(ctx, key, obj)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("look for %T %s: %w", obj, key, err)
	}
	return err == nil, nil
}
