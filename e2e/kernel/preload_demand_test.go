//go:build kernel

package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// demandSize is the length of a volume that is filled on demand, demandCache that of its cache, and
	// demandWanted what is asked for of it.
	demandSize, demandCache, demandWanted = 320 * mib, 96 * mib, 48 * mib
	// demandRate bounds the one of which the time is measured, in bytes per second.
	demandRate = 2 * mib
	// demandLimit is how long one may take on a busy machine.
	demandLimit = 4 * time.Minute
)

// preloadOnDemand asks for a preload, and has the node look until the record says that it is over.
func (d *disk) preloadOnDemand(p volume.Preload) volume.PreloadReport {
	t := d.m.t
	t.Helper()
	d.ask(func(v *volume.Volume) { v.Preload = &p })
	return d.preloadEnds(p.Request)
}

// preloadEnds has the node look until the record says that a request is over.
func (d *disk) preloadEnds(request string) volume.PreloadReport {
	t := d.m.t
	t.Helper()
	for end := time.Now().Add(demandLimit); ; time.Sleep(200 * time.Millisecond) {
		_, err := d.n.Preloads(t.Context())
		mustPass(t, "preload", err)
		said := d.preloadSaid()
		if said.Request == request && said.Over() {
			return said
		}
		if time.Now().After(end) {
			t.Fatalf("the preload does not end: %+v", said)
		}
	}
}

func (d *disk) preloadSaid() volume.PreloadReport {
	d.m.t.Helper()
	rec, err := d.rec.load(d.req.ID)
	mustPass(d.m.t, "record", err)
	return rec.Volume.Preloaded
}

// filesHit reads files of a folder once, past the page cache, and returns the hit rate of that.
func (d *disk) filesHit(folder string) float64 {
	t := d.m.t
	t.Helper()
	files, err := filepath.Glob(filepath.Join(d.req.StagingPath, folder, "file*"))
	mustPass(t, "files", err)
	if len(files) == 0 {
		t.Fatalf("%s has no files", folder)
	}
	before, _ := d.cache()
	for _, name := range files {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECT, 0)
		mustPass(t, "open", err)
		st, err := f.Stat()
		mustPass(t, "stat", err)
		buf := aligned(64 << 10)
		for at := int64(0); at < st.Size(); at += int64(len(buf)) {
			if _, err := f.ReadAt(buf, at); err != nil {
				t.Fatalf("read %s: %v", name, err)
			}
		}
		mustPass(t, "close", f.Close())
	}
	after, _ := d.cache()
	return ratio(before.ReadHits, before.ReadMisses, after.ReadHits, after.ReadMisses)
}

// folders writes files below two folders, and has them on the device, and in no cache.
func (d *disk) folders(names ...string) {
	t := d.m.t
	t.Helper()
	for i, name := range names {
		dir := filepath.Join(d.req.StagingPath, name)
		mustPass(t, "folder", os.MkdirAll(dir, 0o755))
		for n := range 6 {
			mustPass(t, "write", os.WriteFile(filepath.Join(dir, fmt.Sprint("file", n)), pattern(uint64(10*i+n), demandWanted/6), 0o600))
		}
	}
	mustPass(t, "link", os.Symlink("/", filepath.Join(d.req.StagingPath, names[0], "out")))
	mustPass(t, "pipe", unix.Mkfifo(filepath.Join(d.req.StagingPath, names[0], "pipe"), 0o600))
	unix.Sync()
}

// TestKernelPreloadOnDemand: what is asked for of a volume in use is cached when the node says so, by its
// path, within the bandwidth, in each mode and filesystem, and nothing of what lies beside it; one that is
// taken back ends, and one whose plugin goes is gone on with. It holds up no unstage.
func TestKernelPreloadOnDemand(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for kind, mode := range map[string]volume.CacheMode{"ext4": volume.ModeWriteback, "xfs": volume.ModeWritethrough} {
		t.Run(kind, func(t *testing.T) {
			m.t = t
			d := m.volume(n, "demand-"+kind, demandSize, cached(mode, demandCache))
			d.ask(from(volume.WarmOff))
			d.req.FSType = kind
			d.stage()
			d.folders("wanted", "beside")
			d.unstage()
			d.publish(2) // of another generation: the cache is made anew
			d.stage()

			if said := d.preloadOnDemand(volume.Preload{Request: "no such", Path: "wanted/none"}); said.State != volume.PreloadFailed {
				t.Errorf("a path that is not there: %+v", said)
			}
			if said := d.preloadOnDemand(volume.Preload{Request: "out", Path: "wanted/out/etc"}); said.State != volume.PreloadFailed {
				t.Errorf("a path that leads out: %+v", said)
			}
			began := time.Now()
			said := d.preloadOnDemand(volume.Preload{Request: "1", Path: "wanted"})
			t.Logf("%s: %d of %d bytes cached in %s: %s", kind, said.CachedBytes, said.TotalBytes, time.Since(began).Round(time.Second), said.Message)
			if said.State != volume.PreloadCompleted || said.CachedBytes != said.TotalBytes || said.TotalBytes < demandWanted || said.TotalBytes > demandWanted*5/4 {
				t.Errorf("the preload has ended so: %+v", said)
			}
			wanted, beside := d.filesHit("wanted"), d.filesHit("beside")
			t.Logf("%s: hit rate of first reads: %.3f, beside it %.3f", kind, wanted, beside)
			if wanted < 0.98 || beside > wanted-0.5 {
				t.Errorf("hit rate of the first reads %.3f, of what was not asked for %.3f", wanted, beside)
			}
			d.unstage()
			d.demandLimited(3)
			d.demandCancelled(4)
			d.remove()
		})
	}
	m.t = t
}

// demandLimited wants the bandwidth to be kept, and the preload to go on behind the end of a plugin.
func (d *disk) demandLimited(generation int64) {
	t := d.m.t
	t.Helper()
	d.publish(generation)
	d.stage()
	before, _ := d.cache()
	began := time.Now()
	d.ask(func(v *volume.Volume) {
		v.Preload = &volume.Preload{Request: "2", Path: "wanted", Bandwidth: demandRate}
	})
	for {
		_, err := d.n.Preloads(t.Context())
		mustPass(t, "preload", err)
		if now, _ := d.cache(); now.Promotions > before.Promotions+32 {
			break
		}
		if time.Since(began) > demandLimit {
			t.Fatal("nothing is promoted")
		}
		time.Sleep(100 * time.Millisecond)
	}
	// As when the plugin ends: nobody reads, nobody says anything, and the next one begins.
	mustPass(t, "stop", d.n.StopPreload(t.Context(), d.req.ID))
	if said := d.preloadSaid(); said.Over() {
		t.Errorf("it was told that the preload is over: %+v", said)
	}
	said := d.preloadEnds("2")
	after, _ := d.cache()
	took, bytes := time.Since(began), float64(after.Promotions-before.Promotions)*float64(after.ChunkSectors)*512
	t.Logf("limited: %.0f MiB promoted in %s", bytes/float64(mib), took.Round(time.Second))
	if said.State != volume.PreloadCompleted || bytes/took.Seconds() > 1.25*float64(demandRate) {
		t.Errorf("%+v, at %.1f MiB/s", said, bytes/took.Seconds()/float64(mib))
	}
	d.unstage()
}

// demandCancelled wants a preload to end when it is taken back, and not to hold up an unstage.
func (d *disk) demandCancelled(generation int64) {
	t := d.m.t
	t.Helper()
	d.publish(generation)
	d.stage()
	slow := &volume.Preload{Request: "3", Bandwidth: mib}
	d.ask(func(v *volume.Volume) { v.Preload = slow })
	soon(t, "the preload goes on", func() bool {
		_, err := d.n.Preloads(t.Context())
		return err == nil && d.preloadSaid().State == volume.PreloadRunning && d.preloadSaid().TotalBytes > demandWanted
	})
	d.ask(func(v *volume.Volume) { v.Preload = nil })
	soon(t, "the preload was taken back", func() bool {
		_, err := d.n.Preloads(t.Context())
		return err == nil && d.preloadSaid().State == volume.PreloadCancelled
	})
	slow.Request = "4"
	d.ask(func(v *volume.Volume) { v.Preload = slow })
	soon(t, "the preload goes on", func() bool {
		_, err := d.n.Preloads(t.Context())
		return err == nil && d.preloadSaid().Request == "4" && d.preloadSaid().TotalBytes > demandWanted
	})
	d.unstage()
	if said := d.preloadSaid(); said.Over() {
		t.Errorf("the volume has left, and its preload is over: %+v", said)
	}
}

// TestKernelPreloadRaw: of a raw block volume everything is cached, as far as there is room, and no path is
// taken.
func TestKernelPreloadRaw(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "demand-raw", 64*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	d.stage()
	if said := d.preloadOnDemand(volume.Preload{Request: "1", Path: "wanted"}); said.State != volume.PreloadFailed {
		t.Errorf("a path in a raw block volume: %+v", said)
	}
	said := d.preloadOnDemand(volume.Preload{Request: "2"})
	if said.State != volume.PreloadEnded || said.TotalBytes != 32*mib || said.CachedBytes != said.TotalBytes {
		t.Errorf("a cache of half of the volume: %+v", said)
	}
	if rate := d.hitRate(1000, 32*mib); rate < 0.98 {
		t.Errorf("hit rate of the first half: %.3f", rate)
	}
	d.unstage()
	d.remove()
}
