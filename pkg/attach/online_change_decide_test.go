package attach

import (
	"context"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

const mib = 1 << 20

// attached builds changeFacts from a volume that runs as its record asks.
type attached struct{ f changeFacts }

// runs is a Staged volume with a cache of 64 MiB in the given mode.
func runs(mode volume.CacheMode) *attached {
	s := &attached{changeFacts{
		Entry: &state.Entry{
			Fence: fence5, State: state.Staged, Mode: mode, Activated: mode != volume.ModeNone,
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

func (s *attached) with(change func(*changeFacts)) *attached {
	change(&s.f)
	return s
}

func (s *attached) live(mode devmapper.CacheMode, policy devmapper.CachePolicy) *attached {
	s.f.LiveCache, s.f.LiveOrigin = true, false
	s.f.Status = devmapper.CacheStatus{Policy: policy, Features: []string{string(mode)}}
	return s
}

func flushAsked(f *changeFacts) { f.Record.FlushRequest = "t1" }
func flushDone(f *changeFacts)  { f.Record.FlushRequest, f.Entry.FlushDone = "t1", "t1" }
func recovered(f *changeFacts)  { f.Entry.Recovered = true }
func dirty(f *changeFacts)      { f.Status.Dirty = 3 }
func denied(f *changeFacts)     { f.Entry.Deny() }
func marked(f *changeFacts)     { f.Entry.Marked = true }
func tooCoarse(f *changeFacts)  { f.Coarse = "4096, not 512" }
func leaves(f *changeFacts)     { f.Leaving = true }
func poolGone(f *changeFacts)   { f.Problem = "no devices" }
func leftover(f *changeFacts)   { f.Leftover = true }
func tinyMeta(f *changeFacts)   { f.Entry.MetaBytes = 4 * mib }
func brokenSSD(f *changeFacts)  { f.Broken, f.Problem = "input/output error", "input/output error" }
func degraded(f *changeFacts) {
	f.Degraded, f.Problem = "one copy is missing", "the mirror is degraded"
}
func failedOver(f *changeFacts) { f.Entry.FailoverCause = "input/output error" }
func bounded(f *changeFacts)    { f.Record.Spec.DirtyLimit.Max.Percent = 10 }
func unmarked(f *changeFacts)   { f.Record.PossiblyDirty = false }
func unsafeAsked(f *changeFacts) {
	f.Record.Spec.Unsafe, f.Record.Filesystem = true, volume.FormatDone
}

func notFormatted(f *changeFacts) { f.Record.Filesystem = volume.FormatBegun }
func unsafeNoted(f *changeFacts)  { f.Entry.Unsafe = true }
func single(f *changeFacts)       { f.Single = true }
func unchecked(f *changeFacts)    { f.Unchecked = true }
func noMirror(f *changeFacts)     { f.Problem, f.ProblemReason = notMirrored("a"), "NotMirrored" }
func drops(f *changeFacts)        { f.Drops = true }
func torn(f *changeFacts)         { f.Entry.Torn = true }
func lost(f *changeFacts)         { f.Entry.Lost = &state.Lost{To: keyOf(fence6)} }
func failedCache(f *changeFacts)  { f.Status = devmapper.CacheStatus{Fail: true} }

func TestDecideChange(t *testing.T) {
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	const smq, cleaner = devmapper.PolicySMQ, devmapper.PolicyCleaner
	through, back := devmapper.Writethrough, devmapper.Writeback
	cases := map[string]struct {
		s    *attached
		want changeStep
	}{
		"uncached as asked":     {runs(none), changeDone},
		"writethrough as asked": {runs(wt), changeDone},
		"writeback as asked":    {runs(wb), changeDone},

		"checksums asked for, none there":       {runs(wt).with(unchecked), changeUncache},
		"none there, of writeback":              {runs(wb).with(unchecked), changeClean},
		"none there, cleaned, the mark is left": {runs(wt).asks(wb).live(through, cleaner).with(marked).with(unchecked), changeUnmark},
		"two copies asked for, one there":       {runs(wt).with(single), changeUncache},
		"the same of writeback":                 {runs(wb).with(single), changeClean},
		"the same, cleaned, the mark is left":   {runs(wt).asks(wb).live(through, cleaner).with(marked).with(single), changeUnmark},
		"the same, killed before the journal":   {runs(none).asks(wt).live(through, smq).with(sized).with(single), changeUncache},
		"two copies asked for, and none had":    {runs(none).asks(wt).with(noMirror), changeImpossible},
		"two copies asked for, a mirror there":  {runs(none).asks(wt), changeCache},

		"unsafe asked for":                  {runs(wb).with(unsafeAsked), changeUnsafe},
		"unsafe asked for, of writethrough": {runs(wt).asks(wb).with(unsafeAsked), changeWriteback},
		"unsafe, killed before the kernel":  {runs(wb).with(unsafeAsked).with(unsafeNoted), changeUnsafe},
		"unsafe as asked":                   {runs(wb).with(unsafeAsked).with(unsafeNoted).with(drops), changeDone},
		"unsafe, flush":                     {runs(wb).with(unsafeAsked).with(unsafeNoted).with(drops).with(flushAsked), changeClean},
		"unsafe, flush to report":           {runs(wb).live(through, cleaner).with(unsafeAsked).with(unsafeNoted).with(flushDone), changeRestore},
		"unsafe, near its dirty limit":      {runs(wb).live(through, smq).with(bounded).with(unsafeAsked).with(unsafeNoted), changeDone},
		"unsafe no more":                    {runs(wb).with(unsafeNoted).with(drops), changeSafe},
		"unsafe asked for, before mkfs":     {runs(wb).with(unsafeAsked).with(notFormatted), changeDone},
		"unsafe no more, to be restored":    {runs(wb).live(through, cleaner).with(unsafeNoted), changeSafe},
		"unsafe no more, killed":            {runs(wb).with(unsafeNoted), changeSafe},
		"unsafe, asked writethrough":        {runs(wb).asks(wt).with(unsafeNoted).with(drops), changeClean},
		"unsafe, held":                      {runs(wb).asks(wt).with(unsafeAsked).with(unsafeNoted).with(drops), changeClean},
		"somebody has it drop flushes":      {runs(wb).with(drops), changeSafe},
		"the same of writethrough":          {runs(wt).with(drops), changeSafe},
		"torn":                              {runs(wb).with(torn), changeTell},
		"torn, and asked none":              {runs(wb).asks(none).with(torn), changeTell},

		"no entry":                   {runs(wt).with(func(f *changeFacts) { f.Entry = nil }), changeNothing},
		"being unstaged":             {runs(wt).asks(none).with(func(f *changeFacts) { f.Entry.State = state.Flushing }), changeNothing},
		"released":                   {runs(wt).asks(none).with(func(f *changeFacts) { f.Record.Published = false }), changeNothing},
		"another generation":         {runs(wt).asks(none).with(func(f *changeFacts) { f.Record.Fence = fence4 }), changeNothing},
		"no top device":              {runs(wt).asks(none).with(func(f *changeFacts) { f.LiveCache = false }), changeNothing},
		"its LUN is somebody else's": {runs(none).asks(wb).with(lost), changeNothing},
		"its LUN is somebody else's, and the table is not loaded yet": {runs(wb).asks(none).with(lost), changeNothing},
		"a failed cache": {runs(wb).asks(none).with(failedCache), changeImpossible},
		"a broken cache": {runs(wt).asks(wb).with(brokenSSD), changeImpossible},
		"a broken cache, denied by a killed step": {runs(none).asks(wt).live(through, smq).with(sized).with(brokenSSD), changeImpossible},
		"a failover that was killed":              {runs(none).asks(wt).live(through, smq).with(sized).with(failedOver), changeNothing},
		"a failover, not reported yet":            {runs(none).asks(wt).with(failedOver), changeCache},
		"journal claims more":                     {runs(wb).asks(none).with(func(f *changeFacts) { f.LiveCache, f.LiveOrigin = false, true }), changeNothing},

		"cache asked for":                {runs(none).asks(wt), changeCache},
		"writeback begins writethrough":  {runs(none).asks(wb), changeCache},
		"cache asked for, leftovers":     {runs(none).asks(wt).with(leftover), changeSweep},
		"dropped, leftovers":             {runs(none).with(leftover), changeSweep},
		"cache asked for, no pool":       {runs(none).asks(wt).with(poolGone), changeImpossible},
		"no pool, but a flush to report": {runs(none).asks(wt).with(poolGone).with(flushAsked), changeFlushed},

		"writethrough, blocks too large":          {runs(wt).with(tooCoarse), changeUncache},
		"writeback, blocks too large":             {runs(wb).with(tooCoarse), changeClean},
		"blocks too large, cleaned, mark is left": {runs(wt).asks(wb).live(through, cleaner).with(marked).with(tooCoarse), changeUnmark},
		"blocks too large, cleaned, unmarked":     {runs(wt).asks(wb).live(through, cleaner).with(tooCoarse), changeUncache},
		"blocks too large, killed before journal": {runs(none).asks(wt).live(through, smq).with(sized).with(tooCoarse), changeUncache},

		"writethrough, its device leaves":               {runs(wt).with(leaves), changeUncache},
		"writeback, its device leaves":                  {runs(wb).with(leaves), changeClean},
		"its device leaves, cleaned, mark is left":      {runs(wt).asks(wb).live(through, cleaner).with(marked).with(leaves), changeUnmark},
		"its device leaves, cleaned, unmarked":          {runs(wt).asks(wb).live(through, cleaner).with(leaves), changeUncache},
		"its device leaves, killed before journal":      {runs(none).asks(wt).live(through, smq).with(sized).with(leaves), changeUncache},
		"its device leaves, and no pool is left":        {runs(wb).with(leaves).with(poolGone), changeClean},
		"its device leaves, and a larger size":          {runs(wt).wants(128 * mib).with(leaves), changeUncache},
		"its device leaves, streams":                    {runs(wt).with(streamed).with(leaves), changeUncache},
		"its device leaves, held":                       {runs(wb).with(held).with(leaves), changeClean},
		"its device leaves, it fails":                   {runs(wb).with(leaves).with(brokenSSD), changeImpossible},
		"its device leaves, its LUN is somebody else's": {runs(wb).with(leaves).with(lost), changeNothing},
		"its device leaves, dirty and denied":           {runs(wt).with(dirty).with(leaves), changeClean},
		"its device leaves, a map of an unclean stop":   {runs(wb).live(through, cleaner).with(recovered).with(leaves), changeClean},
		"its device leaves, given up meanwhile":         {runs(wb).with(unmarked).with(leaves), changeMark},

		"killed between load and journal":       {runs(none).asks(wt).live(through, smq).with(sized), changeRecord},
		"killed between journal and load":       {runs(none).live(through, smq).with(sized), changeUncache},
		"killed there, another size asked for":  {runs(none).asks(wt).wants(32*mib).live(through, smq).with(sized), changeUncache},
		"killed there, a larger size asked for": {runs(none).asks(wt).wants(128*mib).live(through, smq).with(sized), changeRecord},

		"writethrough to writeback": {runs(wt).asks(wb), changeWriteback},
		"writethrough to none":      {runs(wt).asks(none), changeUncache},
		"writeback to writethrough": {runs(wb).asks(wt), changeClean},
		"writeback to none":         {runs(wb).asks(none), changeClean},
		"cleaning goes on":          {runs(wb).asks(wt).live(through, cleaner), changeClean},
		"cleaned, mark is left":     {runs(wt).live(through, cleaner).with(marked), changeUnmark},
		"cleaned, unmarked":         {runs(wt).live(through, cleaner), changeRestore},
		"cleaned, to none, marked":  {runs(wt).asks(none).live(through, cleaner).with(marked), changeUnmark},
		"changed back in the middle": {
			runs(wb).live(through, cleaner), changeRestore,
		},
		"journalled writeback, not loaded yet": {runs(wb).live(through, smq), changeRestore},
		"writeback live, never journalled as writethrough": {
			runs(wt).live(back, smq), changeRestore,
		},

		"writeback, given up meanwhile":               {runs(wb).with(unmarked), changeMark},
		"writeback, given up, another mode":           {runs(wb).asks(wt).with(unmarked), changeMark},
		"writeback that is not live yet and unmarked": {runs(wb).live(through, smq).with(unmarked), changeMark},

		"flush of writeback":                  {runs(wb).with(flushAsked), changeClean},
		"flush of writeback, done":            {runs(wb).live(through, cleaner).with(flushDone), changeRestore},
		"clean, a map of an unclean stop":     {runs(wt).live(through, cleaner).with(recovered), changeDone},
		"the same, flush to report":           {runs(wt).live(through, cleaner).with(recovered).with(flushDone), changeFlushed},
		"the same, writeback again":           {runs(wt).live(through, cleaner).with(recovered).asks(wb), changeUncache},
		"the same, marked":                    {runs(wt).live(through, cleaner).with(recovered).asks(wb).with(marked), changeUncache},
		"the same, no pool":                   {runs(wt).live(through, cleaner).with(recovered).asks(wb).with(poolGone), changeWriteback},
		"a dirty limit drains such a map":     {runs(wb).live(through, cleaner).with(recovered).with(bounded), changeClean},
		"a dirty limit, still smq":            {runs(wb).live(through, smq).with(recovered).with(bounded), changeDone},
		"a dirty limit, no pool":              {runs(wb).live(through, cleaner).with(recovered).with(bounded).with(poolGone), changeDone},
		"the same, a larger size":             {runs(wt).live(through, cleaner).with(recovered).wants(128 * mib), changeUncache},
		"a map of an unclean stop, writeback": {runs(wb).live(through, cleaner).with(recovered), changeRestore},
		"the same, a larger size, smq":        {runs(wt).with(recovered).wants(128 * mib), changeUncache},
		"dirty, and the journal denies it":    {runs(wt).with(dirty).with(marked), changeClean},
		"dirty and denied, flush to report":   {runs(wt).with(dirty).with(flushDone), changeClean},
		"dirty and denied, asked none":        {runs(wt).asks(none).with(dirty), changeClean},
		"dirty, journal none":                 {runs(wt).with(dirty).with(denied), changeClean},
		"dirty, journal and asked none":       {runs(wt).asks(none).with(dirty).with(denied), changeClean},
		"dirty, and it fails":                 {runs(wt).with(dirty).with(func(f *changeFacts) { f.Broken = "it fails" }), changeImpossible},
		"flush of writeback, to report":       {runs(wb).with(flushDone), changeFlushed},
		"flush of writethrough":               {runs(wt).with(flushAsked), changeFlushed},
		"flush and another mode":              {runs(wb).asks(wt).with(flushAsked), changeClean},
		"an old flush asks for no new one":    {runs(wb).with(func(f *changeFacts) { flushAsked(f); f.Record.FlushDone = "t1" }), changeDone},

		"a degraded mirror, writeback":           {runs(wb).asks(wt).with(degraded), changeClean},
		"a degraded mirror, flushed, marked":     {runs(wt).live(through, cleaner).with(marked).with(degraded), changeUnmark},
		"a degraded mirror, the cleaner is left": {runs(wt).live(through, cleaner).with(degraded), changeRestore},
		"a degraded mirror, written through":     {runs(wt).with(degraded), changeImpossible},
		"a degraded mirror, larger":              {runs(wt).wants(128 * mib).with(degraded), changeImpossible},
		"a degraded mirror, dropped":             {runs(wt).asks(none).with(degraded), changeUncache},
		"held by the dirty limit":                {runs(wb).live(through, smq).with(bounded), changeDone},
		"drained by the dirty limit":             {runs(wb).live(through, cleaner).with(bounded), changeDone},
		"a bound leaves a flush its way":         {runs(wb).live(through, smq).with(bounded).with(flushAsked), changeClean},
		"a bound leaves a mode its way":          {runs(wb).asks(wt).live(through, cleaner).with(bounded), changeClean},
		"limited and larger":                     {runs(wb).live(through, smq).with(bounded).with(enlarged), changeGrow},
		"a bound of no use is in nobody's way": {
			runs(wt).live(through, cleaner).with(bounded), changeRestore,
		},

		"larger":                         {runs(wt).wants(128 * mib), changeGrow},
		"larger, writeback":              {runs(wb).wants(128 * mib), changeGrow},
		"larger, cleaner still loaded":   {runs(wb).wants(128*mib).live(through, cleaner), changeRestore},
		"smaller":                        {runs(wt).wants(32 * mib), changeUncache},
		"smaller, writeback":             {runs(wb).wants(32 * mib), changeClean},
		"smaller, cleaned, still marked": {runs(wt).asks(wb).wants(32 * mib).with(marked), changeUncache},
		"too large for the metadata":     {runs(wt).wants(128 * mib).with(tinyMeta), changeUncache},
		"too large for them, writeback":  {runs(wb).wants(128 * mib).with(tinyMeta), changeClean},
		"too many blocks":                {runs(wt).wants(256 << 30), changeUncache},

		"streams":                              {runs(wt).with(streamed), changeDone},
		"streams, writeback asked for":         {runs(wt).asks(wb).with(streamed), changeDone},
		"streams, its first level serves":      {runs(wt).live(through, cleaner).with(streamed), changeDone},
		"streams, an ordinary table is loaded": {runs(wt).live(through, smq).with(streamed), changeDone},
		"streams, none asked for":              {runs(wt).asks(none).with(streamed), changeUncache},
		"streams, none and a flush asked for":  {runs(wt).asks(none).with(streamed).with(flushAsked), changeUncache},
		"streams, smaller":                     {runs(wt).wants(32 * mib).with(streamed), changeUncache},
		"streams, smaller and writeback":       {runs(wt).asks(wb).wants(32 * mib).with(streamed), changeUncache},
		"streams, larger":                      {runs(wt).wants(128 * mib).with(streamed), changeDone},
		"streams, larger than its metadata":    {runs(wt).wants(128 * mib).with(tinyMeta).with(streamed), changeUncache},
		"streams, blocks too large":            {runs(wt).with(tooCoarse).with(streamed), changeUncache},
		"streams, a flush asked for":           {runs(wt).with(flushAsked).with(streamed), changeFlushed},
		"streams, a flush and writeback":       {runs(wt).asks(wb).with(flushAsked).with(streamed), changeFlushed},
		"streams, a degraded mirror":           {runs(wt).with(degraded).with(streamed), changeImpossible},
		"streams, degraded, a flush asked for": {runs(wt).with(degraded).with(flushAsked).with(streamed), changeFlushed},
		"streams, degraded, none asked for":    {runs(wt).asks(none).with(degraded).with(streamed), changeUncache},
		"streams, broken":                      {runs(wt).asks(none).with(brokenSSD).with(streamed), changeImpossible},
		"streams, a level has failed":          {runs(wt).asks(none).with(failedCache).with(streamed), changeImpossible},
		"streams, denied by a killed step":     {runs(none).live(through, cleaner).with(sized).with(streamed), changeUncache},
		"streams, taken from the pod":          {runs(none).with(streamed).with(leftover), changeSweep},
		"streams, being unstaged":              {runs(wt).asks(none).with(streamed).with(func(f *changeFacts) { f.Entry.State = state.Flushing }), changeNothing},

		"held, writeback":                        {runs(wb).with(held), changeClean},
		"held, being drained":                    {runs(wb).live(through, cleaner).with(held), changeClean},
		"held, drained, mark is left":            {runs(wt).live(through, cleaner).with(marked).with(held), changeUnmark},
		"held, unmarked, the cleaner is left":    {runs(wt).live(through, cleaner).with(held), changeRestore},
		"held, to report":                        {runs(wt).with(held), changeFlushed},
		"held, reported":                         {runs(wt).with(held).with(reported), changeImpossible},
		"held, asked for writethrough, reported": {runs(wt).with(held).with(reported).with(func(f *changeFacts) { f.Held = false }), changeDone},
		"held, given up while its pod went on":   {runs(wb).with(unmarked).with(held), changeClean},
		"held, given up, asked for writethrough": {runs(wb).with(unmarked).with(held).with(func(f *changeFacts) { f.Held = false }), changeClean},
		"held, journalled, refused its mark":     {runs(wb).live(through, smq).with(unmarked).with(held), changeClean},
		"held, kept by the dirty limit":          {runs(wb).live(through, smq).with(bounded).with(held), changeClean},
		"held, larger":                           {runs(wt).wants(128 * mib).with(held), changeFlushed},
		"held, smaller":                          {runs(wt).wants(32 * mib).with(held), changeUncache},
		"held, broken":                           {runs(wb).with(brokenSSD).with(held), changeImpossible},
		"held, a degraded mirror":                {runs(wb).with(held).with(degraded), changeClean},
		"held, streams":                          {runs(wt).with(held).with(streamed), changeFlushed},
		"held, streams, mark of before":          {runs(wt).with(marked).with(held).with(streamed), changeUnmark},
		"held, streams, reported":                {runs(wt).with(held).with(reported).with(streamed), changeDone},
		"held, uncached, a cache asked for":      {runs(none).with(held), changeFlushed},
		"held, uncached, mark of before":         {runs(none).with(held).with(marked), changeUnmark},
		"held, uncached, asked none":             {runs(none).with(held).asks(none), changeFlushed},
		"held, its LUN is somebody else's":       {runs(wb).with(held).with(lost), changeNothing},
		"let go":                                 {runs(wt).asks(wb).with(reported), changeWriteback},

		"pool gone under a running cache": {runs(wt).with(poolGone).with(func(f *changeFacts) { f.Want = geometry{} }), changeDone},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decideChange(tc.s.f); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// streamed is a cache that is being filled by a stream: the top is in passthrough mode unless
// something else was said to be live.
func streamed(f *changeFacts) {
	f.Entry.Hydration = &state.Hydration{Stream: &state.Stream{Hot: 1, Chunks: 9}}
	if f.LiveCache && f.Status.Policy == devmapper.PolicySMQ && !f.Status.Fail && len(f.Status.Features) > 1 {
		f.Status = devmapper.CacheStatus{Policy: devmapper.PolicyCleaner, Features: []string{"metadata2", string(devmapper.Passthrough)}}
	}
}

// A hydration that nothing is left of on the node is one that its source node does not know the end of.
func TestLeftOfAHydration(t *testing.T) {
	a := New(Config{}, Deps{Pool: withoutPool{}, CacheProblem: func(context.Context) string { return "" }})
	const top, data, path = "nf-v", "nf-v.data", "nf-v.path"
	hydration := &state.Hydration{Peer: &volume.ISCSI{IQN: "iqn.x"}, Move: volume.MoveID{Name: "m"}}
	for name, tc := range map[string]struct {
		hydration *state.Hydration
		devices   []string
		want      changeStep
	}{
		"nothing":                  {nil, []string{top}, changeDone},
		"a data device":            {nil, []string{top, data}, changeSweep},
		"a path":                   {nil, []string{top, path}, changeSweep},
		"a hydration, its devices": {hydration, []string{top, data, path}, changeSweep},
		"a hydration, no device":   {hydration, []string{top}, changeSweep},
		"a hydration, no top":      {hydration, nil, changeNothing},
	} {
		t.Run(name, func(t *testing.T) {
			e := runs(volume.ModeNone).f.Entry
			e.ID, e.Hydration = "v", tc.hydration
			infos := map[string]devmapper.Info{}
			for _, d := range tc.devices {
				infos[d] = devmapper.Info{Name: d, HasLive: true}
			}
			rec := volume.Volume{Fence: fence5, Published: true, Spec: volume.Spec{Mode: volume.ModeNone}}
			if got := decideChange(a.changeFacts(t.Context(), e, rec, nil, infos, false)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// held is a volume that asks for writeback under a hold, with the flush that came with it.
func held(f *changeFacts) {
	flushAsked(f)
	f.Record.Hold, f.Held, f.Record.Spec.Mode = &volume.Hold{Name: "s", Token: "t1"}, true, volume.ModeWritethrough
}

func reported(f *changeFacts) { flushDone(f); f.Record.FlushDone = "t1" }

// TestWithhold: what has writes be on the origin is asked of nobody but who asks for writeback.
func TestWithhold(t *testing.T) {
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	hold := &volume.Hold{Name: "s", Token: "t"}
	for name, tc := range map[string]struct {
		asked, want volume.CacheMode
		held        bool
	}{
		"writeback":    {wb, wt, true},
		"writethrough": {wt, wt, false},
		"none":         {none, none, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := runs(tc.asked).f
			f.Record.Hold = hold
			f.withhold(pool.View{})
			if f.Held != tc.held || f.Record.Spec.Mode != tc.want || (f.Problem != "") != tc.held {
				t.Errorf("held %t, asked %s, problem %q", f.Held, f.Record.Spec.Mode, f.Problem)
			}
		})
	}
	for accepted, want := range map[bool]string{false: "no detach that keeps", true: "until the next attachment"} {
		f := runs(wb).f
		f.Entry.Source.CSI = &volume.CSISource{Driver: "d", NoFence: true}
		f.Record.Spec.Origin = &volume.Origin{StorageClass: "c", AcceptTwoWriters: accepted}
		f.withhold(pool.View{})
		if f.Record.Spec.Mode != wt || !strings.Contains(f.Problem, want) {
			t.Errorf("without a fence, accepted %t: %s, %q", accepted, f.Record.Spec.Mode, f.Problem)
		}
	}
	const lost = "1 device(s) of the mirror are missing"
	for name, tc := range map[string]struct {
		view     pool.View
		mirrored bool
		want     volume.CacheMode
	}{
		"half a pool, one copy":            {pool.View{Degraded: lost}, false, wb},
		"half a pool, two copies":          {pool.View{Degraded: lost}, true, wt},
		"half a mirror":                    {pool.View{Degraded: lost, Mirror: true}, false, wt},
		"two copies, and nothing is wrong": {pool.View{}, true, wb},
	} {
		f := runs(wb).f
		f.Entry.Mirrored = tc.mirrored
		if f.withhold(tc.view); f.Record.Spec.Mode != tc.want || (f.Degraded != "") != (tc.want == wt) || (f.ProblemReason == v1alpha1.ReasonMirrorDegraded) != (tc.want == wt) {
			t.Errorf("%s: asked %s, degraded %q, %s", name, f.Record.Spec.Mode, f.Degraded, f.ProblemReason)
		}
	}
	f := runs(wb).f
	f.withhold(pool.View{})
	if f.Held || f.Record.Spec.Mode != wb || f.Problem != "" {
		t.Errorf("without a hold: %+v", f)
	}
}

func enlarged(f *changeFacts) { f.Want.dataBytes = 128 * mib }

// sized gives an uncached entry the shape that a killed step has journalled.
func sized(f *changeFacts) {
	f.Entry.ChunkSectors, f.Entry.DataBytes, f.Entry.MetaBytes = 256, 64*mib, 8*mib
}

// Whatever is asked for and wherever a step was killed: no step takes a cache
// away, or stops counting it as dirty, that may hold the only copy of a write.
func TestChangeNeverForgetsDirt(t *testing.T) {
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
					switch step := decideChange(s.f); step {
					case changeClean, changeRestore, changeGrow, changeDone:
					default:
						t.Errorf("asked %s, live %s %s, %d bytes: %s", asked, live, policy, size, step)
					}
				}
			}
		}
	}
}
