package observe

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/volume"
)

// stateKey is the one record in the sampler's directory.
const stateKey = "totals"

// state is what outlives the plugin.
type state struct {
	Volumes map[volume.ID]*volumeState `json:"volumes"`
}

// volumeState is what is remembered of a volume.
type volumeState struct {
	Cache cacheState `json:"cache"`
	// Carried is of mostAccesses.
	Carried uint64                  `json:"credit,omitempty"`
	Devices map[Device]*deviceState `json:"devices,omitempty"`
	// Clean is when the cache was last seen without a dirty block. What is saved
	// of it may be older, which errs on the safe side.
	Clean time.Time `json:"clean,omitzero"`
	// Dirty is what the last pass saw.
	Dirty bool `json:"dirty,omitempty"`
}

// MarshalJSON writes a device as one row of numbers: the region, six counts and
// the histogram of its last statistics, then six counts and the histogram of its
// totals. Hundreds of volumes are written at a time.
func (d deviceState) MarshalJSON() ([]byte, error) {
	row := make([]uint64, 0, rowLength)
	row = append(row, d.Last.Region)
	row = appendIO(row, d.Last.Read, d.Last.Write, d.Last.Histogram)
	row = appendIO(row, d.Total.Read, d.Total.Write, d.Total.Histogram)
	return json.Marshal(row)
}

const (
	ioLength  = 6 + len(devmapper.Histogram{})
	rowLength = 1 + 2*ioLength
)

func appendIO(row []uint64, r, w devmapper.IOStats, h devmapper.Histogram) []uint64 {
	row = append(row, r.Operations, r.Sectors, r.Nanoseconds, w.Operations, w.Sectors, w.Nanoseconds)
	return append(row, h[:]...)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (d *deviceState) UnmarshalJSON(b []byte) error {
	var row []uint64
	if err := json.Unmarshal(b, &row); err != nil {
		return err
	}
	if len(row) != rowLength {
		return fmt.Errorf("a device has %d numbers, want %d", len(row), rowLength)
	}
	d.Last.Region = row[0]
	d.Last.Read, d.Last.Write, d.Last.Histogram = splitIO(row[1:])
	d.Total.Read, d.Total.Write, d.Total.Histogram = splitIO(row[1+ioLength:])
	return nil
}

func splitIO(row []uint64) (r, w devmapper.IOStats, h devmapper.Histogram) {
	r = devmapper.IOStats{Operations: row[0], Sectors: row[1], Nanoseconds: row[2]}
	w = devmapper.IOStats{Operations: row[3], Sectors: row[4], Nanoseconds: row[5]}
	copy(h[:], row[6:])
	return r, w, h
}

// openState loads the totals. If the file is corrupt the totals begin at zero;
// err then wraps journal.ErrCorrupt, and the file is kept aside by the next save.
func openState(dir string) (*journal.Store[state], state, error) {
	store, err := journal.Open[state](dir)
	if err != nil {
		return nil, state{}, fmt.Errorf("open totals: %w", err)
	}
	st, err := store.Load(stateKey)
	if errors.Is(err, journal.ErrNotFound) {
		err = nil
	}
	if st.Volumes == nil {
		st.Volumes = map[volume.ID]*volumeState{}
	}
	for id, v := range st.Volumes {
		if v == nil {
			delete(st.Volumes, id)
		}
	}
	return store, st, err
}
