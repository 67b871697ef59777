//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// scrubbedBytes is what the tests write and make hot.
const scrubbedBytes = 16 * mib

// scrub carries out the scrub that the record asks for. Like the plugin it tries again what fails: a
// guard gives up after half a second, which a busy machine takes for less.
func (n *node) scrub(ctx context.Context, id volume.ID) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	for {
		err := n.scrubOnce(ctx, id)
		if err == nil || ctx.Err() != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "the scrub is tried again:", err)
		time.Sleep(time.Second)
	}
}

// scrubOnce is scrub until the first error.
func (n *node) scrubOnce(ctx context.Context, id volume.ID) error {
	k := n.Scrubs()
	if k.SuspendEvery == 0 {
		k.SuspendEvery = 200 * time.Millisecond
	}
	for {
		pause, err := k.Step(ctx)
		if err != nil {
			return err
		}
		rec, err := n.Records.Get(ctx, id)
		if err != nil || rec.ScrubDone == rec.ScrubRequest {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the scrub does not end: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
}

// scrubs asks for a scrub, has it done, and returns its reports.
func (d *disk) scrubs(request string) []volume.ScrubReport {
	t := d.m.t
	t.Helper()
	d.asksScrub(request)
	mustPass(t, "scrub", d.n.scrub(t.Context(), d.req.ID))
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if n := len(rec.Scrubs); n == 0 || !rec.Scrubs[n-1].Done {
		t.Fatalf("no end was reported: %+v", rec.Scrubs)
	}
	return rec.Scrubs
}

func (d *disk) asksScrub(request string) {
	d.m.t.Helper()
	mustPass(d.m.t, "ask", d.rec.update(d.req.ID, func(r *fileRecord) error {
		r.Volume.ScrubRequest, r.Scrubs = request, nil
		return nil
	}))
}

// hot is a volume whose first bytes are in a clean cache.
func (m *machine) hot(n *node, name string, mode volume.CacheMode) (d *disk, data []byte) {
	m.t.Helper()
	d = m.volume(n, name, 64*mib, cached(mode, 32*mib))
	d.req.Block = true
	d.stage()
	data = pattern(1, scrubbedBytes)
	write(m.t, d.device(), data, 0, true)
	d.heat(scrubbedBytes)
	d.flushes("warm")
	return d, data
}

func (d *disk) flushes(request string) {
	d.m.t.Helper()
	d.ask(func(v *volume.Volume) { v.FlushRequest = request })
	d.change()
}

// cacheMap reads the map of the cache, as of its last commit.
func (d *disk) cacheMap() cachemap.Map {
	t := d.m.t
	t.Helper()
	mustPass(t, "commit", d.n.DM.Commit(t.Context(), layout.Device(d.req.ID, layout.Top)))
	m, err := cachetools.ReadMap(t.Context(), cachetools.Tools{Run: d.m.run}.Dump, d.below("meta"), filepath.Join(t.TempDir(), "map"))
	mustPass(t, "map", err)
	return m
}

// below is the path of what the live table has as its metadata or its data.
func (d *disk) below(part string) string {
	t := d.m.t
	t.Helper()
	table, err := d.n.DM.Table(t.Context(), layout.Device(d.req.ID, layout.Top))
	mustPass(t, "table", err)
	c, ok := table.Cache()
	if !ok {
		t.Fatalf("no cache: %v", table)
	}
	devno := c.Data
	if part == "meta" {
		devno = c.Metadata
	}
	_, minor, _ := strings.Cut(devno, ":")
	return "/dev/dm-" + minor
}

// flip flips bits of a chunk on the SSD, at a byte of it.
func (d *disk) flip(m cachemap.Map, e cachemap.Entry, at int64) {
	t := d.m.t
	t.Helper()
	f, err := os.OpenFile(d.below("data"), os.O_RDWR|unix.O_DIRECT, 0)
	mustPass(t, "open", err)
	defer func() { _ = f.Close() }()
	b, at := aligned(4096), int64(e.Cache*m.ChunkSectors)*devmapper.SectorSize+at
	_, err = f.ReadAt(b, at)
	mustPass(t, "read", err)
	for i := range 16 {
		b[100+i] ^= 0x20
	}
	_, err = f.WriteAt(b, at)
	mustPass(t, "flip", errors.Join(err, f.Sync()))
}

// writtenChunks are entries of chunks that the test has written.
func writtenChunks(m cachemap.Map, n int) (out []cachemap.Entry) {
	for _, e := range m.Entries {
		if int64((e.Origin+1)*m.ChunkSectors)*devmapper.SectorSize <= scrubbedBytes && len(out) < n {
			out = append(out, e)
		}
	}
	return out
}

// TestKernelScrub: bits that flip below a clean chunk are found. In mode writethrough reads return the
// origin's data again; in mode writeback the SSD stays as it is until the cache is given up. A dirty
// chunk is not touched, whatever the origin has.
func TestKernelScrub(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		t.Run(string(mode), func(t *testing.T) {
			m.t = t
			d, data := m.hot(n, "scrub-"+string(mode), mode)
			d.wantIntact("intact", scrubbedBytes/2)
			if err := n.DM.Message(t.Context(), layout.Device(d.req.ID, layout.Top), 0, "invalidate_cblocks", "0"); err == nil {
				t.Errorf("a cache in mode %s drops blocks, which makes the scrub's own way needless", mode)
			}
			cm := d.cacheMap()
			chunks := writtenChunks(cm, 4)
			if len(chunks) < 4 {
				t.Fatalf("%d chunks are cached", len(chunks))
			}
			if mode == volume.ModeWriteback {
				at := int64(chunks[3].Origin*cm.ChunkSectors) * devmapper.SectorSize
				// Else smq writes it back as soon as nothing else is to be done.
				mustPass(t, "message", n.DM.Message(t.Context(), layout.Device(d.req.ID, layout.Top), 0, "migration_threshold", "0"))
				late := pattern(2, 4096)
				write(t, d.device(), late, at, true)
				copy(data[at:], late)
				if st, _ := d.cache(); st.Dirty == 0 {
					t.Fatal("nothing is dirty")
				}
			}
			for _, e := range chunks[:3] {
				d.flip(cm, e, int64(cm.ChunkSectors)*devmapper.SectorSize/2)
			}
			if compare(d.device(), data, 0) == nil {
				t.Fatal("the bits that were flipped do not show")
			}
			reports := d.scrubs("flipped")
			last := reports[len(reports)-1]
			t.Logf("found: %+v", last)
			through := mode == volume.ModeWritethrough
			if renewed := map[bool]int64{true: 3}[through]; last.Corrupted != 3 || last.Renewed != renewed || last.Untouched == through || last.Unjudged > 0 || last.Discarded > 0 || last.NotKept {
				t.Errorf("of 3 corrupted chunks: %+v", reports)
			}
			if first := reports[0]; first.Done || first.Message == "" || first.Renewed > 0 {
				t.Errorf("the finding was not told before it was replaced: %+v", first)
			}
			if through {
				check(t, d.device(), data, 0)
				d.wantIntact("again", scrubbedBytes/2)
			} else if compare(d.device(), data, 0) == nil {
				t.Error("the only right copy, as it may be, was replaced")
			}
			d.flushes("last")
			d.unstage()
			d.wantOrigin("in the end", data)
			d.remove()
		})
	}
	m.t = t
}

// wantIntact scrubs, and wants no finding in at least so much.
func (d *disk) wantIntact(request string, least int64) {
	d.m.t.Helper()
	reports := d.scrubs(request)
	if r := reports[0]; len(reports) != 1 || r.Corrupted+r.Renewed+r.Discarded+r.Unjudged > 0 || r.CheckedBytes < least {
		d.m.t.Errorf("%s: %+v", request, reports)
	}
	if left, err := os.ReadDir(filepath.Join(d.n.dir, "scrubs")); err != nil || len(left) > 0 {
		d.m.t.Errorf("%s: left %v, %v", request, left, err)
	}
}

// TestKernelScrubLoad: while pods write to what is compared, nothing is called corrupted, in any mode,
// nothing is lost, and what they wait for stays bounded.
func TestKernelScrubLoad(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		t.Run(string(mode), func(t *testing.T) {
			m.t = t
			d, _ := m.hot(n, "load-"+string(mode), mode)
			n.Scrubs().SuspendEvery = 10 * time.Millisecond
			l := startLoad(t, d.device(), scrubbedBytes)
			l.moving()
			l.moving()
			l.longest.Store(0)
			l.moving()
			alone := time.Duration(l.longest.Swap(0))
			done := make(chan struct{})
			go func() { // no pauses while it is compared
				for {
					select {
					case <-done:
						return
					case <-time.After(20 * time.Millisecond):
						l.fast.Store(loadBurst)
					}
				}
			}()
			for i := range 6 {
				for _, r := range d.scrubs(fmt.Sprintf("%s-%d", mode, i)) {
					if r.Corrupted > 0 || r.Renewed > 0 || r.Message != "" {
						t.Errorf("a write that was under way was called corrupted: %+v", r)
					}
				}
			}
			close(done)
			use := n.scrubUse(d.req.ID)
			t.Logf("%s: the longest access took %s, %s without a scrub; %d MiB compared, %d suspensions, longest %s, %d unjudged",
				mode, time.Duration(l.longest.Load()), alone, use.CheckedBytes>>20, use.Suspensions, use.Longest, use.Unjudged)
			// To suspend, and to judge, may take as long each; then it is resumed.
			if use.Longest > 2*scrub.Limit+time.Second {
				t.Errorf("the volume was suspended for %s", use.Longest)
			}
			if mode == volume.ModeWriteback && use.Suspensions == 0 {
				t.Error("no suspension was tested")
			}
			l.end()
			l.check(d.device())
			d.flushes("last")
			d.unstage()
			d.connected(func(origin string) { l.check(origin) })
			d.remove()
		})
	}
	m.t = t
}

func (n *node) scrubUse(id volume.ID) scrub.Use {
	for _, u := range n.Scrubs().Uses() {
		if u.ID == id {
			return u
		}
	}
	return scrub.Use{}
}

// TestKernelKillScrub kills the plugin, or the guard, at each step of a scrub with a finding. The pod
// goes on, the next plugin finds what is left, and nothing is lost.
func TestKernelKillScrub(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		d, data := m.hot(n, "kill-"+string(mode), mode)
		points := []string{"scrub.ordered", "scrub.judged", "scrub.reported", "scrub.guard-suspended", "scrub.guard-resumed"}
		phases := []string{"scrub.guard-suspended"}
		if mode == volume.ModeWritethrough { // the other one has nothing replaced
			points, phases = append(points, "scrub.renewed", "scrub.guard-written"), []string{"scrub.reported", "scrub.guard-suspended", "scrub.guard-written"}
		}
		for _, point := range killedAt(t, points, phases...) {
			cm := d.cacheMap()
			e := writtenChunks(cm, 1)[0]
			d.flip(cm, e, 0)
			d.asksScrub(point)
			if killed := d.killScrub(point, order{Scrub: true}); !killed {
				t.Errorf("%s: nothing was killed", point)
			}
			n.ResumeLeft(t.Context())
			infos, err := n.DM.Info(t.Context(), "nf-"+string(d.req.ID))
			mustPass(t, "devices", err)
			if infos[layout.Device(d.req.ID, layout.Top)].Suspended {
				t.Fatalf("%s: the pod waits for ever", point)
			}
			mustPass(t, point, n.scrub(t.Context(), d.req.ID))
			if mode == volume.ModeWriteback { // nothing is replaced
				d.flip(cm, e, 0)
			}
			check(t, d.device(), data, 0)
			d.wantIntact("after "+point, scrubbedBytes/2)
		}
		d.unstage()
		d.wantOrigin("in the end", data)
		d.remove()
	}
}

// killScrub runs a scrub by a plugin that is killed at a point, or whose guard is. A guard's end is an
// error of the scrub, and no end of the plugin.
func (d *disk) killScrub(point string, o order) bool {
	if !strings.Contains(point, "guard") {
		return d.killAt(point, o)
	}
	st, arm := d.runArmed(point, o)
	err := os.Remove(arm)
	return st.ExitCode() == 4 && errors.Is(err, os.ErrNotExist)
}
