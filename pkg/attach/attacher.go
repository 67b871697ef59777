package attach

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/cachefault"
	"github.com/nearflash/nearflash/pkg/attach/dirtylimit"
	"github.com/nearflash/nearflash/pkg/attach/heat"
	"github.com/nearflash/nearflash/pkg/attach/hotset"
	"github.com/nearflash/nearflash/pkg/attach/hydration"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/lease"
	"github.com/nearflash/nearflash/pkg/attach/preload"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/attach/stream"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// PoolView gives the state of the node's SSD pool as of its last reconciliation,
// without running a command.
type PoolView interface {
	ssd.PoolView
	// Deletions are the volumes whose data are not wanted any more, as the API server
	// says now. Errors: ErrUnavailable.
	Deletions(ctx context.Context) ([]volume.Deletion, error)
}

// Filesystem is what a node does with a filesystem on a device.
type Filesystem interface {
	// Probe reads what a device holds, past the page cache. Errors: whatever keeps it
	// from knowing, ErrUnavailable for a read that failed.
	Probe(ctx context.Context, device string) (volume.Content, error)
	// Format makes a filesystem, whatever the device holds, and returns when it is on
	// stable storage. Errors: ErrInvalid for a type that it does not make.
	Format(ctx context.Context, device, fsType string) error
	// Mount mounts what was formatted, after a check that repairs what is safe to repair.
	Mount(ctx context.Context, device, target, fsType string, options []string) error
	BindMount(ctx context.Context, source, target string, options []string) error
	BindBlock(ctx context.Context, device, target string, options []string) error
	// Unmount removes the mount and the path; absent is success. Release leaves a path on which
	// nothing is mounted.
	Unmount(ctx context.Context, target string) error
	Release(ctx context.Context, target string) error
	// Source returns the device number of what is mounted at target.
	Source(ctx context.Context, target string) (devno string, mounted bool, err error)
	// Grow resizes the mounted filesystem to its device.
	Grow(ctx context.Context, device, mountPath string) error
	Stats(ctx context.Context, path string) (volume.Stats, error)
}

// Locker is the per-volume lock that the CSI layer takes for every request, so
// that repair and eviction never work on a volume that a request works on.
type Locker interface {
	TryLock(key string) (unlock func(), ok bool)
}

// OwnedRecords shows the records of a node's own volumes as an informer knows
// them. They may be a moment old: whatever rests on a fence reads Records.
type OwnedRecords interface {
	List(ctx context.Context) ([]volume.Volume, error)
	// Changed returns a new channel that receives when something that was asked for
	// has changed.
	Changed() <-chan struct{}
}

// Meter accumulates the counters of volumes.
type Meter interface {
	stack.Meter
	// DirtySince is when the cache was last seen without a dirty block; zero if that
	// is not known.
	DirtySince(ctx context.Context, id volume.ID) time.Time
}

// MetadataTools read and write the metadata of caches that are not active.
type MetadataTools interface {
	// Dump writes the XML of cache_dump(8) to a file.
	Dump(ctx context.Context, device, file string) error
	// Restore writes metadata from such a file.
	Restore(ctx context.Context, file, device string) error
}

// Blocks is what a node does to block devices themselves; blockdev.Host is that of this
// machine.
type Blocks interface {
	stack.Blocks
	// ZeroHead zeroes the first n bytes of a device.
	ZeroHead(ctx context.Context, path string, n int64) error
	// Discard discards ranges of a device, each with begin and length in bytes.
	Discard(ctx context.Context, path string, ranges [][2]uint64) error
}

// Config are the values of an Attacher.
type Config struct {
	// Node is the name that the records know this node by.
	Node string
	// Boot is the kernel's boot id (/proc/sys/kernel/random/boot_id).
	Boot string
	// CacheTimeout bounds the steps that concern the cache alone, so that an SSD
	// that hangs costs the pod a delay and not its start (I6).
	CacheTimeout time.Duration
	// PollInterval is the time between two looks at a flush, and at who asks for a freeze.
	PollInterval time.Duration
	// AskEvery is the pause between two questions to the storage server whether unflushed
	// writes that nobody knows of are still wanted; 0 is a minute.
	AskEvery time.Duration
	// Sysfs is where the kernel shows its devices; empty is /sys.
	Sysfs string
	// Warm are the values of warm moves.
	Warm WarmConfig
	// PreloadPatience is after how long a preload on demand is given up of which nothing more is promoted; 0 is
	// preload.Patience.
	PreloadPatience time.Duration
	// Scrub are the values of scrubs.
	Scrub ScrubConfig
}

// WarmConfig are the values of warm moves.
type WarmConfig struct {
	// Dir is a folder for the maps of hydrations under way; without one no cache is
	// filled from elsewhere.
	Dir string
	// Method is how caches are filled whose volumes name no method; empty leaves it to what
	// the kernel has.
	Method volume.MoveMethod
	// LeaseTimeout is how long a stage waits for the node that holds a retained cache, and
	// Patience how long that may be silent.
	LeaseTimeout, Patience time.Duration
	// MapsTimeout is the longest that a pod waits for the maps of a stream, or of a preload, once its origin is
	// connected, and MapsLeast the shortest: between them, as long again as it has waited until then.
	MapsTimeout, MapsLeast time.Duration
	// Bandwidth is the limit of a hydration whose volume names none, and NodeBandwidth of
	// all hydrations together, in bytes per second; 0 is no limit.
	Bandwidth, NodeBandwidth int64
	// Deadline is how long a peer serves a volume that names no deadline.
	Deadline time.Duration
	// RetainedCacheTTL is how long a cache is kept that nobody uses; 0 is for ever.
	RetainedCacheTTL time.Duration
	// Settle is how long a copy waits for the start of the pod.
	Settle time.Duration
	// PullPause is the pause before a node whose stream has failed is asked again.
	PullPause time.Duration
	// HotSetEvery is the pause between two hot sets of an attached volume.
	HotSetEvery time.Duration
	// HotSetBytes is the most that one has; 0 is 64 KiB.
	HotSetBytes int
}

func (c WarmConfig) withDefaults() WarmConfig {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.LeaseTimeout, 30*time.Second)
	// Long enough for a plugin that is just being replaced, or whose node is busy.
	set(&c.Patience, 10*time.Second)
	set(&c.MapsTimeout, 5*time.Second)
	set(&c.MapsLeast, time.Second)
	set(&c.Deadline, 30*time.Minute)
	set(&c.Settle, 5*time.Second)
	set(&c.PullPause, time.Second)
	set(&c.HotSetEvery, 30*time.Minute)
	return c
}

// Deps are the collaborators of an Attacher.
type Deps struct {
	DM        devmapper.Client
	LVM       lvm.Client
	Transport transport.Transport
	// IOErrors counts what devices fail; nil if nobody does, so that no cache over another
	// driver's volume is kept.
	IOErrors ErrorCounter
	// IOSizes counts reads by size; nil if nobody does.
	IOSizes heat.Sampler
	// Blocks are this machine's devices; nil is blockdev.Host.
	Blocks Blocks
	// Reserver fences static volumes.
	Reserver Reserver
	FS       Filesystem
	Journal  *journal.Store[state.Entry]
	Records  volume.Records
	Pool     PoolView
	// Copies may be nil where there are no mirrors.
	Copies ssd.Copies
	Locks  Locker
	// Owned are the records of the volumes that this node owns.
	Owned OwnedRecords
	// Requested are the records that ask to prewarm this node; nil
	// if nobody can ask.
	Requested OwnedRecords
	// Moves, HotSets, Exporter and Tools serve warm moves; without them caches start
	// cold.
	Moves    volume.Moves
	HotSets  volume.HotSets
	Exporter lease.Exporter
	Tools    MetadataTools
	// MoveEnded is told of every end of a move, and where the move was to begin; nil
	// if nobody counts.
	MoveEnded func(from volume.ServedFrom, o volume.MoveOutcome)
	// FailedOver is told of every volume that failed over from its failing cache; nil if
	// nobody counts.
	FailedOver func()
	// Meter is told when counters begin and end; nil if nobody counts.
	Meter Meter
	// Stream gets other nodes' caches chunk by chunk; nil if that is not configured.
	Stream Puller
	// Freezer freezes filesystems while a volume is cut; nil if that is not configured.
	Freezer Freezer
	// Judge judges what a scrub finds with the device suspended; nil if that is not configured,
	// and nothing is scrubbed.
	Judge scrub.Judge
	// WarmProblem says why this node can neither export caches nor import them by clone, or "";
	// nil is "". StreamProblem says why it cannot fill a cache by a stream.
	WarmProblem, StreamProblem func(ctx context.Context) string
	// ReadInUse reads the map of metadata that are in use; nil is by a copy of them, which is torn
	// if they change meanwhile.
	ReadInUse func(ctx context.Context, device, base string) (cachemap.Map, error)
	// CacheProblem says why this kernel cannot cache, or "".
	CacheProblem func(ctx context.Context) string
	// IntegrityProblem says why this kernel can make no checksums, or ""; nil is "".
	IntegrityProblem func(ctx context.Context) string
	Now              func() time.Time
}

// Attacher implements volume.Attacher on a real node.
type Attacher struct {
	Config
	Deps
	stack *stack.Stack
	ssd   *ssd.Group
	// staged receives when a volume was attached or has grown.
	staged chan struct{}
	// changing is Change's memory; detached are the volumes that have left since, of which it
	// holds no more.
	changing map[volume.ID]*changing
	detached sync.Map
	// hydrations leads copies to their end. prestages is RunPrestages' memory.
	hydrations *hydration.Runner
	streams    *stream.Runner
	prestages  prestages
	// prewarms are the copies under way, and preloads the caches that are filled on demand.
	prewarms prewarms
	preloads *preload.Runner
	// heats has how often the parts of volumes are read.
	heats *heat.Keeper
	// leases has the caches that this node exports, and hotSets records what volumes read most.
	leases  *lease.Lessor
	hotSets *hotset.Recorder
	// dirtyLimits keeps volumes within theirs.
	dirtyLimits *dirtylimit.Keeper
	// cacheFaults has volumes go on without caches that fail.
	cacheFaults *cachefault.Watch
	// scrubs compares caches with their origins.
	scrubs *scrub.Keeper
	// scratch is held while the scratch volume is lent.
	scratch sync.Mutex
	// repairs, changers and counting are who works on what the
	// passes find.
	repairs, changers, counting, freezing passes.Workers
	// frozeFor has the token of each hold, by its volume, for which this process has frozen a
	// filesystem, until the record has its last word of that.
	frozeFor sync.Map
	// trying are the paths that are being read, and tending who fails what waits for paths.
	trying  keylock.Set
	tending passes.Workers
	// named are the volumes of which no device has the name that a version before gave it,
	// nor may still get one (states.md, Names on the host).
	named sync.Map
	// keeps are the caches that wait for an administrator.
	keeps keeps
	// flushes are those of origins.
	flushes stack.Flushes
	// staysAt is when Repair last looked which notes of attachments are of no use.
	staysAt atomic.Int64
}

var _ volume.Attacher = (*Attacher)(nil)

// seen are the records as this node has to see them (states.md, Readers).
type seen struct {
	volume.Records
	node string
}

// Get implements volume.Records.
func (s seen) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	v, err := s.Records.Get(ctx, id)
	return v.For(s.node), err
}

// New returns an Attacher. It runs nothing; call Repair before serving.
func New(c Config, d Deps) *Attacher {
	if c.CacheTimeout == 0 {
		c.CacheTimeout = 45 * time.Second
	}
	if c.PollInterval == 0 {
		c.PollInterval = 250 * time.Millisecond
	}
	if c.AskEvery == 0 {
		c.AskEvery = lunEvery
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Blocks == nil {
		d.Blocks = blockdev.Host{}
	}
	if c.Sysfs == "" {
		c.Sysfs = "/sys"
	}
	c.Warm = c.Warm.withDefaults()
	d.Records = seen{Records: d.Records, node: c.Node}
	heats := &heat.Keeper{Devices: d.DM, Sampler: d.IOSizes, Dir: c.Warm.Dir}
	devices := stack.New(stack.Config{Heat: heats, DM: d.DM, Blocks: d.Blocks, Meter: d.Meter, Sysfs: c.Sysfs, PollInterval: c.PollInterval})
	a := &Attacher{
		Config: c, Deps: d, stack: devices, heats: heats,
		ssd:    ssd.New(ssd.Config{LVM: d.LVM, Pool: d.Pool, Copies: d.Copies, Blocks: d.Blocks, Stack: devices, Sysfs: c.Sysfs, CacheTimeout: c.CacheTimeout, PollInterval: c.PollInterval}),
		staged: make(chan struct{}, 1), changing: map[volume.ID]*changing{},
		prewarms: prewarms{m: map[volume.ID]*prewarming{}},
		keeps:    keeps{m: map[volume.ID]kept{}},
	}
	now := func() time.Time { return a.Now() }
	heats.Now, heats.Host, heats.Flushes, heats.Device = now, warmHost{a}, a.flushesOf, a.topOf
	a.leases = &lease.Lessor{
		Host: warmHost{a}, Devices: d.DM, Stack: a.stack, SSD: a.ssd, Exporter: d.Exporter, Discard: d.Blocks.Discard,
		Open: d.Blocks.Open, Heat: heats, ReadInUse: a.readInUse, Node: c.Node, Boot: c.Boot, Dir: c.Warm.Dir,
	}
	a.hydrations = hydration.New(hydration.Config{
		Host: warmHost{a}, Devices: d.DM, Stack: a.stack, SSD: a.ssd, Moves: d.Moves, Settle: c.Warm.Settle,
		NodeBandwidth: func() int64 { return a.Warm.NodeBandwidth }, Now: now,
	})
	a.streams = stream.New(stream.Config{
		Host: warmHost{a}, Stack: a.stack, SSD: a.ssd, Moves: d.Moves, StartPause: streamPause(runtime.NumCPU(), c.Warm.Settle),
		NodeBandwidth: func() int64 { return a.Warm.NodeBandwidth }, PullPause: c.Warm.PullPause, Now: now,
	})
	if d.Stream != nil {
		a.streams.Puller = d.Stream
	}
	a.hotSets = &hotset.Recorder{
		Host: warmHost{a}, SSD: a.ssd, Heat: heats, Store: d.HotSets, Dir: c.Warm.Dir, Boot: c.Boot, Every: c.Warm.HotSetEvery, Bytes: c.Warm.HotSetBytes, Now: now,
	}
	if d.Tools != nil {
		a.leases.Dump, a.hotSets.Read = d.Tools.Dump, a.readInUse
	}
	a.preloads = &preload.Runner{Host: preloadHost{warmHost{a}}, Now: now, Patience: c.PreloadPatience}
	a.dirtyLimits = &dirtylimit.Keeper{Host: limitHost{a}, Devices: d.DM, Sysfs: c.Sysfs, Now: d.Now}
	a.scrubs = a.newScrubs()
	a.cacheFaults = &cachefault.Watch{Host: faultHost{a}, Devices: d.DM, Node: c.Node, Sysfs: c.Sysfs, Now: now}
	return a
}

// streamPause is how long a stream waits for the start of the pod. It keeps a processor busy; if
// there is but one, what starts the pod would have half of it.
func streamPause(processors int, settle time.Duration) time.Duration {
	if processors > 1 {
		return 0
	}
	return settle
}

// poll makes RunChanges look at once.
func (a *Attacher) poll() {
	select {
	case a.staged <- struct{}{}:
	default: // it is about to look
	}
}

// load returns the journal entry, nil if there is none.
func (a *Attacher) load(id volume.ID) (*state.Entry, error) {
	e, err := a.Journal.Load(string(id))
	switch {
	case errors.Is(err, journal.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("journal of volume %s: %w", id, err)
	}
	return &e, nil
}

// settlePatience is how long a step waits for a command that an earlier one gave up.
const settlePatience = 2 * time.Second

// loadSettled is load for a step that acts on what it finds. It fails while a command of an
// earlier step, or of an earlier plugin, still changes a device of the volume: what it
// makes is not there yet, and nobody acts behind it (states.md, Commands that go on).
func (a *Attacher) loadSettled(ctx context.Context, id volume.ID) (*state.Entry, error) {
	wctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	names := layout.Devices(id)
	_, named := a.named.Load(id)
	if !named {
		names = append(names, layout.EarlierDevices(id)...)
	}
	err := a.DM.Await(wctx, names...)
	if err == nil && a.Judge != nil {
		err = a.Judge.Recover(wctx, id) // a guard may go on whose command has ended
	}
	if err != nil {
		return nil, fmt.Errorf("%w: volume %s: %w", volume.ErrUnavailable, id, err)
	}
	e, err := a.load(id)
	if err != nil || named {
		return e, err
	}
	if err := a.settleNames(ctx, id, e); err != nil {
		return nil, fmt.Errorf("%w: volume %s: %w", volume.ErrUnavailable, id, err)
	}
	return e, nil
}

// lockSettled is loadSettled under the volume's lock, which the caller gives back in every
// case. There is no entry if a request, or another step, works on the volume.
func (a *Attacher) lockSettled(ctx context.Context, id volume.ID) (e *state.Entry, unlock func(), err error) {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return nil, func() {}, nil
	}
	e, err = a.loadSettled(ctx, id)
	return e, unlock, err
}

// save writes the entry with the new state. One that stays Staging or Staged keeps its boot
// (states.md, The journal).
func (a *Attacher) save(ctx context.Context, e *state.Entry, s state.State) error {
	from := e.State
	switch {
	case s == state.Retained && from == s:
		e.RetainedAt = e.LastUsed()
	case s == state.Retained:
		e.RetainedAt = a.Now().UTC()
	}
	if s != from || s != state.Staging && s != state.Staged {
		e.Boot = a.Boot
	}
	e.State, e.UpdatedAt = s, a.Now().UTC()
	if err := a.write(ctx, e); err != nil {
		return err
	}
	klog.FromContext(ctx).V(4).Info("Journal written", "volume", e.ID, "from", from, "to", s, "generation", e.Fence.Generation)
	return nil
}

// write writes an entry as it is, in the journal's format of now. One that cannot be true is
// refused, unless the journal has such a one already: its volume must have a way out.
func (a *Attacher) write(ctx context.Context, e *state.Entry) error {
	err := e.Validate()
	if err != nil {
		if before, lerr := a.Journal.Load(string(e.ID)); lerr == nil && before.Validate() != nil {
			klog.FromContext(ctx).Error(err, "Journal has an entry that cannot be true", "volume", e.ID)
			err = nil
		}
	}
	if err == nil {
		err = a.Journal.Save(string(e.ID), *e)
	}
	if err != nil {
		return fmt.Errorf("journal of volume %s: %w", e.ID, err)
	}
	return nil
}

// forget deletes the entry.
func (a *Attacher) forget(id volume.ID) error {
	// First: nobody would look for it without the entry.
	a.heats.Drop(context.Background(), id)
	if err := a.Journal.Delete(string(id)); err != nil {
		return fmt.Errorf("journal of volume %s: %w", id, err)
	}
	a.keeps.drop(id)
	return nil
}
