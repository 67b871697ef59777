package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/lvm/lvmtest"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	chunkSectors = 64
	chunkBytes   = chunkSectors * devmapper.SectorSize
	chunks       = 20
	hotChunks    = 2
	originBytes  = 101 * chunkBytes
	ssdBytes     = 32 * chunkBytes
)

var errDisk = errors.New("input/output error")

// node is one whose only volume is being filled, with devices in memory.
type node struct {
	*Runner
	t        testing.TB
	dm       devmapper.Client
	ssd, lun *blockdevtest.Disk
	file     files
	m        cachemap.Map
	mu       sync.Mutex
	entry    state.Entry
	// ended is why the volume goes on without its cache, refused how often it could not yet.
	ended   string
	refused int
}

// newNode has a volume of whose cache nothing was copied yet, in two levels. Source node and
// origin have the same.
func newNode(t testing.TB, p Puller) *node {
	t.Helper()
	machine := blockdevtest.New()
	n := &node{t: t, dm: devmappertest.New(machine).Client(nil), ssd: blockdevtest.NewDisk(ssdBytes), lun: blockdevtest.NewDisk(originBytes)}
	n.file.Blocks = machine.Blocks(nil)
	machine.Add("8:1", "/dev/ssd", n.ssd)
	machine.Add("8:2", "/dev/lun", n.lun)
	machine.Add("8:3", "/dev/maps", blockdevtest.NewDisk(64<<20))
	var blocks []uint64
	for i := range uint64(chunks) {
		blocks = append(blocks, (7*i+3)%100)
	}
	blocks[10] = 100
	var err error
	n.m, err = cachemap.Streamed(blocks, chunkSectors, ssdBytes/chunkBytes, (originBytes+devmapper.SectorSize-1)/devmapper.SectorSize)
	n.must(err)
	for block := range uint64(101) {
		_, err := n.lun.WriteAt(content(block)[:min(chunkBytes, originBytes-int64(block)*chunkBytes)], int64(block)*chunkBytes)
		n.must(err)
	}
	n.entry = state.Entry{
		ID: "v", State: state.Staged, Mode: volume.ModeWritethrough, Activated: true, Fence: volume.Fence{UID: "u", Generation: 2, Node: "b"},
		ChunkSectors: chunkSectors, DataBytes: ssdBytes,
		Hydration: &state.Hydration{
			Move: volume.MoveID{Name: "m", UID: "1"}, Deadline: time.Now().Add(time.Hour),
			Stream: &state.Stream{Source: &volume.StreamSource{Addresses: []string{"a"}}, Hot: hotChunks, Chunks: chunks},
		},
	}
	s := stack.New(stack.Config{DM: n.dm, Blocks: &n.file})
	// It has no logical volumes: levels that serve cannot be merged here, and the volume goes on uncached.
	vg := lvmtest.New(machine).Client(nil)
	vg.SetDevices([]string{"/dev/ssd"})
	n.must(vg.CreateVG(t.Context(), "vg", []string{"/dev/ssd"}))
	group := ssd.New(ssd.Config{LVM: vg, Pool: ready{}, Blocks: &n.file, Stack: s})
	n.Runner = New(Config{Host: n, Stack: s, SSD: group, Puller: p, PullPause: time.Millisecond, WriteBytes: chunkBytes, Now: time.Now})
	n.makeLevels(machine, s)
	return n
}

// ready is a pool that is there.
type ready struct{}

func (ready) View() pool.View { return pool.View{Ready: true, VG: "vg"} }

func (n *node) makeLevels(machine *blockdevtest.Machine, s *stack.Stack) {
	n.t.Helper()
	ctx, e := n.t.Context(), &n.entry
	device := func(p layout.Part, on string, bytes int64) devmapper.Info {
		info, err := n.dm.Create(ctx, layout.Device(e.ID, p), layout.UUID(e.Fence, p), devmapper.LinearTable(uint64(bytes)/devmapper.SectorSize, on))
		n.must(err)
		return info
	}
	origin, data := device(layout.Origin, "8:2", originBytes), device(layout.Data, "8:1", ssdBytes)
	n.file.data, n.file.origin = data.DevPath(), origin.DevPath()
	hot, rest, err := s.LevelMaps(ctx, e, lvm.LV{Major: 8, Minor: 3, SizeBytes: 64 << 20})
	n.must(err)
	first, others := n.m.Split(hotChunks, hotChunks)
	for path, m := range map[string]cachemap.Map{hot.DevPath(): first, rest.DevPath(): others} {
		n.must(restore(ctx, n.t, machine, m, path))
	}
	n.must(s.CreateLevels(ctx, e, lvm.LV{Major: 8, Minor: 1}, data.DevNo(), stack.Origin{Sectors: originBytes / devmapper.SectorSize, DevNo: origin.DevNo()}))
}

// restore writes a map to metadata.
func restore(ctx context.Context, t testing.TB, machine *blockdevtest.Machine, m cachemap.Map, path string) error {
	file := t.TempDir() + "/map"
	var text bytes.Buffer
	if err := m.WriteXML(&text); err != nil {
		return err
	}
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return err
	}
	return devmappertest.Tools{Machine: machine}.Restore(ctx, file, path)
}

// content is what a block of the origin has.
func content(block uint64) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("block %09d.", block)), chunkBytes/16+1)[:chunkBytes]
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// turns has the stream take steps until something is true.
func (n *node) turns(what string, until func() bool) {
	n.t.Helper()
	for range 20_000 {
		if until() {
			return
		}
		n.Turn(n.t.Context())
		time.Sleep(time.Millisecond)
	}
	n.t.Fatalf("never: %s (%+v)", what, n.States())
}

// levels are the tables.
func (n *node) levels() stack.Levels {
	n.t.Helper()
	l, err := n.Stack.Levels(n.t.Context(), &n.entry)
	n.must(err)
	return l
}

// wantCopied compares the first chunks on the SSD with what the origin has of them, and the
// others with what they were before.
func (n *node) wantCopied(count int) {
	n.t.Helper()
	for i := range chunks {
		want := make([]byte, chunkBytes)
		if i < count {
			copy(want, content(n.m.Entries[i].Origin))
		}
		got := make([]byte, chunkBytes)
		if _, err := n.ssd.ReadAt(got, int64(i)*chunkBytes); err != nil || !bytes.Equal(got, want) {
			n.t.Errorf("chunk %d of %d has %.20q, want %.20q (%v)", i, count, got, want, err)
		}
	}
}

// Entries implements state.Journal.
func (n *node) Entries() ([]state.Entry, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return []state.Entry{n.entry}, nil
}

// Entry implements state.Journal. Of other volumes nothing can be read.
func (n *node) Entry(id volume.ID) (*state.Entry, error) {
	if id != "v" {
		return nil, errDisk
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.entry
	return &e, nil
}

// Save implements state.Journal.
func (n *node) Save(_ context.Context, e *state.Entry, s state.State) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.entry, n.entry.State = *e, s
	return nil
}

// Lock implements Host.
func (n *node) Lock(_ context.Context, id volume.ID) (*state.Entry, func(), error) {
	e, err := n.Entry(id)
	return e, func() {}, err
}

// ReadMap implements Host.
func (n *node) ReadMap(volume.ID) (*cachemap.Map, error) { return &n.m, nil }

// ReadLevel implements Host.
func (*node) ReadLevel(context.Context, volume.ID, string) (*cachemap.Map, error) {
	return nil, errDisk
}

// RestoreMap implements Host.
func (*node) RestoreMap(context.Context, volume.ID, cachemap.Map, string) error { return errDisk }

// Drop implements Host.
func (*node) Drop(_ context.Context, e *state.Entry, _ volume.MoveOutcome, _ string) {
	e.Hydration = nil
}

// Uncache implements Host.
func (n *node) Uncache(_ context.Context, e *state.Entry, why string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refused > 0 {
		n.refused--
		return errDisk
	}
	n.ended = why
	e.Deny()
	e.Hydration = nil
	n.entry = *e
	return nil
}

// why is why the volume goes on without its cache, "" if it does not.
func (n *node) why() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ended
}

// files are the node's block devices, of which those that a copy uses may do something else.
type files struct {
	*blockdevtest.Blocks
	data, origin string
	// write and sync are called before each of the cache's data, read before each of the origin.
	write, read func(off int64) error
	sync        func() error
}

// Open implements stack.Blocks.
func (f *files) Open(path string, flags int) (blockdev.File, error) {
	in, err := f.Blocks.Open(path, flags)
	if err != nil || path != f.data && path != f.origin {
		return in, err
	}
	return &file{File: in, f: f}, nil
}

type file struct {
	blockdev.File
	f *files
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := told(f.f.read, off); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if err := told(f.f.write, off); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func told(do func(off int64) error, off int64) error {
	if do == nil {
		return nil
	}
	return do(off)
}

func (f *file) Sync() error {
	if do := f.f.sync; do != nil {
		if err := do(); err != nil {
			return err
		}
	}
	return f.File.Sync()
}
