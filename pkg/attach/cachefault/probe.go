package cachefault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// probeTimeout is how long a pass waits for the SSDs.
	probeTimeout = 3 * time.Second
	// probeBytes is the size of a read; every logical block size divides it.
	probeBytes = 4 << 10
	// probeStep is the size of a stripe, so that the reads at its first multiples hit
	// every device of a striped volume; probeSteps bounds them.
	probeStep, probeSteps = 64 << 10, 8
	// commitEvery is the pause between two writes to every SSD.
	commitEvery = time.Minute
	// commitKey stands for all volumes among those that are being probed.
	commitKey = volume.ID("*")
)

// memory is what is remembered of failing SSDs between two passes. It is lost
// with the process, which costs a pass and a report. The zero value is ready.
type memory struct {
	mu sync.Mutex
	// broken is why a cache fails.
	broken map[volume.ID]string
	// risks are the volumes whose owners were told what is at risk.
	risks map[volume.ID]bool
	// probing are the volumes whose SSD has not answered yet.
	probing keylock.Set
	// stripes is over how many devices the pool has spread caches.
	stripes int
	// committed is when the metadata were written last; one pass at a time has it.
	committed time.Time
}

// keep forgets all volumes but these.
func (m *memory) keep(entries []*state.Entry) {
	known := map[volume.ID]bool{}
	for _, e := range entries {
		known[e.ID] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.broken, func(id volume.ID, _ string) bool { return !known[id] })
	maps.DeleteFunc(m.risks, func(id volume.ID, _ bool) bool { return !known[id] })
}

func (m *memory) record(id volume.ID, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if why == "" {
		delete(m.broken, id)
		return
	}
	if m.broken == nil {
		m.broken = map[volume.ID]string{}
	}
	m.broken[id] = why
}

func (m *memory) why(id volume.ID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broken[id]
}

func (m *memory) setAtRisk(id volume.ID, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.risks == nil {
		m.risks = map[volume.ID]bool{}
	}
	m.risks[id] = told
}

func (m *memory) atRisk(id volume.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.risks[id]
}

// begin claims the probe of a volume; one that still waits for its SSD is not
// joined by others.
func (m *memory) begin(id volume.ID) (end func(), ok bool) { return m.probing.TryLock(string(id)) }

// spread returns the largest number of devices that the pool had.
func (m *memory) spread(stripes int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stripes = max(m.stripes, stripes, 1)
	return m.stripes
}

// writeProbe makes the kernel write to every cache's SSD, with what is its own: an
// SSD that takes no writes any more still answers reads, and fails the pod's writes
// without a word in the status while the map does not change. It does not wait long:
// the status tells what came of it, now or in a later pass.
func (w *Watch) writeProbe(ctx context.Context, known []*state.Entry) error {
	now := w.Now()
	if age := now.Sub(w.memory.committed); age >= 0 && age < commitEvery {
		return nil
	}
	w.memory.committed = now
	end, ok := w.memory.begin(commitKey)
	if !ok {
		// One SSD does not answer; the others are asked one by one.
		for _, e := range known {
			if end, ok := w.memory.begin(commitKey + e.ID); ok {
				go func() {
					defer end()
					_ = w.Devices.Commit(ctx, layout.Device(e.ID, layout.Top)) // as below, the status tells
				}()
			}
		}
		return nil
	}
	done := make(chan error, 1)
	go func() {
		defer end()
		done <- w.Devices.CommitAll(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(probeTimeout):
		return nil
	}
}

// probed is what the SSD of a volume answered.
type probed struct {
	id  volume.ID
	why string
}

// unreadable reads a few blocks of every cache, and says of those that cannot be
// read why. An SSD that does not answer in time says nothing.
func (w *Watch) unreadable(ctx context.Context, entries []*state.Entry, infos map[string]devmapper.Info) map[volume.ID]string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	stripes := w.memory.spread(w.Host.Stripes())
	answers, waiting := make(chan probed, len(entries)), 0
	for _, e := range entries {
		top, found := infos[layout.Device(e.ID, layout.Top)]
		if !found || !e.Cached() {
			continue
		}
		end, ok := w.memory.begin(e.ID)
		if !ok {
			continue
		}
		waiting++
		go func() {
			defer end()
			answers <- probed{e.ID, probeCache(w.Sysfs, top, stripes)}
		}()
	}
	out := map[volume.ID]string{}
	for range waiting {
		select {
		case p := <-answers:
			if p.why != "" {
				out[p.id] = p.why
			}
		case <-ctx.Done():
			return out
		}
	}
	return out
}

// probeCache reads the logical volumes below a top device.
func probeCache(sysfs string, top devmapper.Info, stripes int) string {
	for _, dev := range cacheDevices(sysfs, fmt.Sprintf("dm-%d", top.Minor)) {
		if err := probeDevice("/dev/"+dev, stripes); err != nil {
			return "the SSD cannot be read: " + err.Error()
		}
	}
	return ""
}

// cacheDevices returns the names of the devices below dev that are not ours: the
// logical volumes of the cache. The origin and what a hydration reads from are left out.
func cacheDevices(sysfs, dev string) []string {
	lower, err := os.ReadDir(filepath.Join(sysfs, "block", dev, "slaves"))
	if err != nil {
		return nil // it is gone
	}
	var out []string
	for _, l := range lower {
		name, err := os.ReadFile(filepath.Join(sysfs, "block", l.Name(), "dm", "name"))
		if err != nil {
			continue // no device of the device mapper: a path to the origin
		}
		switch s := strings.TrimSpace(string(name)); {
		case !strings.HasPrefix(s, layout.DevicePrefix):
			out = append(out, l.Name())
		case layout.IsData(s):
			out = append(out, cacheDevices(sysfs, l.Name())...)
		}
	}
	return out
}

// probeDevice reads the beginning of each stripe and the end of a device past the
// page cache. An error must come twice: what the drive mends by itself is none.
func probeDevice(path string, stripes int) error {
	f, err := blockdev.OpenDirect(path)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil // removed meanwhile
	case err != nil:
		return err
	}
	defer func() { _ = f.Close() }()
	size, err := blockdev.Size(path)
	if err != nil {
		return nil // as above
	}
	offsets := []int64{max(size-probeBytes, 0) / probeBytes * probeBytes}
	for i := range min(stripes, probeSteps) {
		if at := int64(i) * probeStep; at+probeBytes <= size {
			offsets = append(offsets, at)
		}
	}
	buf := blockdev.AlignedBuffer(probeBytes)
	for _, at := range offsets {
		if _, err := f.ReadAt(buf, at); err == nil {
			continue
		}
		if _, err := f.ReadAt(buf, at); err != nil {
			return err
		}
	}
	return nil
}
