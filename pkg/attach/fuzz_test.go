package attach

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// FuzzEntry: whatever stands in the journal, every table of states.md decides without a
// panic, and no entry, however it came about, gets around the fence.
func FuzzEntry(f *testing.F) {
	for _, text := range []string{
		`{}`,
		`{"id":"v","fence":{"UID":"u1","Generation":5,"Node":"a"},"state":"Retained","mode":"writethrough","clean":true,"chunkSectors":256,"dataBytes":67108864,"metaBytes":8388608}`,
		`{"id":"v","fence":{"UID":"u1","Generation":4,"Node":"a"},"state":"Retained","mode":"writeback","clean":true}`,
		`{"id":"v","fence":{"UID":"u2","Generation":5,"Node":"a"},"state":"Staged","mode":"writeback","activated":true,"marked":true}`,
		`{"id":"v","fence":{"UID":"u1","Generation":5,"Node":"a"},"state":"Staging","mode":"none"}`,
		`{"id":"v","fence":{"UID":"u1","Generation":5,"Node":"a"},"state":"Staged","mode":"writeback","fill":{"regionSectors":0}}`,
		`{"id":"v","fence":{"UID":"u1","Generation":4,"Node":"a"},"state":"Prewarm","mode":"writethrough","prewarm":{"request":"r","chunkSectors":0}}`,
		`{"id":"v","fence":{"UID":"u1","Generation":-9223372036854775808,"Node":"a"},"state":"Flushing","mode":"x"}`,
		`{"id":"v","state":"Wiping"}`, `{"id":"v","state":"Exported","exported":{}}`, `{"state":"Flushed","dataBytes":-1,"metaBytes":-1}`,
	} {
		for flags := range uint16(8) {
			f.Add([]byte(text), flags*37)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, flags uint16) {
		var e state.Entry
		if json.Unmarshal(text, &e) != nil {
			return
		}
		on := func(bit uint) bool { return flags>>bit&1 == 1 }
		s := newSituation(volume.ModeWriteback)
		s.f.Entry = &e
		s.f.Cache = ssd.Facts{
			Whole: on(0), Partial: on(1), Hydration: on(2), SuperblockClean: on(3), SuperblockBlank: on(4), Fence: e.Fence, Mode: e.Mode,
		}
		s.f.SameBoot, s.f.TopActive, s.f.TopOurs, s.f.Record.PossiblyDirty = on(5), on(6), on(7), on(8)
		plan := decideStage(s.f)
		foreign := e.Fence != s.f.Fence
		switch {
		case foreign && (plan.Cache == planAdopt || plan.Cache == planReuse || plan.Cache == planRecover):
			t.Errorf("an entry of the fence %+v leads to %s (I3)", e.Fence, plan.Cache)
		case plan.Wipe && e.MayBeDirty() && e.Fence.UID != s.f.Fence.UID && !(s.f.Cache.SuperblockBlank && s.f.Cache.Whole):
			t.Error("unflushed writes are destroyed without proof (I9)")
		case plan.Cache == planReuse && !s.f.Cache.SuperblockClean:
			t.Error("a cache that was not stopped cleanly is used again (I4)")
		}
		down := downFacts{Entry: &e, TopActive: on(6), Cache: s.f.Cache, Proof: proof{Deleted: on(9)}}
		if on(10) {
			down.Record = &s.f.Record
		}
		decideDown(down)
		decideChange(changeFacts{Entry: &e, Record: s.f.Record})
		decidePrewarm(prewarmFacts{Entry: &e, Node: "a"})
		prewarmKept(&e, s.f.Fence)
		prewarmWanted(&e, s.f.Record, "a", time.Unix(0, 0), time.Hour)
		if e.CacheBytes() < 0 && e.DataBytes >= 0 && e.MetaBytes >= 0 && e.DataBytes < 1<<60 && e.MetaBytes < 1<<60 {
			t.Errorf("%d bytes of cache", e.CacheBytes())
		}
	})
}

// FuzzPrewarm: whatever a source node says of its cache, and whatever stands in the file of
// what was copied, no run of the data that counts as right lies outside of the data.
func FuzzPrewarm(f *testing.F) {
	f.Add([]byte(copiedMagic), "t", []byte{0xff}, uint64(256), int64(64<<20), int64(1<<20))
	f.Add(encodeCopied("t", volume.Bits{0xff, 0x0f}), "t", []byte{0}, uint64(256), int64(2<<20), int64(256<<10))
	f.Add(encodeCopied("t", volume.Bits{0xff}), "u", []byte{0}, uint64(64), int64(1<<20), int64(1))
	f.Add([]byte{}, "", []byte{}, uint64(0), int64(0), int64(0))
	f.Add(encodeCopied("t", volume.Bits{0xff}), "t", []byte{0xff}, uint64(1), int64(513), int64(1<<62))
	f.Fuzz(func(t *testing.T, file []byte, tracking string, changed []byte, chunkSectors uint64, dataBytes, areaBytes int64) {
		copied := decodeCopied(file, tracking)
		if chunkSectors > devmapper.MaxChunkSectors || dataBytes > 1<<30 {
			return // the API bounds the first, the pool the second
		}
		lease := volume.Lease{ChunkSectors: chunkSectors, DataBytes: dataBytes, Tracked: &volume.Tracked{ID: tracking, AreaBytes: areaBytes, Changed: changed}}
		if unfit(&state.Prewarm{Tracking: tracking, ChunkSectors: chunkSectors, ExportedBytes: dataBytes}, lease) != "" {
			return
		}
		end := uint64(0)
		for _, r := range runsOf(unchanged(copied, lease), chunkSectors) {
			if r.Start < end || r.Length == 0 || (r.Start+r.Length)*sectorSize > uint64(dataBytes) {
				t.Fatalf("run %+v of %d bytes", r, dataBytes)
			}
			for c := r.Start / chunkSectors; c < (r.Start+r.Length)/chunkSectors; c++ {
				if !copied.Has(c) || volume.Bits(changed).Has(c*chunkSectors*sectorSize/uint64(areaBytes)) {
					t.Fatalf("chunk %d counts as right", c)
				}
			}
			end = r.Start + r.Length
		}
	})
}
