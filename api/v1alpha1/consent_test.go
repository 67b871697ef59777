package v1alpha1_test

import "github.com/nearflash/nearflash/api/v1alpha1"

// What the API server says of a mode without its consent.
const (
	needsNodeLoss  = `spec: Invalid value: cacheMode writeback loses acknowledged writes when a node is lost before they are flushed: acceptDirtyLoss must be node-loss`
	needsPowerLoss = `spec: Invalid value: cacheMode writeback-unsafe loses writes that the application has flushed, in any order, with the power of a node: acceptDirtyLoss must be power-loss`
)

// loses asks for a mode with a consent.
func loses(mode v1alpha1.CacheMode, loss v1alpha1.DirtyLoss) func(*v1alpha1.CachedVolumeSpec) {
	return func(s *v1alpha1.CachedVolumeSpec) { s.CacheMode, s.AcceptDirtyLoss = mode, loss }
}
