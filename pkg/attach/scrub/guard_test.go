package scrub

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// memory is a device in memory.
type memory struct {
	mu sync.Mutex
	b  []byte
	// readErr and writeErr are what it fails with; lossy keeps nothing that is written.
	readErr, writeErr error
	lossy             bool
	// hang, if it is there, holds up every read, and holdWrite every write, until it is closed.
	hang, holdWrite chan struct{}
	reads, writes   int
}

func (m *memory) ReadAt(p []byte, at int64) (int, error) {
	if m.hang != nil {
		<-m.hang
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if m.readErr != nil {
		return 0, m.readErr
	}
	return copy(p, m.b[at:]), nil
}

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	if m.holdWrite != nil {
		<-m.holdWrite
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.writeErr != nil {
		return 0, m.writeErr
	}
	if m.lossy {
		return len(p), nil
	}
	return copy(m.b[at:], p), nil
}

func (m *memory) Sync() error  { return nil }
func (m *memory) Close() error { return nil }

const testBlock = 64 << 10

// filled is so many blocks, each of its number and a salt.
func filled(blocks int, salt byte) *memory {
	m := &memory{b: make([]byte, blocks*testBlock)}
	for i := range m.b {
		m.b[i] = byte(i/testBlock)*7 + byte(i) + salt
	}
	return m
}

// bench is a guard over memory: block i of the cache holds block i+1 of the origin.
type bench struct {
	*guard
	ssd, remote      *memory
	mapped           []devmapper.CacheBlock
	suspended, calls atomic.Int32
}

// testTable is the live table of a bench, but for what is given.
func testTable(c devmapper.CacheTarget) devmapper.Table {
	c.Metadata, c.Data, c.Origin = cmp.Or(c.Metadata, "253:1"), cmp.Or(c.Data, "253:2"), cmp.Or(c.Origin, "253:3")
	c.ChunkSectors, c.Mode = cmp.Or(c.ChunkSectors, testBlock/512), cmp.Or(c.Mode, devmapper.Writethrough)
	return devmapper.Table{{Length: 5 * testBlock / 512, Target: c}}
}

// onceSuspended has something happen when the device is suspended.
func (b *bench) onceSuspended(do func()) {
	suspend := b.suspend
	b.suspend = func() error { do(); return suspend() }
}

func newBench(renew bool) *bench {
	b := &bench{ssd: filled(4, 0), remote: filled(5, 0)}
	copy(b.ssd.b, b.remote.b[testBlock:])
	for i := range uint64(4) {
		b.mapped = append(b.mapped, devmapper.CacheBlock{Mapped: true, Origin: i + 1})
	}
	b.guard = &guard{
		order:   Order{Device: "nf-v", Meta: "/dev/dm-1", Data: "/dev/dm-2", Origin: "/dev/dm-3", BlockBytes: testBlock, Renew: renew},
		live:    func() (devmapper.Table, error) { return testTable(devmapper.CacheTarget{}), nil },
		suspend: func() error { b.suspended.Add(1); return nil }, resume: func() error { b.calls.Add(1); b.suspended.Add(-1); return nil },
		places: func(blocks []uint64) (out []devmapper.CacheBlock, err error) {
			if b.suspended.Load() != 1 {
				return nil, errors.New("the metadata were read of a device that is not suspended")
			}
			for _, n := range blocks {
				out = append(out, b.mapped[n])
			}
			return out, nil
		},
		data: b.ssd, origin: b.remote, now: time.Now, limit: time.Second,
	}
	for i := range uint64(4) {
		b.order.Pieces = append(b.order.Pieces, Piece{Cache: i, Origin: i + 1, Length: testBlock})
	}
	return b
}

// becomes gives the device another live table.
func (b *bench) becomes(c devmapper.CacheTarget) {
	b.live = func() (devmapper.Table, error) { return testTable(c), nil }
}

// TestGuardRefuses: nothing is suspended for an order that is not of the live cache, nor while the
// origin does not answer.
func TestGuardRefuses(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		set  func(*bench)
		want error
	}{
		"other metadata": {func(b *bench) { b.becomes(devmapper.CacheTarget{Metadata: "253:9"}) }, errOrder},
		"other data":     {func(b *bench) { b.becomes(devmapper.CacheTarget{Data: "253:9"}) }, errOrder},
		"another origin": {func(b *bench) { b.becomes(devmapper.CacheTarget{Origin: "253:9"}) }, errOrder},
		"other blocks":   {func(b *bench) { b.becomes(devmapper.CacheTarget{ChunkSectors: 256}) }, errOrder},
		"writeback":      {func(b *bench) { b.becomes(devmapper.CacheTarget{Mode: devmapper.Writeback}) }, errOrder},
		"no cache": {func(b *bench) {
			b.live = func() (devmapper.Table, error) { return devmapper.LinearTable(8, "253:3"), nil }
		}, errOrder},
		"no table":              {func(b *bench) { b.live = func() (devmapper.Table, error) { return nil, broken } }, broken},
		"the origin fails":      {func(b *bench) { b.remote.readErr = broken }, broken},
		"the origin is silent":  {func(b *bench) { b.limit, b.remote.hang = 20*time.Millisecond, hang }, errOrigin},
		"silent, and no pieces": {func(b *bench) { b.limit, b.remote.hang, b.order.Pieces = 20*time.Millisecond, hang, nil }, errOrigin},
	} {
		b := newBench(true)
		b.suspend = func() error { t.Errorf("%s: suspended", name); return nil }
		tc.set(b)
		if _, err := b.run(); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	b := newBench(false) // to judge is allowed in each mode
	if b.becomes(devmapper.CacheTarget{Mode: devmapper.Writeback}); b.order.matches(testTable(devmapper.CacheTarget{Mode: devmapper.Writeback})) != nil {
		t.Error("a writeback cache is not judged")
	}
	if r, err := b.run(); err != nil || r.Judgements[0] != Same {
		t.Errorf("%v, %v", r, err)
	}
}

// TestOrderValidate: pieces are in their blocks.
func TestOrderValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		piece Piece
		ok    bool
	}{
		"the first one":        {Piece{Length: PieceBytes}, true},
		"the last one":         {Piece{Offset: 3 * PieceBytes, Length: PieceBytes}, true},
		"a short one":          {Piece{Offset: PieceBytes, Length: 512}, true},
		"of a larger block":    {Piece{Offset: 4 * PieceBytes, Length: PieceBytes}, false},
		"partly behind":        {Piece{Offset: 4*PieceBytes - 512, Length: 1024}, false},
		"before":               {Piece{Offset: -512, Length: 512}, false},
		"empty":                {Piece{}, false},
		"negative":             {Piece{Offset: 512, Length: -512}, false},
		"longer than a buffer": {Piece{Length: PieceBytes + 512}, false},
		"beyond all numbers":   {Piece{Offset: math.MaxInt64, Length: PieceBytes}, false},
	} {
		err := Order{BlockBytes: 4 * PieceBytes, Pieces: []Piece{{Length: 512}, tc.piece}}.validate()
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, errOrder) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, o := range []Order{{}, {BlockBytes: testBlock, Pieces: make([]Piece, MostPieces+1)}} {
		if err := o.validate(); !errors.Is(err, errOrder) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestGuard: what a guard says of a corrupted block, and what it does about it.
func TestGuard(t *testing.T) {
	rot := func(b *bench) { b.ssd.b[testBlock+5000] ^= 1 } // of block 1
	broken := errors.New("broken")
	cases := map[string]struct {
		set          func(*bench)
		want, wanted Judgement // without and with Renew
		// kept is true if the SSD has what it had, for another reason than that all is right.
		untouched bool
	}{
		"all right":                     {func(b *bench) {}, Same, Same, true},
		"a bit":                         {rot, Corrupted, Renewed, false},
		"moved":                         {func(b *bench) { rot(b); b.mapped[1].Origin = 4 }, Moved, Moved, true},
		"free":                          {func(b *bench) { rot(b); b.mapped[1].Mapped = false }, Moved, Moved, true},
		"dirty":                         {func(b *bench) { rot(b); b.mapped[1].Dirty = true }, Dirty, Dirty, true},
		"zeroes at the origin":          {func(b *bench) { clear(b.remote.b[2*testBlock+4096 : 2*testBlock+8192]) }, Discarded, Renewed, false},
		"zeroes at a raw origin":        {func(b *bench) { clear(b.remote.b[2*testBlock+4096 : 2*testBlock+8192]); b.order.Raw = true }, Corrupted, Renewed, false},
		"zeroes at the origin, and rot": {func(b *bench) { rot(b); clear(b.remote.b[2*testBlock+8192 : 2*testBlock+12288]) }, Corrupted, Renewed, false},
		"something else":                {func(b *bench) { copy(b.ssd.b[testBlock:], b.remote.b[:8192]) }, Corrupted, Renewed, false},
		"something else, by a discard":  {func(b *bench) { copy(b.ssd.b[testBlock:], b.remote.b[:8192]); b.order.Discards = true }, Discarded, Renewed, false},
		"a bit, beside discards":        {func(b *bench) { rot(b); b.order.Discards = true }, Corrupted, Renewed, false},
		"the SSD cannot be read":        {func(b *bench) { rot(b); b.ssd.readErr = broken }, Unknown, Unknown, true},
		"the origin cannot be read":     {func(b *bench) { rot(b); b.onceSuspended(func() { b.remote.readErr = broken }) }, Unknown, Unknown, true},
		"another table":                 {func(b *bench) { rot(b); b.onceSuspended(func() { b.becomes(devmapper.CacheTarget{Data: "253:9"}) }) }, Unknown, Unknown, true},
		"the metadata cannot be read": {func(b *bench) {
			rot(b)
			b.places = func([]uint64) ([]devmapper.CacheBlock, error) { return nil, broken }
		}, Unknown, Unknown, true},
		"the SSD refuses":       {func(b *bench) { rot(b); b.ssd.writeErr = broken }, Corrupted, NotKept, true},
		"the SSD keeps nothing": {func(b *bench) { rot(b); b.ssd.lossy = true }, Corrupted, NotKept, true},
	}
	for name, tc := range cases {
		for renew, want := range map[bool]Judgement{false: tc.want, true: tc.wanted} {
			b := newBench(renew)
			tc.set(b)
			ssd, origin := bytes.Clone(b.ssd.b), bytes.Clone(b.remote.b)
			r, err := b.run()
			if err != nil || r.Judgements[1] != want {
				t.Errorf("%s, renew %t: %v, %v, want %s", name, renew, r.Judgements, err, want)
			}
			if b.suspended.Load() != 0 || b.calls.Load() != 1 {
				t.Errorf("%s: resumed %d times", name, b.calls.Load())
			}
			if b.remote.writes > 0 || !bytes.Equal(b.remote.b, origin) {
				t.Errorf("%s: the origin was written to", name)
			}
			if same := bytes.Equal(b.ssd.b, ssd); same != (!renew || tc.untouched) {
				t.Errorf("%s, renew %t: the SSD is as before: %t", name, renew, same)
			}
			if want == Renewed && !bytes.Equal(b.ssd.b, b.remote.b[testBlock:]) {
				t.Errorf("%s: the SSD does not have what the origin has", name)
			}
			if (want == Moved || want == Dirty) && slices.Contains(r.Judgements, Renewed) {
				t.Errorf("%s: %v", name, r.Judgements)
			}
		}
	}
}

// TestGuardResumes: the device goes on in time whatever does not answer, and nothing is written
// after that.
func TestGuardResumes(t *testing.T) {
	b := newBench(true)
	b.ssd.b[5] ^= 1
	b.limit = 20 * time.Millisecond
	b.onceSuspended(func() { b.remote.hang = make(chan struct{}) })
	r, err := b.run()
	if err != nil || b.suspended.Load() != 0 || r.Judgements[0] != Unknown {
		t.Errorf("%v, %v, suspended %d", r, err, b.suspended.Load())
	}
	b.ssd.mu.Lock()
	before := bytes.Clone(b.ssd.b)
	b.ssd.mu.Unlock()
	close(b.remote.hang)
	time.Sleep(20 * time.Millisecond)
	b.ssd.mu.Lock()
	defer b.ssd.mu.Unlock()
	if b.ssd.writes > 0 || !bytes.Equal(b.ssd.b, before) {
		t.Error("the SSD was written to below a device that goes on")
	}
}

// TestGuardWrites: the device is not resumed while the guard writes to the SSD.
func TestGuardWrites(t *testing.T) {
	b := newBench(true)
	b.ssd.b[5] ^= 1
	b.limit, b.ssd.holdWrite = 20*time.Millisecond, make(chan struct{})
	b.resume = func() error {
		b.ssd.mu.Lock()
		defer b.ssd.mu.Unlock()
		if b.ssd.writes != 1 {
			t.Error("resumed before the write had ended")
		}
		return nil
	}
	go func() {
		time.Sleep(100 * time.Millisecond)
		close(b.ssd.holdWrite)
	}()
	if r, err := b.run(); err != nil || r.Judgements[0] != Renewed || r.Suspended < 80*time.Millisecond {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestGuardBudget: a guard with little time judges what it comes to.
func TestGuardBudget(t *testing.T) {
	b := newBench(false)
	began := time.Now()
	b.now = func() time.Time { return began.Add(time.Duration(b.remote.reads) * budget / 2) }
	r, err := b.run()
	if want := []Judgement{Same, Same, Unknown, Unknown}; err != nil || !slices.Equal(r.Judgements, want) {
		t.Errorf("%v, %v, want %v", r.Judgements, err, want)
	}
	b.suspend = func() error { return errors.New("it does not come to rest") }
	if _, err := b.run(); err == nil || b.suspended.Load() != 0 {
		t.Errorf("%v, suspended %d", err, b.suspended.Load())
	}
}

// TestReadPlaces: metadata that the kernel could not write down are of before, and not gone by.
func TestReadPlaces(t *testing.T) {
	raw, err := os.ReadFile("../../devmapper/testdata/superblock-clean.bin")
	if err != nil {
		t.Fatal(err)
	}
	status := devmapper.CacheStatus{}
	sb, err := devmapper.ReadCacheSuperblock(&memory{b: raw})
	if err != nil {
		t.Fatal(err)
	}
	blockBytes := int64(sb.DataBlockSectors) * 512
	read := func(m *memory) error {
		_, err := readPlaces(m, blockBytes, nil, func() (devmapper.CacheStatus, error) { return status, nil })
		return err
	}
	if err := read(&memory{b: raw}); err != nil {
		t.Errorf("a cache at rest: %v", err)
	}
	for name, st := range map[string]devmapper.CacheStatus{"failed": {Fail: true}, "read-only": {ReadOnly: true}, "needs a check": {NeedsCheck: true}} {
		status = st
		if err := read(&memory{b: raw}); !errors.Is(err, devmapper.ErrMetadata) {
			t.Errorf("%s: %v", name, err)
		}
	}
	status = devmapper.CacheStatus{}
	unclean := &memory{b: bytes.Clone(raw)}
	if err := devmapper.MarkUnclean(unclean); err != nil {
		t.Fatal(err)
	}
	if err := read(unclean); !errors.Is(err, devmapper.ErrMetadata) {
		t.Errorf("without the flag of a clean stop: %v", err)
	}
	blockBytes *= 2
	if err := read(&memory{b: raw}); !errors.Is(err, devmapper.ErrMetadata) {
		t.Errorf("of blocks of another length: %v", err)
	}
}
