// Package figures is how `kubectl nearflash top` and `bench` learn of the figures of this second. The node
// plugin serves them on a unix socket in its container, which root alone can reach. What asks
// there is `nearflash-node figures` in the same container, and kubectl runs that by exec: it takes
// no port, and no token is shown to a node.
package figures

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// Command is the word after nearflash-node.
	Command = "figures"
	// DefaultSocket is in the container's own filesystem: it goes with the container.
	DefaultSocket = "/run/nearflash/figures.sock"
	// MaxBytes is more than any answer has: some 2,200 bytes a volume.
	MaxBytes = 16 << 20

	// version of answers. What is added does not change it, what is understood in another way does.
	version = 1
)

// ErrVersion is that an answer is of a version that this program does not know.
var ErrVersion = errors.New("the answer is of another version")

// Answer are the figures of a node.
type Answer struct {
	// Version is set by Encode.
	Version int `json:"version"`
	// Problem says what could not be measured; empty if all was.
	Problem string `json:"problem,omitempty"`
	// Time is when it was measured, by the node's clock; zero of a plugin of before.
	Time time.Time `json:"time,omitzero"`
	// BoundsMicros are the bounds of the buckets of Device.Histogram, in microseconds.
	BoundsMicros []int64 `json:"boundsMicros,omitempty"`
	// Volumes are those attached to the node.
	Volumes []Volume `json:"volumes"`
}

// Volume are the figures of a volume.
type Volume struct {
	ID volume.ID `json:"id"`
	// Cache is what the node would report now.
	Cache v1alpha1.CacheStatus `json:"cache"`
	// Totals only grow, so that the difference of two is what was done between them. A plugin of
	// before has none.
	Totals *Totals `json:"totals,omitempty"`
}

// Totals are what was counted since the node knows the volume.
type Totals struct {
	// ReadHits to Demotions are those of the cache, zero without one.
	ReadHits    uint64 `json:"readHits,omitempty"`
	ReadMisses  uint64 `json:"readMisses,omitempty"`
	WriteHits   uint64 `json:"writeHits,omitempty"`
	WriteMisses uint64 `json:"writeMisses,omitempty"`
	Promotions  uint64 `json:"promotions,omitempty"`
	Demotions   uint64 `json:"demotions,omitempty"`
	// Devices are the parts of the volume that are measured: "volume", "ssd" and "origin"
	// (docs/explanation/measuring.md).
	Devices map[string]Device `json:"devices,omitempty"`
}

// Device are the totals of a device.
type Device struct {
	Reads      uint64 `json:"reads,omitempty"`
	ReadBytes  uint64 `json:"readBytes,omitempty"`
	Writes     uint64 `json:"writes,omitempty"`
	WriteBytes uint64 `json:"writeBytes,omitempty"`
	// Nanos are the sum of the durations of reads and writes, in nanoseconds.
	Nanos uint64 `json:"nanos,omitempty"`
	// Histogram counts reads and writes together by how long they took: element i those shorter
	// than BoundsMicros[i] and not shorter than the one before, the last those that took longer.
	Histogram []uint64 `json:"histogram,omitempty"`
}

// Encode returns an answer as it is sent.
func Encode(a Answer) ([]byte, error) {
	a.Version = version
	text, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("figures: %w", err)
	}
	return append(text, '\n'), nil
}

// Parse reads an answer. It errs with ErrVersion, and at words that a terminal would not print:
// nobody has checked them, as the API server checks what is reported.
func Parse(text []byte) (Answer, error) {
	var a Answer
	if err := Decode(text, version, &a); err != nil {
		return Answer{}, fmt.Errorf("figures: %w", err)
	}
	for _, v := range a.Volumes {
		for _, word := range []string{string(v.ID), string(v.Cache.Mode), string(v.Cache.Health)} {
			if Printable(word) != word {
				return Answer{}, fmt.Errorf("figures: %q is no word", word)
			}
		}
	}
	a.Problem = Printable(a.Problem)
	return a, nil
}

// Decode reads an answer that says its version, if that is the one that is known: others may have other
// fields. Errors: ErrVersion.
func Decode(text []byte, known int, into any) error {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return err
	}
	if head.Version != known {
		return fmt.Errorf("%w: %d, known is %d", ErrVersion, head.Version, known)
	}
	return json.Unmarshal(text, into)
}

// Printable returns a text with blanks for whatever moves a cursor.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
