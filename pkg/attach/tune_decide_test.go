package attach

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

const mib = 1 << 20

// attached builds tuneFacts from a volume that runs as its record asks.
type attached struct{ f tuneFacts }

// runs is a Staged volume with a cache of 64 MiB in the given mode.
func runs(mode volume.CacheMode) *attached {
	s := &attached{tuneFacts{
		Entry: &Entry{
			Fence: fence5, State: StateStaged, Mode: mode, Activated: mode != volume.ModeNone,
			ChunkSectors: 256, DataBytes: 64 * mib, MetaBytes: 8 * mib, OriginBytes: 1024 * mib, Marked: mode == volume.ModeWriteback,
		},
		Record:     volume.Volume{Fence: fence5, Published: true, PossiblyDirty: mode == volume.ModeWriteback, Spec: volume.Spec{Mode: mode}},
		LiveOrigin: mode == volume.ModeNone, LiveCache: mode != volume.ModeNone,
	}}
	if mode == volume.ModeNone {
		s.f.Entry.ChunkSectors, s.f.Entry.DataBytes, s.f.Entry.MetaBytes = 0, 0, 0
		return s
	}
	s.f.Status = devmapper.CacheStatus{Policy: devmapper.PolicySMQ, Features: []string{"metadata2", string(liveMode(mode))}}
	return s.wants(64 * mib)
}

func (s *attached) asks(mode volume.CacheMode) *attached {
	s.f.Record.Spec.Mode = mode
	if mode == volume.ModeNone {
		s.f.Want = geometry{}
	} else if s.f.Want.dataBytes == 0 {
		s.wants(64 * mib)
	}
	return s
}

func (s *attached) wants(bytes int64) *attached {
	s.f.Want = geometry{chunkSectors: 256, dataBytes: bytes, metaBytes: 8 * mib}
	return s
}

func (s *attached) with(change func(*tuneFacts)) *attached {
	change(&s.f)
	return s
}

func (s *attached) live(mode devmapper.CacheMode, policy devmapper.CachePolicy) *attached {
	s.f.LiveCache, s.f.LiveOrigin = true, false
	s.f.Status = devmapper.CacheStatus{Policy: policy, Features: []string{string(mode)}}
	return s
}

func flushAsked(f *tuneFacts)  { f.Record.FlushRequest = "t1" }
func flushDone(f *tuneFacts)   { f.Record.FlushRequest, f.Entry.FlushDone = "t1", "t1" }
func marked(f *tuneFacts)      { f.Entry.Marked = true }
func tooCoarse(f *tuneFacts)   { f.Coarse = "4096, not 512" }
func poolGone(f *tuneFacts)    { f.Problem = "no devices" }
func leftover(f *tuneFacts)    { f.Leftover = true }
func tinyMeta(f *tuneFacts)    { f.Entry.MetaBytes = 4 * mib }
func brokenSSD(f *tuneFacts)   { f.Broken, f.Problem = "input/output error", "input/output error" }
func degraded(f *tuneFacts)    { f.Degraded, f.Problem = "one copy is missing", "the mirror is degraded" }
func failedOver(f *tuneFacts)  { f.Entry.FailoverCause = "input/output error" }
func bounded(f *tuneFacts)     { f.Record.Spec.DirtyLimit.Max.Percent = 10 }
func unmarked(f *tuneFacts)    { f.Record.PossiblyDirty = false }
func failedCache(f *tuneFacts) { f.Status = devmapper.CacheStatus{Fail: true} }

func TestDecideTune(t *testing.T) {
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	const smq, cleaner = devmapper.PolicySMQ, devmapper.PolicyCleaner
	through, back := devmapper.Writethrough, devmapper.Writeback
	cases := map[string]struct {
		s    *attached
		want tuneStep
	}{
		"uncached as asked":     {runs(none), tuneDone},
		"writethrough as asked": {runs(wt), tuneDone},
		"writeback as asked":    {runs(wb), tuneDone},

		"no entry":           {runs(wt).with(func(f *tuneFacts) { f.Entry = nil }), tuneNothing},
		"being unstaged":     {runs(wt).asks(none).with(func(f *tuneFacts) { f.Entry.State = StateFlushing }), tuneNothing},
		"released":           {runs(wt).asks(none).with(func(f *tuneFacts) { f.Record.Published = false }), tuneNothing},
		"another generation": {runs(wt).asks(none).with(func(f *tuneFacts) { f.Record.Fence = fence4 }), tuneNothing},
		"no top device":      {runs(wt).asks(none).with(func(f *tuneFacts) { f.LiveCache = false }), tuneNothing},
		"a failed cache":     {runs(wb).asks(none).with(failedCache), tuneImpossible},
		"a broken cache":     {runs(wt).asks(wb).with(brokenSSD), tuneImpossible},
		"a broken cache, denied by a killed step": {runs(none).asks(wt).live(through, smq).with(sized).with(brokenSSD), tuneImpossible},
		"a failover that was killed":              {runs(none).asks(wt).live(through, smq).with(sized).with(failedOver), tuneNothing},
		"a failover, not reported yet":            {runs(none).asks(wt).with(failedOver), tuneCache},
		"journal claims more":                     {runs(wb).asks(none).with(func(f *tuneFacts) { f.LiveCache, f.LiveOrigin = false, true }), tuneNothing},

		"cache asked for":                {runs(none).asks(wt), tuneCache},
		"writeback begins writethrough":  {runs(none).asks(wb), tuneCache},
		"cache asked for, leftovers":     {runs(none).asks(wt).with(leftover), tuneSweep},
		"dropped, leftovers":             {runs(none).with(leftover), tuneSweep},
		"cache asked for, no pool":       {runs(none).asks(wt).with(poolGone), tuneImpossible},
		"no pool, but a flush to report": {runs(none).asks(wt).with(poolGone).with(flushAsked), tuneFlushed},

		"writethrough, blocks too large":          {runs(wt).with(tooCoarse), tuneUncache},
		"writeback, blocks too large":             {runs(wb).with(tooCoarse), tuneClean},
		"blocks too large, cleaned, mark is left": {runs(wt).asks(wb).live(through, cleaner).with(marked).with(tooCoarse), tuneUnmark},
		"blocks too large, cleaned, unmarked":     {runs(wt).asks(wb).live(through, cleaner).with(tooCoarse), tuneUncache},
		"blocks too large, killed before journal": {runs(none).asks(wt).live(through, smq).with(sized).with(tooCoarse), tuneUncache},

		"killed between load and journal":       {runs(none).asks(wt).live(through, smq).with(sized), tuneRecord},
		"killed between journal and load":       {runs(none).live(through, smq).with(sized), tuneUncache},
		"killed there, another size asked for":  {runs(none).asks(wt).wants(32*mib).live(through, smq).with(sized), tuneUncache},
		"killed there, a larger size asked for": {runs(none).asks(wt).wants(128*mib).live(through, smq).with(sized), tuneRecord},

		"writethrough to writeback": {runs(wt).asks(wb), tuneWriteback},
		"writethrough to none":      {runs(wt).asks(none), tuneUncache},
		"writeback to writethrough": {runs(wb).asks(wt), tuneClean},
		"writeback to none":         {runs(wb).asks(none), tuneClean},
		"cleaning goes on":          {runs(wb).asks(wt).live(through, cleaner), tuneClean},
		"cleaned, mark is left":     {runs(wt).live(through, cleaner).with(marked), tuneUnmark},
		"cleaned, unmarked":         {runs(wt).live(through, cleaner), tuneRestore},
		"cleaned, to none, marked":  {runs(wt).asks(none).live(through, cleaner).with(marked), tuneUnmark},
		"changed back in the middle": {
			runs(wb).live(through, cleaner), tuneRestore,
		},
		"journalled writeback, not loaded yet": {runs(wb).live(through, smq), tuneRestore},
		"writeback live, never journalled as writethrough": {
			runs(wt).live(back, smq), tuneRestore,
		},

		"writeback, given up meanwhile":               {runs(wb).with(unmarked), tuneMark},
		"writeback, given up, another mode":           {runs(wb).asks(wt).with(unmarked), tuneMark},
		"writeback that is not live yet and unmarked": {runs(wb).live(through, smq).with(unmarked), tuneMark},

		"flush of writeback":               {runs(wb).with(flushAsked), tuneClean},
		"flush of writeback, done":         {runs(wb).live(through, cleaner).with(flushDone), tuneRestore},
		"flush of writeback, to report":    {runs(wb).with(flushDone), tuneFlushed},
		"flush of writethrough":            {runs(wt).with(flushAsked), tuneFlushed},
		"flush and another mode":           {runs(wb).asks(wt).with(flushAsked), tuneClean},
		"an old flush asks for no new one": {runs(wb).with(func(f *tuneFacts) { flushAsked(f); f.Record.FlushDone = "t1" }), tuneDone},

		"a degraded mirror, writeback":           {runs(wb).asks(wt).with(degraded), tuneClean},
		"a degraded mirror, flushed, marked":     {runs(wt).live(through, cleaner).with(marked).with(degraded), tuneUnmark},
		"a degraded mirror, the cleaner is left": {runs(wt).live(through, cleaner).with(degraded), tuneRestore},
		"a degraded mirror, written through":     {runs(wt).with(degraded), tuneImpossible},
		"a degraded mirror, larger":              {runs(wt).wants(128 * mib).with(degraded), tuneImpossible},
		"a degraded mirror, dropped":             {runs(wt).asks(none).with(degraded), tuneUncache},
		"held by the dirty limit":                {runs(wb).live(through, smq).with(bounded), tuneDone},
		"drained by the dirty limit":             {runs(wb).live(through, cleaner).with(bounded), tuneDone},
		"a bound leaves a flush its way":         {runs(wb).live(through, smq).with(bounded).with(flushAsked), tuneClean},
		"a bound leaves a mode its way":          {runs(wb).asks(wt).live(through, cleaner).with(bounded), tuneClean},
		"limited and larger":                     {runs(wb).live(through, smq).with(bounded).with(enlarged), tuneGrow},
		"a bound of no use is in nobody's way": {
			runs(wt).live(through, cleaner).with(bounded), tuneRestore,
		},

		"larger":                          {runs(wt).wants(128 * mib), tuneGrow},
		"larger, writeback":               {runs(wb).wants(128 * mib), tuneGrow},
		"larger, cleaner still loaded":    {runs(wb).wants(128*mib).live(through, cleaner), tuneRestore},
		"smaller":                         {runs(wt).wants(32 * mib), tuneUncache},
		"smaller, writeback":              {runs(wb).wants(32 * mib), tuneClean},
		"smaller, cleaned, still marked":  {runs(wt).asks(wb).wants(32 * mib).with(marked), tuneUncache},
		"too large for the metadata":      {runs(wt).wants(128 * mib).with(tinyMeta), tuneUncache},
		"too large for them, writeback":   {runs(wb).wants(128 * mib).with(tinyMeta), tuneClean},
		"too many blocks":                 {runs(wt).wants(256 << 30), tuneUncache},
		"pool gone under a running cache": {runs(wt).with(poolGone).with(func(f *tuneFacts) { f.Want = geometry{} }), tuneDone},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decideTune(tc.s.f); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func enlarged(f *tuneFacts) { f.Want.dataBytes = 128 * mib }

// sized gives an uncached entry the shape that a killed step has journalled.
func sized(f *tuneFacts) {
	f.Entry.ChunkSectors, f.Entry.DataBytes, f.Entry.MetaBytes = 256, 64*mib, 8*mib
}

// Whatever is asked for and wherever a step was killed: no step takes a cache
// away, or stops counting it as dirty, that may hold the only copy of a write.
func TestTuneNeverForgetsDirt(t *testing.T) {
	modes := []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback}
	for _, asked := range modes {
		for _, live := range []devmapper.CacheMode{devmapper.Writethrough, devmapper.Writeback} {
			for _, policy := range []devmapper.CachePolicy{devmapper.PolicySMQ, devmapper.PolicyCleaner} {
				for _, size := range []int64{32 * mib, 64 * mib, 128 * mib} {
					s := runs(volume.ModeWriteback).asks(asked).live(live, policy)
					if asked != volume.ModeNone {
						s.wants(size)
					}
					s.f.Status.Dirty = 7
					switch step := decideTune(s.f); step {
					case tuneClean, tuneRestore, tuneGrow, tuneDone:
					default:
						t.Errorf("asked %s, live %s %s, %d bytes: %s", asked, live, policy, size, step)
					}
				}
			}
		}
	}
}
