// Package scratch measures a node's SSDs alone, on a logical volume of the pool that is made for it and
// removed after it (docs/design/states.md, The SSD alone). The plugin lends the logical volume over the
// socket of the figures; `nearflash-node ssd`, a process of its own in the same container, reads and writes
// it; kubectl runs that by exec. The process dies with its SSD if that hangs, and the plugin does not.
package scratch

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/figures"
)

const (
	// Command is the word after nearflash-node.
	Command = "ssd"
	// MaxBytes is the largest scratch volume, and MinBytes the smallest that is measured: on less, all
	// requests would meet the same few blocks of flash.
	MaxBytes, MinBytes = 1 << 30, 64 << 20
	// MaxAnswer is more than any answer has: some thousand bins for each kind of request.
	MaxAnswer = 4 << 20
	// MaxTime bounds one run: nobody ends a process whose kubectl was ended.
	MaxTime = time.Minute

	// block is what requests are multiples of, as direct I/O needs it, and maxBuffers bounds the
	// memory of all requests under way, which is the container's.
	block, maxBuffers = 4096, 64 << 20
	maxDepth          = 1024
	// version of answers. What is added does not change it.
	version = 1
)

// Errors; test with errors.Is.
var (
	// ErrTask: what is asked for cannot be measured.
	ErrTask = errors.New("not a task")
	// ErrOther: the device is not the scratch volume.
	ErrOther = errors.New("the device is another one than the plugin has made")
)

// Device is a scratch volume that is lent.
type Device struct {
	// Path is its node in /dev, and UUID that of the device mapper.
	Path string `json:"path"`
	UUID string `json:"uuid"`
	// Bytes is its size.
	Bytes int64 `json:"bytes"`
	// Place says in words on which SSDs it is.
	Place string `json:"place"`
}

// Task is what is measured.
type Task struct {
	// BlockBytes is the size of a request, a multiple of 4096.
	BlockBytes int
	// ReadPercent of the requests are reads.
	ReadPercent int
	// Random requests go anywhere, others one after the other.
	Random bool
	// SyncEvery has a flush follow so many writes; 0 is none.
	SyncEvery int
	// Depths are how many requests are under way at once, a run for each.
	Depths []int
	// Time is how long each run takes.
	Time time.Duration
}

// Check says what of a task is not accepted. Errors: ErrTask.
func (t Task) Check() error {
	refuse := func(what string, value any, accepted string) error {
		return fmt.Errorf("%w: %s %v: accepted is %s", ErrTask, what, value, accepted)
	}
	switch {
	case t.BlockBytes < block || t.BlockBytes > MinBytes || t.BlockBytes%block != 0:
		return refuse("block-bytes", t.BlockBytes, fmt.Sprintf("a multiple of %d, up to %d", block, MinBytes))
	case t.ReadPercent < 0 || t.ReadPercent > 100:
		return refuse("read-percent", t.ReadPercent, "0 to 100")
	case t.SyncEvery < 0:
		return refuse("sync-every", t.SyncEvery, "a number of writes, and 0 for never")
	case len(t.Depths) == 0:
		return refuse("depths", t.Depths, "at least one")
	case t.Time <= 0 || t.Time > MaxTime:
		return refuse("time", t.Time, fmt.Sprintf("up to %s", MaxTime))
	}
	for _, d := range t.Depths {
		if d < 1 || d > maxDepth || d*t.BlockBytes > maxBuffers {
			return refuse("depth", d, fmt.Sprintf("1 to %d", min(maxDepth, maxBuffers/t.BlockBytes)))
		}
	}
	return nil
}

// Run is what came of a task with one depth.
type Run struct {
	Depth int `json:"depth"`
	// Seconds is how long it ran, and Bytes what it moved.
	Seconds float64 `json:"seconds"`
	Bytes   uint64  `json:"bytes"`
	Reads   Counts  `json:"reads"`
	Writes  Counts  `json:"writes"`
	Syncs   Counts  `json:"syncs"`
	// CPU are two looks at the first line of /proc/stat, before and after.
	CPU [2]string `json:"cpu"`
}

// Counts are how often a request took how long: nanoseconds, each within 1% of the truth.
type Counts map[int64]uint64

// Total is how many there were.
func (c Counts) Total() (n uint64) {
	for _, k := range c {
		n += k
	}
	return n
}

// Answer is what the command prints.
type Answer struct {
	// Version is set by Encode.
	Version int `json:"version"`
	// Bytes and Place are those of the Device.
	Bytes int64  `json:"bytes"`
	Place string `json:"place"`
	// Runs are in the order of the task's depths.
	Runs []Run `json:"runs"`
}

// Encode returns an answer as it is printed.
func Encode(a Answer) ([]byte, error) {
	a.Version = version
	text, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("measurement of the SSD: %w", err)
	}
	return append(text, '\n'), nil
}

// Parse reads an answer. Errors: figures.ErrVersion.
func Parse(text []byte) (Answer, error) {
	var a Answer
	if err := figures.Decode(text, version, &a); err != nil {
		return Answer{}, fmt.Errorf("measurement of the SSD: %w", err)
	}
	return a, nil
}
