// Package v1alpha1 holds the nearflash.io/v1alpha1 API: CachedVolume (one per
// volume) and CachePool (one per node). Both are cluster-scoped, because a
// volume outlives the namespace of any claim and a pool belongs to a node.
//
// +kubebuilder:object:generate=true
// +groupName=nearflash.io
package v1alpha1
