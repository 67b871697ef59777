package advise

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

const (
	// leastHit is the hit rate in percent below which a cache is not worth its space.
	leastHit = 20
	// evenHit is the one below which the largest possible cache of evenly read data is not.
	evenHit = 50
	// coarse is by how many points the most that a cache may answer has to be above what is
	// predicted, for the prediction to say nothing against a cache.
	coarse = 20
	// fewReads is the share of writes in percent from which reads hardly count, and manyWrites that
	// from which writeback is worth a thought.
	fewReads, manyWrites = 90, 30
	// manyFlushes is how many flushes for each write are so many that writeback, in which they wait for
	// the storage server too, gains little.
	manyFlushes = 0.5
	// sameSize is the part by which sizes may differ that are taken for the same.
	sameSize = 0.15
	// sizeStep is what sizes are rounded up to.
	sizeStep = 64 << 20
	// maxChunks is what a cache has at most, and maxChunk the largest chunk that is advised.
	maxChunks, maxChunk = 1_000_000, 1 << 20
	// minChunk is the smallest that is advised, which is the smallest automatic one.
	minChunk = 128 << 10
	// mostReads is how many reads in percent have to be longer than a chunk for another to be advised, of which
	// fewLonger may be longer too. Of fewShorter it does not matter how much they are longer than a part of a
	// chunk, 1/muchShorter.
	mostReads, fewLonger, fewShorter, muchShorter = 50, 25, 10, 4
	// nearlyWhole is the mean length of reads, as a part of the longest that there can be, from which some
	// are taken for parts of longer ones: of two chunks and a half, three are read.
	nearlyWhole = 0.6
	// firstWait is how long a volume is looked at before anything is known.
	firstWait = 30 * time.Minute
)

// Verdict is what comes of it.
type Verdict string

// The verdicts.
const (
	// Unknown says nothing for or against a cache.
	Unknown Verdict = "Unknown"
	// Cache is a cache of Size.
	Cache Verdict = "Cache"
	// NoCache is that one will not help.
	NoCache Verdict = "NoCache"
)

// Facts are what is known of a volume. Sizes are bytes, 0 where they are not known.
type Facts struct {
	Now time.Time
	// Attached is whether a node has the volume.
	Attached bool
	// Capacity is the volume's size, MaxCache the most that its cache may have, and Pool the size of
	// its node's pool.
	Capacity, MaxCache, Pool int64
	// Mode is the mode that is loaded, Size the size of the cache that is.
	Mode v1alpha1.CacheMode
	Size int64
	// Consent is whether unflushed writes may be lost with the node.
	Consent bool
	// Reuse is what the node has seen, and Window what of it is asked for; "" is the longest.
	Reuse  v1alpha1.Reuse
	Window v1alpha1.ReuseWindowName
}

// Advice is what is advised.
type Advice struct {
	Verdict Verdict `json:"verdict"`
	// Reason is a sentence without a full stop.
	Reason string `json:"reason"`
	// Window is what it rests on, and Seen what was seen there; absent with Unknown, if nothing was.
	Window v1alpha1.ReuseWindowName `json:"window,omitempty"`
	Seen   *v1alpha1.ReuseWindow    `json:"seen,omitempty"`
	// Mode and SizeBytes are those of the cache that is advised, HitPercent what it is to answer of
	// all reads. Without a cache Mode is none.
	Mode       v1alpha1.CacheMode `json:"mode,omitempty"`
	SizeBytes  int64              `json:"sizeBytes,omitempty"`
	HitPercent *int32             `json:"hitPercent,omitempty"`
	// NowHitPercent is what the cache that is there is to answer.
	NowHitPercent *int32 `json:"nowHitPercent,omitempty"`
	// ModeReason says why that mode, Writeback whether writes would gain from it and consent is what
	// is missing.
	ModeReason string `json:"modeReason,omitempty"`
	Writeback  bool   `json:"writeback,omitempty"`
	// Notes are about chunks and resolution.
	Notes []string `json:"notes,omitempty"`
	// Resize and ChangeMode are whether it differs from what is there.
	Resize     bool `json:"resize,omitempty"`
	ChangeMode bool `json:"changeMode,omitempty"`
}

// Decide returns the advice for a volume.
func Decide(f Facts) Advice {
	w, why := window(f)
	if w == nil {
		return Advice{Verdict: Unknown, Reason: why}
	}
	a := Advice{Window: w.Window, Seen: w}
	if f.Mode != v1alpha1.CacheModeNone && f.Size > 0 && len(w.HitPercents) > 0 {
		now := Hit(w, part(f.Size, f.Capacity))
		a.NowHitPercent = &now
	}
	size(f, w, &a)
	mode(f, w, &a)
	a.Notes = append(a.Notes, chunk(f, w, &a)...)
	if a.Verdict == Cache && a.SizeBytes > 0 {
		a.Resize = different(a.SizeBytes, f.Size) || f.Mode == v1alpha1.CacheModeNone
	}
	a.ChangeMode = a.Verdict != Unknown && a.Mode != f.Mode
	return a
}

// window chooses what the advice rests on; nil with the reason if there is nothing.
func window(f Facts) (w *v1alpha1.ReuseWindow, why string) {
	looked := f.Reuse.ObservedTime.Sub(f.Reuse.SinceTime.Time)
	switch {
	case !f.Attached:
		return nil, "not known: the volume is attached nowhere, and only the node that has it sees what it reads"
	case f.Reuse.ObservedTime.IsZero():
		return nil, "not known yet: no node has looked at what the volume reads (a volume that was attached before the node plugin was upgraded is looked at from its next attachment on, if it has no cache)"
	case f.Capacity <= 0:
		return nil, "not known: nobody has said how large the volume is"
	}
	for i := range f.Reuse.Windows {
		if one := &f.Reuse.Windows[i]; f.Window == "" || one.Window == f.Window {
			w = one
		}
	}
	ago := duration.HumanDuration(max(0, f.Now.Sub(f.Reuse.SinceTime.Time)))
	switch {
	case w != nil:
		return w, ""
	case f.Window != "" && len(f.Reuse.Windows) > 0:
		return nil, fmt.Sprintf("not known yet for a %s: the node has looked for %s, and half a %s is the least", f.Window, ago, f.Window)
	case looked < firstWait:
		return nil, fmt.Sprintf("not known yet: the node has looked for %s, and half an hour is the least", ago)
	}
	return nil, fmt.Sprintf("not known: the node has looked for %s, and seen fewer than a thousand reads and writes of late", ago)
}

// size decides whether there shall be a cache, and of what size.
func size(f Facts, w *v1alpha1.ReuseWindow, a *Advice) {
	most := f.Capacity
	for _, limit := range []int64{f.MaxCache, f.Pool} {
		if limit > 0 {
			most = min(most, limit)
		}
	}
	writes, again := value(w.WritePercent), value(w.AgainPercent)
	a.Mode = v1alpha1.CacheModeNone
	switch all := Hit(w, 1); {
	case len(w.HitPercents) == 0 || writes >= fewReads:
		writesAlone(f, w, a)
		return
	case all < leastHit && again-all >= coarse:
		a.Verdict, a.Mode = Unknown, ""
		a.Reason = fmt.Sprintf("not known: between %d %% and %d %% of the reads could hit; reads are counted in areas of %s here, and which chunks of %s they are of cannot be told",
			all, again, quantity.Text(value64(f.Reuse.AreaBytes)), quantity.Text(value64(f.Reuse.ChunkBytes)))
		return
	case all < leastHit:
		a.Verdict = NoCache
		a.Reason = fmt.Sprintf("a cache will not help here, because %d %% of the reads are of data that was not read before, as in a scan: even one as large as the volume would answer %d %%", 100-all, all)
		return
	}
	knee := value64(w.KneeBytes)
	want := most
	if knee > 0 {
		want = min(round(knee), most)
	}
	hit := Hit(w, part(want, f.Capacity))
	if knee > 0 && want >= knee {
		hit = max(hit, value(w.KneeHitPercent))
	}
	least := int32(leastHit)
	if knee == 0 {
		least = evenHit
	}
	if hit < least {
		a.Verdict = NoCache
		a.Reason = fmt.Sprintf("a cache will not help here, because the reads are spread evenly over %s: the largest that is possible, %s, would answer %d %%", quantity.Text(f.Capacity), quantity.Text(most), hit)
		if knee > 0 {
			a.Reason = fmt.Sprintf("a cache will not help here, because what is read most, %s, is more than there can be, %s, which would answer %d %%", quantity.Text(knee), quantity.Text(most), hit)
		}
		return
	}
	a.Verdict, a.SizeBytes, a.HitPercent = Cache, want, &hit
	a.Mode = ""
	switch {
	case knee == 0:
		a.Reason = "reads are spread evenly: each more of cache helps as much as any other, up to the size that is advised"
	case want < knee:
		a.Reason = fmt.Sprintf("this is the most that there can be; %s would be better", quantity.Text(knee))
	default:
		a.Reason = fmt.Sprintf("more would help less: all of the volume would answer %d %%", Hit(w, 1))
	}
}

// writesAlone is for volumes that hardly read.
func writesAlone(f Facts, w *v1alpha1.ReuseWindow, a *Advice) {
	if f.Consent && f.Mode == v1alpha1.CacheModeWriteback {
		a.Verdict, a.SizeBytes, a.Mode = Cache, f.Size, v1alpha1.CacheModeWriteback
		a.Reason = "hardly anything is read: the cache is for writes, and what size it needs does not show in reads"
		return
	}
	a.Verdict = NoCache
	a.Reason = fmt.Sprintf("a cache will not help here, because %d %% of the operations are writes, which only writeback takes from the storage server", value(w.WritePercent))
}

// mode chooses how writes pass.
func mode(f Facts, w *v1alpha1.ReuseWindow, a *Advice) {
	writes := value(w.WritePercent)
	share := fmt.Sprintf("%d %% of the operations are writes", writes)
	flushing := false
	if n := w.FlushesPerHour; n != nil {
		share += fmt.Sprintf(", %d flushes (fsync) come in an hour", *n)
		flushing = float64(*n) >= manyFlushes*writesPerHour(f, w)
	}
	a.Writeback = writes >= manyWrites && f.Mode != v1alpha1.CacheModeWriteback && a.Verdict != Unknown && !flushing
	if a.Verdict != Cache {
		return
	}
	switch {
	case writes >= manyWrites && flushing && f.Mode != v1alpha1.CacheModeWriteback:
		a.Mode, a.ModeReason = v1alpha1.CacheModeWritethrough, share+": writeback would gain little, as each flush waits for the storage server in every mode"
	case f.Mode == v1alpha1.CacheModeWriteback && writes < manyWrites:
		a.Mode, a.ModeReason = v1alpha1.CacheModeWriteback, share+": writethrough would lose nothing with a node, and cost them alone"
	case f.Mode == v1alpha1.CacheModeWriteback:
		a.Mode, a.ModeReason = v1alpha1.CacheModeWriteback, share
	case a.Writeback && f.Consent:
		a.Mode, a.ModeReason = v1alpha1.CacheModeWriteback, share+", and their loss with the node is accepted"
	case a.Writeback:
		a.Mode, a.ModeReason = v1alpha1.CacheModeWritethrough, share+": writeback would answer them from the SSD, if it is acceptable that those that were not flushed are lost with the node"
	default:
		a.Mode, a.ModeReason = v1alpha1.CacheModeWritethrough, share
	}
}

// writesPerHour is the rate of writes. What fades with the window's length adds up to what came in as
// much time as is left of all that was looked at, faded in the same way.
func writesPerHour(f Facts, w *v1alpha1.ReuseWindow) float64 {
	length := map[v1alpha1.ReuseWindowName]float64{v1alpha1.ReuseHour: 1, v1alpha1.ReuseDay: 24, v1alpha1.ReuseWeek: 7 * 24}[w.Window]
	looked := f.Reuse.ObservedTime.Sub(f.Reuse.SinceTime.Time).Hours()
	if length == 0 || looked <= 0 {
		return 0
	}
	return float64(value64(w.Operations)) * float64(value(w.WritePercent)) / 100 / (length * -math.Expm1(-looked/length))
}

// chunk says whether another size of chunk would be better; none can be changed.
func chunk(f Facts, w *v1alpha1.ReuseWindow, a *Advice) []string {
	have := value64(f.Reuse.ChunkBytes)
	if a.Verdict != Cache || have <= 0 {
		return nil
	}
	var notes []string
	if have*maxChunks < a.SizeBytes {
		notes = append(notes, fmt.Sprintf("chunks of %s are too small for %s: a cache has at most a million", quantity.Text(have), quantity.Text(a.SizeBytes)))
	}
	if n := length(f, w, have, a.SizeBytes); n != "" {
		notes = append(notes, n)
	}
	if area := value64(f.Reuse.AreaBytes); area > have {
		notes = append(notes, fmt.Sprintf("reads are counted in areas of %s, a chunk has %s: what is predicted is the least to be expected", quantity.Text(area), quantity.Text(have)))
	}
	return notes
}

// length compares how long reads are with the length of a chunk, and says which would suit them; "" if this
// one does, or nobody knows.
func length(f Facts, w *v1alpha1.ReuseWindow, have, size int64) string {
	const anew = "a volume that is made anew may have chunkSize %d; that of this one cannot be changed"
	// Longer reads count as several: in the device mapper of a cached volume, in the areas of another one.
	mean, divided := value64(w.ReadBytes), have
	if f.Mode == v1alpha1.CacheModeNone {
		divided = max(have, value64(f.Reuse.AreaBytes))
	}
	longer := func(most int64) (want int64) {
		for want = have; want < most && want < maxChunk; want *= 2 {
		}
		return want
	}
	switch {
	case len(w.ReadSizePercents) > 0:
		if over := 100 - atMost(w, have); over > mostReads {
			if want := longer(covering(w, 100-fewLonger)); want > have {
				return fmt.Sprintf("%d %% of the reads are longer than a chunk of %s: "+anew, over, quantity.Text(have), want)
			}
		}
		most := covering(w, 100-fewShorter)
		want := least(max(most, minChunk, (size+maxChunks-1)/maxChunks))
		if most <= maxChunk && most <= have/muchShorter && want < have {
			return fmt.Sprintf("%d %% of the reads have at most %s, and a chunk of %s is fetched as a whole: "+anew, atMost(w, most), quantity.Text(most), quantity.Text(have), want)
		}
	case float64(mean) >= nearlyWhole*float64(divided) && have < maxChunk:
		return fmt.Sprintf("a read has %s on average, and one of more than %s counts as several: how long those are cannot be told with the kernel of this node", quantity.Text(mean), quantity.Text(divided))
	case mean > have && have < maxChunk:
		return fmt.Sprintf("a read has %s on average, a chunk %s: "+anew, quantity.Text(mean), quantity.Text(have), longer(mean))
	}
	return ""
}

// atMost is how many of the reads, in percent, have at most so many bytes. Between two sizes that are told
// apart it is that of the larger one.
func atMost(w *v1alpha1.ReuseWindow, bytes int64) int32 {
	for i, size := range v1alpha1.ReuseReadSizes() {
		if i < len(w.ReadSizePercents) && size >= bytes {
			return w.ReadSizePercents[i]
		}
	}
	return 100 // nobody knows of longer ones
}

// covering is the least size in bytes that so many percent of the reads are not longer than.
func covering(w *v1alpha1.ReuseWindow, percent int32) int64 {
	for i, size := range v1alpha1.ReuseReadSizes() {
		if i < len(w.ReadSizePercents) && w.ReadSizePercents[i] >= percent {
			return size
		}
	}
	return 2 * maxChunk // longer than all that are counted
}

// least is the least power of two that is no less.
func least(bytes int64) int64 { return 1 << bits.Len64(uint64(bytes-1)) }

// Hit is the predicted hit rate in percent of a cache of such a part of the volume, from 0 to 1.
func Hit(w *v1alpha1.ReuseWindow, part float64) int32 {
	below, hit := 0., 0.
	for i, f := range v1alpha1.ReuseFractions() {
		if i >= len(w.HitPercents) {
			break
		}
		at, there := float64(f)/100, float64(w.HitPercents[i])
		if part <= at {
			return int32(hit + (there-hit)*(part-below)/(at-below) + 0.5)
		}
		below, hit = at, there
	}
	return int32(hit + 0.5)
}

func part(size, of int64) float64 { return min(float64(size)/float64(max(of, 1)), 1) }

func round(size int64) int64 { return (size + sizeStep - 1) / sizeStep * sizeStep }

func different(a, b int64) bool {
	return float64(max(a, b)-min(a, b)) > sameSize*float64(max(a, b))
}

func value(p *int32) int32 {
	if p == nil {
		return 0
	}
	return *p
}

func value64(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}
