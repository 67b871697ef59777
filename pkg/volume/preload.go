package volume

import "time"

// Preload asks for the cache of an attached volume to be filled (states.md, Preload on demand).
type Preload struct {
	// Request names the request.
	Request string
	// Path is what is to be read, from the root of the volume's filesystem; "" is everything.
	Path string
	// Bandwidth bounds it, in bytes per second; 0 is that of WarmStart, or the node's.
	Bandwidth int64
}

// PreloadState is how a preload stands.
type PreloadState string

// The states, in the words of the API.
const (
	PreloadPending   PreloadState = "Pending"
	PreloadRunning   PreloadState = "Running"
	PreloadCompleted PreloadState = "Completed"
	PreloadEnded     PreloadState = "Ended"
	PreloadCancelled PreloadState = "Cancelled"
	PreloadFailed    PreloadState = "Failed"
)

// PreloadReport is how far a preload is. The zero value is that of none.
type PreloadReport struct {
	Request string
	State   PreloadState
	// Message says what it waits for, or why it has ended so.
	Message string
	// TotalBytes is what is listed, CachedBytes what of it the cache has.
	TotalBytes, CachedBytes int64
	// Started is when the node began.
	Started time.Time
}

// Over reports whether it goes on no more.
func (r PreloadReport) Over() bool {
	return r.State != "" && r.State != PreloadPending && r.State != PreloadRunning
}
