//go:build kernel

package kernel

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// twins are two volumes with the same content, of which each node reads one under the name of the other
// as far as the other node is concerned: two nodes of one kernel cannot have one volume attached at a
// time, since their devices would have the same names.
type twins struct {
	*pair
	// id and uid are those of the source node's.
	id  volume.ID
	uid string
}

// Begin implements volume.Moves.
func (p *twins) Begin(ctx context.Context, r volume.MoveRequest) (volume.MoveID, *volume.Lease, error) {
	if r.Source != nil {
		r.Volume, r.Fence.UID = p.id, p.uid
	}
	m, l, err := p.pair.Begin(ctx, r)
	if l != nil {
		l.WWID = "" // that of the other LUN
	}
	return m, l, err
}

// readTwins has both nodes read: A a volume that is larger than its cache, B one that has the same.
func readTwins(m *machine) (a, b *disk, data []byte) {
	t := m.t
	t.Helper()
	ctx, rec := t.Context(), fileRecords{filepath.Join(t.TempDir(), "records")}
	moves := &twins{pair: newPair(), id: "twin-a"}
	nodeA, err := openNodeAs(ctx, nodeName, t.TempDir(), onOneSSD(), rec, newPair())
	mustPass(t, "node", err)
	nodeB, err := openNodeAs(ctx, otherName, t.TempDir(), onOtherSSD(), rec, moves)
	mustPass(t, "node", err)
	t.Cleanup(func() {
		m.dropPool(onOneSSD())
		m.try("vgremove", "--yes", "--force", pool.VolumeGroup(otherName))
		m.try("pvremove", "--yes", ssdTwo)
	})
	moves.lessor = func() volume.Lessor { return nodeA.Lessor() }
	moves.streams = func() (volume.StreamSource, error) { return nodeA.streams.serve(nodeA.Lessor()) }
	nodeA.streams.twins = map[volume.ID]volume.ID{"twin-b": "twin-a"}
	data = pattern(1, 32*mib)
	both := map[string]*disk{}
	for name, n := range map[string]*node{"twin-a": nodeA, "twin-b": nodeB} {
		spec := cached(volume.ModeWritethrough, 8*mib)
		if spec.WarmStart.From = volume.WarmOff; n == nodeB {
			spec.WarmStart = byPeer(volume.MethodStream)
			spec.WarmStart.Bandwidth = mib / 2 // so that the other cache changes meanwhile
		}
		d := m.volume(nodeA, name, 64*mib, spec)
		d.rec = rec
		r, err := fileRecords{filepath.Join(nodeA.dir, "records")}.load(d.req.ID)
		mustPass(t, "record", err)
		mustPass(t, "record", rec.store(d.req.ID, r))
		d.req.Block = true
		d.stage()
		write(t, d.device(), data, 0, true)
		d.unstage()
		d.readBy(2)
		if d.n = n; n == nodeB {
			d.req.Publication.Fence.Node = otherName
		}
		both[name] = d
	}
	moves.uid = both["twin-a"].req.Publication.Fence.UID
	return both["twin-a"], both["twin-b"], data
}

// readAll reads a device, one quarter of its beginning after the other, until the returned function is
// called: a cache that is smaller than that gives its places to other blocks all the time.
func readAll(device string, limit int64) (stop func() error) {
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		f, err := os.OpenFile(device, os.O_RDONLY|unix.O_DIRECT, 0)
		if err != nil {
			ended <- err
			return
		}
		buf, r := aligned(4096), rand.New(rand.NewPCG(5, 7))
		for turn := int64(0); err == nil; turn++ {
			for range 1000 {
				if _, err = f.ReadAt(buf, turn%4*limit/4+r.Int64N(limit/4/4096)*4096); err != nil {
					break
				}
			}
			select {
			case <-done:
				ended <- errors.Join(err, f.Close())
				return
			default:
			}
		}
		ended <- errors.Join(err, f.Close())
	}()
	return func() error { close(done); return <-ended }
}

// TestKernelReaderJoins: a new reader begins from one whose cache is full and goes on being read, and has
// no byte of another block. Nobody writes to either volume, and both go on. What smq gives away meanwhile is
// little, and chance: TestReaderJoinsWhileTheCacheChanges (pkg/attach) sees to that.
func TestKernelReaderJoins(t *testing.T) {
	m := newMachine(t)
	a, b, data := readTwins(m)
	a.stage()
	defer func() { // also after a failure: what one node has would keep the other's from its end
		a.unstage()
		a.remove()
		b.remove()
	}()
	stop := readAll(a.device(), int64(len(data)))
	before, _ := a.cache()
	for range 600 {
		if before, _ = a.cache(); before.CacheUsed == before.CacheTotal {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.stage()
	defer b.unstage()
	e, err := b.n.Journal.Load(string(b.req.ID))
	mustPass(t, "journal", err)
	if !e.ReadOnly || !e.Streams() || e.Hydration.Stream.Source == nil || e.Hydration.From.Node != nodeName {
		t.Fatalf("the new reader does not begin from the other one: %+v", e)
	}
	check(t, b.device(), data, 0)
	mustPass(t, "stream", b.n.hydrateAll(t.Context(), b.req.ID))
	after, _ := a.cache()
	mustPass(t, "the other reader's pod", stop())
	sent := a.n.streams.sent.Load()
	st, found := b.cache()
	t.Logf("%d chunks came while the other cache gave away %d places; the new one has %d of %d", sent, after.Demotions-before.Demotions, st.CacheUsed, st.CacheTotal)
	if !found || sent == 0 || uint64(sent) < st.CacheUsed || st.CacheUsed == 0 || st.Policy != devmapper.PolicySMQ || st.Dirty > 0 {
		t.Errorf("after %d chunks the cache has %+v", sent, st)
	}
	// What is cached first: reading everything would give its places away.
	cachedMap, err := cachetools.ReadMap(t.Context(), cachetools.Tools{Run: m.run}.Dump, b.below("meta"), filepath.Join(t.TempDir(), "map"))
	mustPass(t, "map", err)
	for _, entry := range cachedMap.Entries {
		chunk := int64(cachedMap.ChunkSectors) * devmapper.SectorSize
		if at := int64(entry.Origin) * chunk; at+chunk <= int64(len(data)) {
			check(t, b.device(), data[at:at+chunk], at)
		}
	}
	check(t, b.device(), data, 0)
	check(t, a.device(), data, 0)
	if e, err := a.n.Journal.Load(string(a.req.ID)); err != nil || e.State != state.Staged || !e.Cached() || e.Exported != nil {
		t.Errorf("the node that sent has %+v (%v)", e, err)
	}
}
