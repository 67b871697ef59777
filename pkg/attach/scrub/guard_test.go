package scrub

import (
	"bytes"
	"errors"
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

func newBench(renew bool) *bench {
	b := &bench{ssd: filled(4, 0), remote: filled(5, 0)}
	copy(b.ssd.b, b.remote.b[testBlock:])
	for i := range uint64(4) {
		b.mapped = append(b.mapped, devmapper.CacheBlock{Mapped: true, Origin: i + 1})
	}
	b.guard = &guard{
		order:   Order{BlockBytes: testBlock, Renew: renew},
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
		"zeroes at the origin, and rot": {func(b *bench) { rot(b); clear(b.remote.b[2*testBlock+8192 : 2*testBlock+12288]) }, Corrupted, Renewed, false},
		"something else":                {func(b *bench) { copy(b.ssd.b[testBlock:], b.remote.b[:8192]) }, Corrupted, Renewed, false},
		"something else, by a discard":  {func(b *bench) { copy(b.ssd.b[testBlock:], b.remote.b[:8192]); b.order.Discards = true }, Discarded, Renewed, false},
		"a bit, beside discards":        {func(b *bench) { rot(b); b.order.Discards = true }, Corrupted, Renewed, false},
		"the SSD cannot be read":        {func(b *bench) { rot(b); b.ssd.readErr = broken }, Unknown, Unknown, true},
		"the origin cannot be read":     {func(b *bench) { rot(b); b.remote.readErr = broken }, Unknown, Unknown, true},
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
	b.limit, b.remote.hang = 20*time.Millisecond, make(chan struct{})
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
	read := func(m *memory) error {
		_, err := readPlaces(m, nil, func() (devmapper.CacheStatus, error) { return status, nil })
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
}
