package volume

import "strconv"

// Size is a cache size: a number of bytes or a percentage of the volume.
// Exactly one of the two is set; the zero Size means none.
type Size struct {
	Bytes   int64
	Percent int
}

// IsZero reports whether no size was given.
func (s Size) IsZero() bool { return s == Size{} }

// binaryUnits and decimalUnits are those that CachedVolume takes. Ei and E are not among them.
var (
	binaryUnits  = []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	decimalUnits = []string{"", "k", "M", "G", "T", "P"}
)

// String returns the form that quantity.Size accepts, exact and with the unit that leaves the
// smallest whole number: 1Gi, 1536Mi, 20G, 4097, 10%. `kubectl get cvol` shows it to people.
func (s Size) String() string {
	switch {
	case s.IsZero():
		return ""
	case s.Percent != 0:
		return strconv.Itoa(s.Percent) + "%"
	}
	n, unit := largest(s.Bytes, 1024, binaryUnits)
	if d, decimal := largest(s.Bytes, 1000, decimalUnits); d < n {
		n, unit = d, decimal
	}
	return strconv.FormatInt(n, 10) + unit
}

// largest writes n with the largest of units, each base times the one before, of which it is a whole
// number.
func largest(n, base int64, units []string) (count int64, unit string) {
	for _, unit = range units[:len(units)-1] {
		if n%base != 0 {
			return n, unit
		}
		n /= base
	}
	return n, units[len(units)-1]
}

// Of returns the size in bytes for a volume of the given number of bytes.
func (s Size) Of(volumeBytes int64) int64 {
	if s.Percent == 0 {
		return s.Bytes
	}
	// Divided first so that a volume of exbibytes cannot overflow.
	return volumeBytes/100*int64(s.Percent) + volumeBytes%100*int64(s.Percent)/100
}

// CacheBytes is the size of the cache of a volume of the given number of bytes, 0 if that is
// not known.
func (s Spec) CacheBytes(volumeBytes int64) int64 {
	bytes := s.Cache.Of(volumeBytes)
	if volumeBytes > 0 {
		bytes = min(bytes, volumeBytes)
	}
	if s.MaxCacheBytes > 0 {
		bytes = min(bytes, s.MaxCacheBytes)
	}
	return bytes
}

// ShareBytes is what the caches of one namespace may take of a pool of the given capacity, if that
// is percent of it (states.md, The share of a namespace).
func ShareBytes(capacity int64, percent int32) int64 { return capacity * int64(percent) / 100 }
