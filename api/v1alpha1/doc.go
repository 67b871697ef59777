// Package v1alpha1 holds the nearflash.io/v1alpha1 API: CachedVolume (one per
// volume), CachePool (one per node), CacheMigration (one per warm start) and
// CacheHotSet (one per volume). All are cluster-scoped, because a volume outlives
// the namespace of any claim and a pool belongs to a node.
//
// +kubebuilder:object:generate=true
// +groupName=nearflash.io
package v1alpha1
