package v1alpha1

// CacheMode selects how writes pass through the node-local cache.
// See Documentation/admin-guide/device-mapper/cache.rst of the kernel.
type CacheMode string

const (
	// CacheModeNone attaches the origin without a cache.
	CacheModeNone CacheMode = "none"
	// CacheModeWritethrough acknowledges a write when the origin has it.
	CacheModeWritethrough CacheMode = "writethrough"
	// CacheModeWriteback acknowledges a write when the SSD has it.
	CacheModeWriteback CacheMode = "writeback"
	// CacheModeWritebackUnsafe is writeback whose flushes end at the cache: neither the SSD
	// nor the origin is told to make anything durable.
	CacheModeWritebackUnsafe CacheMode = "writeback-unsafe"
	// CacheModePassthrough lets everything through to the origin, while a stream brings the cache
	// and nothing of it serves yet. It cannot be asked for.
	CacheModePassthrough CacheMode = "passthrough"
)

// TakesWrites reports whether the SSD alone may have acknowledged writes.
func (m CacheMode) TakesWrites() bool {
	return m == CacheModeWriteback || m == CacheModeWritebackUnsafe
}

// Consent is the loss that a mode asks to be accepted.
func (m CacheMode) Consent() DirtyLoss {
	switch m {
	case CacheModeWriteback:
		return DirtyLossNodeLoss
	case CacheModeWritebackUnsafe:
		return DirtyLossPowerLoss
	default:
		return DirtyLossNone
	}
}

// DirtyLoss names the disaster after which acknowledged writes may be lost.
//
// +kubebuilder:validation:Enum=none;node-loss;power-loss
type DirtyLoss string

const (
	// DirtyLossNone accepts no loss of acknowledged writes.
	DirtyLossNone DirtyLoss = "none"
	// DirtyLossNodeLoss accepts the loss of unflushed writes with the node.
	DirtyLossNodeLoss DirtyLoss = "node-loss"
	// DirtyLossPowerLoss accepts that, and after a loss of power or a crash of the kernel the
	// loss of any write since the last drain, flushed by the application or not, in any order.
	DirtyLossPowerLoss DirtyLoss = "power-loss"
)
