package volume

// Deletion proves that nobody wants the data of a volume any more. That a record cannot
// be found proves nothing.
type Deletion struct {
	ID         ID
	UID        string
	Generation int64
}

// Covers reports whether what was written under a fence is meant.
func (d Deletion) Covers(id ID, f Fence) bool {
	return d.ID == id && d.UID == f.UID && f.Generation <= d.Generation
}

// KeptCache is a cache with writes that may be on this node alone, and of which nobody
// knows whether they are still wanted.
type KeptCache struct {
	ID        ID
	Fence     Fence
	SizeBytes int64
	// Why says in words for people why it is neither flushed nor wiped.
	Why string
}

// LeftCache is a cache on a device that is to be out of the pool.
type LeftCache struct {
	// Name is that of the volume, or of a logical volume that is of none.
	Name string
	// Waits is true if it does not leave by itself, or not yet.
	Waits bool
	// Why says in words for people what becomes of it, or what it waits for.
	Why string
}
