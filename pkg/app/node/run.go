package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/app/health"
	"github.com/nearflash/nearflash/pkg/app/metricserver"
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachestream"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/loginaccount"
	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/registration"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// apiTimeout bounds one request to the API server: a stage waits for it.
	apiTimeout = 15 * time.Second
	// poolEvery, repairEvery and preflightEvery are the pauses of the loops.
	poolEvery, repairEvery, preflightEvery = 30 * time.Second, 15 * time.Second, 30 * time.Second
	// hostToolsEvery is the pause between two looks at the host's tools.
	hostToolsEvery = 2 * time.Minute
	// changeEvery is the pause between two comparisons of attached volumes with their
	// records. A change of a record is seen at once.
	changeEvery = 15 * time.Second
	// failoverEvery is the pause between two looks for SSDs that fail (states.md, The
	// cache device fails).
	failoverEvery = 5 * time.Second
	// reservationEvery is the pause between two looks at the reservations of static
	// volumes (states.md, The fence of a static volume).
	reservationEvery = 5 * time.Second
	// pathsEvery is the pause between two looks at the paths of attached volumes (states.md,
	// Paths that fail).
	pathsEvery = 5 * time.Second
)

// plugin are the parts of a running node plugin.
type plugin struct {
	cfg       Config
	host      host
	findings  *findings
	pool      *pool.Manager
	attacher  *attach.Attacher
	owned     *records.Owned
	requested *records.Owned
	sampler   *observe.Sampler
	reporter  *observe.Reporter
	locks     *keylock.Set
	// initiator is the node's iSCSI initiator name; empty without one, which is possible where
	// volumes of other CSI drivers are attached.
	initiator string
	// noInitiator says why there is none, if there should be one.
	noInitiator error
	// leases answers the moves that ask for this node's caches; nil if it exports none.
	leases *moves.Source
	// stream sends caches to other nodes' plugins, and streamClient asks them for theirs; nil
	// without addresses.
	stream       *cachestream.Server
	streamClient *cachestream.Client
	// watchMoves knows what the source nodes of this node's caches say.
	watchMoves func(context.Context) error
	// loginKey is what the accounts are derived of that the node logs in to the storage server with.
	loginKey *keyagreement.Key
	// listening is closed when the CSI socket takes calls.
	listening chan struct{}
	// api reads from the API server itself.
	api client.Client
	// moveCounts counts the ends of moves.
	moveCounts *metrics.Moves
	// failovers counts the volumes that failed over from a failing cache.
	failovers atomic.Uint64
}

// Run serves until ctx ends or something essential fails.
func Run(ctx context.Context, cfg Config) error {
	config, err := kube.Config()
	if err != nil {
		return err
	}
	config.Timeout = apiTimeout
	useProcessors()
	ctrl.SetLogger(klog.FromContext(ctx))
	return run(ctx, cfg, config)
}

func run(ctx context.Context, cfg Config, config *rest.Config) error {
	h, err := thisHost(cfg)
	if err != nil {
		return err
	}
	return runOn(ctx, cfg, config, h, func(*plugin) {})
}

// runOn is run on some machine. It calls made when the plugin is made, before it begins.
func runOn(ctx context.Context, cfg Config, config *rest.Config, h host, made func(*plugin)) error {
	stopped := ctx
	group, ctx := errgroup.WithContext(ctx)
	p, err := newPlugin(ctx, cfg, config, h)
	if err != nil {
		return err
	}
	made(p)
	log := klog.FromContext(ctx)
	log.Info("Starting", "version", cfg.Version, "node", cfg.NodeName, "endpoint", cfg.Endpoint)
	h.preflight.LoadModules(ctx)
	p.findings.update(ctx, h.preflight)
	p.placeUdevRule(ctx)
	p.listenForStreams(ctx)
	if err := p.pool.Reconcile(ctx); err != nil {
		// The API server may be late; the loop comes back to it, and volumes
		// that are here already must be repaired meanwhile.
		log.Error(err, "Pool could not be reconciled")
	}
	p.attacher.ResumeLeft(ctx) // pods wait for it
	p.attacher.ThawLeft(ctx)   // before anything is unmounted, or asked to be
	p.attacher.AdoptNames(ctx)
	p.attacher.SweepMapFiles(ctx)
	group.Go(func() error { p.pool.Run(ctx, poolEvery); return nil })
	group.Go(func() error { return p.repeatPreflight(ctx) })
	group.Go(func() error { p.lookAtHostTools(ctx); return nil })
	// The first pass of the repair runs beside the first requests: the lock of a
	// volume keeps them apart, and each finds by the journal what the other did.
	group.Go(func() error { p.attacher.Run(ctx, repairEvery); return nil })
	group.Go(func() error { return p.owned.Run(ctx) })
	group.Go(func() error { p.attacher.RunChanges(ctx, changeEvery); return nil })
	group.Go(func() error { p.attacher.RunFreezes(ctx, changeEvery); return nil })
	group.Go(func() error { p.attacher.RunPreloads(ctx, changeEvery); return nil })
	group.Go(func() error { p.attacher.CacheFaults().Run(ctx, failoverEvery); return nil })
	group.Go(func() error { p.attacher.RunReservations(ctx, reservationEvery); return nil })
	group.Go(func() error { p.attacher.DirtyLimits().Run(ctx); return nil })
	group.Go(func() error { p.attacher.Scrubs().Run(ctx); return nil })
	group.Go(func() error { p.attacher.Hydrations().Run(ctx); return nil })
	group.Go(func() error { p.attacher.Streams().Run(ctx); return nil })
	group.Go(func() error { p.attacher.RunPaths(ctx, pathsEvery); return nil })
	group.Go(func() error { p.attacher.RunPrestages(ctx); return nil })
	group.Go(func() error { return p.requested.Run(ctx) })
	group.Go(func() error { p.attacher.RunPrewarms(ctx); return nil })
	group.Go(func() error { p.attacher.RunSizes(ctx); return nil })
	over := make(chan struct{})
	group.Go(func() error {
		defer close(over)
		return p.serveLeases(ctx, stopped)
	})
	group.Go(func() error { return p.sendCaches(ctx, over) })
	group.Go(func() error { return p.watchMoves(ctx) })
	group.Go(func() error { p.sampler.Run(ctx, p.reporter.Report); return nil })
	calls := rpc.NewCallMetrics(driver.Name)
	group.Go(func() error { return p.serveCSI(ctx, calls) })
	group.Go(func() error { return health.Serve(ctx, cfg.HealthAddress, cfg.Endpoint, p.ready) })
	group.Go(func() error { return metricserver.Serve(ctx, cfg.Metrics, config, p.metrics(calls)) })
	group.Go(func() error { return p.serveFigures(ctx) })
	if cfg.RegistrationDir != "" {
		group.Go(func() error { return p.register(ctx) })
	}
	return group.Wait()
}

func newPlugin(ctx context.Context, cfg Config, config *rest.Config, h host) (*plugin, error) {
	entries, err := journal.Open[state.Entry](filepath.Join(cfg.StateDir, "volumes"))
	if err != nil {
		return nil, err
	}
	scheme, err := kube.NewScheme()
	if err != nil {
		return nil, err
	}
	api, recorder, err := apiClients(ctx, config, scheme, cfg.NodeName)
	if err != nil {
		return nil, err
	}
	// The timeout of requests would end the watch again and again.
	watching := rest.CopyConfig(config)
	watching.Timeout = 0
	owned, err := records.NewOwned(ctx, watching, scheme, cfg.NodeName)
	if err != nil {
		return nil, err
	}
	requested, err := records.NewPrewarms(ctx, watching, scheme, cfg.NodeName)
	if err != nil {
		return nil, err
	}
	destination := moves.NewDestination(api, recorder, time.Now, cfg.WarmStartPort, cfg.Stream.Port)
	watchMoves, err := destination.Watch(ctx, watching, scheme, cfg.NodeName)
	if err != nil {
		return nil, err
	}
	p := &plugin{cfg: cfg, host: h, api: api, watchMoves: watchMoves, findings: &findings{}, locks: &keylock.Set{}, owned: owned, requested: requested, moveCounts: &metrics.Moves{}, listening: make(chan struct{})}
	p.readInitiator(entries)
	if p.loginKey, err = loginaccount.OpenKey(filepath.Join(cfg.StateDir, "login.key")); err != nil {
		return nil, err
	}
	if p.stream, p.streamClient, err = newStream(cfg, config, streamKeys(api)); err != nil {
		return nil, err
	}
	p.pool = pool.NewManager(pool.Config{
		Node:    cfg.NodeName,
		Default: v1alpha1.CachePoolSpec{Devices: cfg.PoolDevices, Evacuate: cfg.PoolEvacuate, Redundancy: v1alpha1.Redundancy(cfg.PoolRedundancy), Integrity: cfg.PoolIntegrity, NamespaceSharePercent: int32(cfg.NamespaceShare)},
		Choices: cfg.Pools, StateDir: cfg.StateDir,
		Labels:       func(ctx context.Context) (map[string]string, error) { return nodeLabels(ctx, api, cfg.NodeName) },
		InitiatorIQN: p.initiator, InitiatorUnknown: p.noInitiator != nil, LoginPublicKey: p.loginKey.Public(), Preflight: p.problems, HostTools: p.hostProblems, Events: recorder, StreamPublicKey: p.streamPublicKey,
		Health: h.health,
	}, h.lvm, api, retainedCacheBytes(entries))
	if p.sampler, err = observe.Open(observe.Config{
		Kernel: h.counters, Volumes: observed(ctx, filepath.Join(cfg.StateDir, "volumes"), entries, owned), Dir: filepath.Join(cfg.StateDir, "counters"), Now: time.Now,
		// The attacher is made below, before anybody measures.
		Reuse: func(id volume.ID) (reuse.Summary, bool) { return p.attacher.Reuse(id) },
	}); err != nil {
		return nil, err
	}
	volumes := records.New(api, recorder, time.Now)
	p.reporter = observe.NewReporter(volumes, cfg.NodeName, time.Now)
	p.reporter.Every = cfg.ReportInterval
	warm, err := warmConfig(cfg)
	if err != nil {
		return nil, err
	}
	var puller attach.Puller
	if p.streamClient != nil {
		puller = p.streamClient
	}
	p.attacher = attach.New(attach.Config{Node: cfg.NodeName, Boot: h.boot, Sysfs: h.sysfs, Warm: warm, Scrub: attach.ScrubConfig{Period: cfg.ScrubPeriod, Rate: cfg.ScrubRate}}, attach.Deps{
		DM: h.dm, LVM: h.lvm, Blocks: h.blocks, Transport: p.transports(), IOErrors: h.ioErrors, IOSizes: h.ioSizes, FS: h.fs, Reserver: h.reserver,
		Journal: entries, Records: volumes, Pool: p.pool, Copies: p.pool, Locks: p.locks, Owned: owned, Requested: requested, Meter: p.sampler,
		Moves: destination, HotSets: records.NewHotSets(api),
		Exporter: h.exporter, Stream: puller, Freezer: h.freezer, Judge: h.judge, Tools: h.maps, ReadInUse: h.readInUse, MoveEnded: p.moveCounts.Ended,
		FailedOver:       func() { p.failovers.Add(1) },
		CacheProblem:     func(context.Context) string { return read(&p.findings.cache) },
		IntegrityProblem: func(context.Context) string { return read(&p.findings.integrity) },
		WarmProblem:      func(context.Context) string { return read(&p.findings.warm) },
		StreamProblem:    func(context.Context) string { return p.streamProblem() },
	})
	if p.stream != nil {
		p.attacher.Lessor().Streams = p.stream
	}
	p.pool.Serve(p.attacher)
	if cfg.NodeIP != "" {
		p.leases, err = moves.NewSource(ctx, watching, scheme, moves.SourceConfig{
			Node: cfg.NodeName, Lessor: p.attacher.Lessor(), Client: api, Now: time.Now,
		})
	}
	return p, err
}

// warmConfig makes the folder of what warm moves keep.
func warmConfig(cfg Config) (attach.WarmConfig, error) {
	warm := attach.WarmConfig{
		// Named as since the first version: notes of stays outlive upgrades and rollbacks.
		Dir: filepath.Join(cfg.StateDir, "fills"), Bandwidth: cfg.WarmStartBandwidth, NodeBandwidth: cfg.WarmStartNodeBandwidth,
		RetainedCacheTTL: cfg.RetainedCacheTTL, Method: cfg.Method(), HotSetEvery: cfg.HotSetInterval, HotSetBytes: cfg.HotSetSize,
	}
	if err := os.MkdirAll(warm.Dir, 0o700); err != nil {
		return warm, fmt.Errorf("state directory: %w", err)
	}
	if err := durable.Sweep(warm.Dir); err != nil {
		return warm, fmt.Errorf("state directory: %w", err)
	}
	return warm, nil
}

// apiClients returns a client that reads from the API server itself (the fence
// must not be judged by what an informer remembers) and an event recorder.
func apiClients(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, node string) (client.WithWatch, events.EventRecorder, error) {
	api, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, nil, fmt.Errorf("client of the API server: %w", err)
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("client of the API server: %w", err)
	}
	broadcaster := events.NewBroadcaster(signedEvents{EventSink: &events.EventSinkImpl{Interface: set.EventsV1()}, instance: eventInstance(node)})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, nil, fmt.Errorf("events: %w", err)
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return api, broadcaster.NewRecorder(scheme, component), nil
}

// nodeLabels reads the labels of a node.
func nodeLabels(ctx context.Context, api client.Reader, name string) (map[string]string, error) {
	node := &corev1.Node{}
	if err := api.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return nil, fmt.Errorf("read Node %s: %w", name, err)
	}
	return pool.NodeLabels(node)
}

// retainedCacheBytes sums what clean caches of volumes that left the node occupy.
func retainedCacheBytes(entries *journal.Store[state.Entry]) pool.RetainedCacheBytes {
	return func() (int64, error) {
		list, err := entries.List()
		var sum int64
		for _, e := range list {
			if e.State == state.Retained || e.State == state.Prewarmed {
				sum += e.PoolBytes()
			}
		}
		return sum, err
	}
}

// repeatPreflight notices what an administrator repairs, or breaks. It fails if that needs another
// start of the plugin.
func (p *plugin) repeatPreflight(ctx context.Context) error {
	tick := time.NewTicker(preflightEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := p.initiatorFound(); err != nil {
				return err
			}
			p.findings.update(ctx, p.host.preflight)
		}
	}
}

// ready says why no volume can be attached, nil if nothing stands against it.
func (p *plugin) ready(context.Context) error {
	what := []*atomic.Pointer[string]{&p.findings.essential, &p.findings.iscsi}
	if p.cfg.Origins {
		what = what[:1] // volumes of other CSI drivers need no iSCSI
	}
	for _, f := range what {
		if s := read(f); s != "" {
			return errors.New(s)
		}
	}
	return nil
}

func (p *plugin) serveCSI(ctx context.Context, rec rpc.Recorder) error {
	path, err := rpc.SocketPath(p.cfg.Endpoint)
	if err != nil {
		return err
	}
	listener, err := rpc.Listen(ctx, path)
	if err != nil {
		return fmt.Errorf("CSI endpoint: %w", err)
	}
	close(p.listening)
	s := rpc.NewServer(ctx, rec)
	csi.RegisterIdentityServer(s, driver.NewIdentity(p.cfg.Version, p.ready).WithTopology(p.cfg.topology()))
	node := driver.NewNode(p.attacher, p.locks, p.cfg.NodeName, p.cfg.MaxVolumes).WithTopology(p.cfg.topology()).WithLoginKey(p.loginKey)
	if p.cfg.AttachLimitOf != "" {
		node = node.WithLimit(p.attachLimit)
	}
	csi.RegisterNodeServer(s, node)
	return rpc.Serve(ctx, s, listener)
}

// register announces the plugin once it can serve. A refusal ends the process:
// kubelet asks again when the socket appears again. It calls the driver at once, and refuses one
// whose CSI socket is not there yet.
func (p *plugin) register(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.listening:
	}
	ready := func(ctx context.Context) (bool, error) { return p.ready(ctx) == nil, nil }
	if wait.PollUntilContextCancel(ctx, time.Second, true, ready) != nil {
		return nil
	}
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	s := registration.New(driver.Name, p.cfg.KubeletRegistrationPath, refuse)
	if err := s.Serve(ctx, p.cfg.RegistrationDir); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
