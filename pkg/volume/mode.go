package volume

// CacheMode selects how writes pass through the node-local cache.
type CacheMode string

// The cache modes. See Documentation/admin-guide/device-mapper/cache.rst.
const (
	ModeNone         CacheMode = "none"
	ModeWritethrough CacheMode = "writethrough"
	ModeWriteback    CacheMode = "writeback"
)

// ModeName is the mode as users write it.
func (s Spec) ModeName() string { return ModeName(s.Mode, s.Unsafe) }

// SetMode is the inverse of ModeName.
func (s *Spec) SetMode(name string) {
	s.Mode, s.Unsafe = CacheMode(name), name == ModeWritebackUnsafe
	if s.Unsafe {
		s.Mode = ModeWriteback
	}
}

// ModeWritebackUnsafe is the name of writeback whose flushes end at the cache. To all that decides
// about what is dirty it is writeback.
const ModeWritebackUnsafe = "writeback-unsafe"

// ModeName is the name of a mode, for users.
func ModeName(m CacheMode, unsafe bool) string {
	if unsafe && m == ModeWriteback {
		return ModeWritebackUnsafe
	}
	return string(m)
}
