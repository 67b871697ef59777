package devmapper

// Counters are what a cache counts of its volume's accesses, as the kernel keeps
// them: 32 bits that wrap silently. The unit is a bio, which the kernel cuts at
// the borders of chunks.
//
// A table that is loaded begins with what the metadata held at that moment, and
// they take up the counts only when a table is suspended: after a swap of the
// table the counters are back where they were at the swap before, after a crash
// likewise. A new cache begins at zero.
type Counters struct {
	ReadHits    uint32 `json:"readHits"`
	ReadMisses  uint32 `json:"readMisses"`
	WriteHits   uint32 `json:"writeHits"`
	WriteMisses uint32 `json:"writeMisses"`
	// Promotions and Demotions are chunks that were copied into the cache and
	// dropped from it. The metadata do not hold them: they begin at zero with
	// each table.
	Promotions uint32 `json:"promotions"`
	Demotions  uint32 `json:"demotions"`
}

// Counters are the counts of the status. Of a cache that has failed they are
// zero and mean nothing.
func (s CacheStatus) Counters() Counters {
	return Counters{
		ReadHits:    uint32(s.ReadHits),
		ReadMisses:  uint32(s.ReadMisses),
		WriteHits:   uint32(s.WriteHits),
		WriteMisses: uint32(s.WriteMisses),
		Promotions:  uint32(s.Promotions),
		Demotions:   uint32(s.Demotions),
	}
}
