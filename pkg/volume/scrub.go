package volume

// ScrubReport is what a scrub has found.
type ScrubReport struct {
	// Request is what was asked for; "" if nobody asked.
	Request string
	// Done is true at the end.
	Done bool
	// CheckedBytes were compared.
	CheckedBytes int64
	// Corrupted counts chunks of which the SSD returned something else than was written to it.
	Corrupted int64
	// Renewed counts pieces of chunks that were replaced by what the origin has, Discarded those
	// that only a discard made differ, which writeback caches keep, and Unjudged those that could not be judged.
	Renewed, Discarded, Unjudged int64
	// Untouched is true if what is corrupted was not replaced, because the SSD may have the right copy.
	Untouched bool
	// NotKept is true if the SSD has not kept what was written to it then.
	NotKept bool
	// Message says what was found just now; "" if that is nothing.
	Message string
}
