package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nearflash/nearflash/pkg/app/health"
	"github.com/nearflash/nearflash/pkg/app/metricserver"
	"github.com/nearflash/nearflash/pkg/backend"
	csiorigin "github.com/nearflash/nearflash/pkg/backend/csi"
	"github.com/nearflash/nearflash/pkg/backend/epoch"
	"github.com/nearflash/nearflash/pkg/backend/iscsi"
	"github.com/nearflash/nearflash/pkg/chapaccount"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/loginaccount/keeper"
	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/reconcile"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/scheduling"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
)

const (
	// leaseName is the lease that the leader of the reconcilers holds.
	leaseName = "nearflash-controller"
	// apiPatience is how long the API server may take to answer, and to publish
	// the definitions, when the controller starts; apiRetry is the pause between
	// two questions.
	apiPatience, apiRetry = time.Minute, 2 * time.Second
)

// Run serves until ctx ends or something essential fails. It returns an error if
// the process should be restarted, and once leadership is lost.
func Run(ctx context.Context, cfg Config) error {
	config, err := kube.Config()
	if err != nil {
		return err
	}
	return run(ctx, cfg, config)
}

func run(ctx context.Context, cfg Config, config *rest.Config) error {
	targets, err := cfg.targets()
	if err != nil {
		return err
	}
	servers := map[string]storageServer{}
	for name, t := range targets {
		c, err := connect(ctx, name, t)
		if err != nil {
			return fmt.Errorf("target %q: %w", name, err)
		}
		defer func() { _ = c.Close() }() // the process ends
		servers[name] = storageServer{address: t.Address, storage: iscsi.New(c)}
	}
	return serve(ctx, cfg, config, servers)
}

// connect returns a client of a storage server. Without certificates that can be read the default
// server's ends the process; another one's must not end it for the volumes of all others.
func connect(ctx context.Context, name string, t targetclient.Config) (*targetclient.Client, error) {
	c, err := targetclient.New(t)
	if err == nil || name == "" {
		return c, err
	}
	klog.FromContext(ctx).Error(err, "A storage server cannot be used until its certificates can be read", "target", name, "address", t.Address)
	return targetclient.NewUnread(t)
}

// storageServer is one, and where it is.
type storageServer struct {
	address string
	storage backend.Backend
}

// serve is run with storage servers by name, "" being the default one.
func serve(ctx context.Context, cfg Config, config *rest.Config, servers map[string]storageServer) error {
	log := klog.FromContext(ctx)
	ctrl.SetLogger(log)
	if err := waitForAPI(ctx, config); err != nil {
		return fmt.Errorf("preflight: %w", err)
	}
	plugins, err := pluginPodsOf(cfg)
	if err != nil {
		return err
	}
	mgr, err := newManager(ctx, cfg, config, plugins)
	if err != nil {
		return err
	}
	known, err := clusterMetrics(mgr, cfg, servers, plugins)
	if err != nil {
		return fmt.Errorf("metrics of the cluster: %w", err)
	}
	storage, err := keepEpochs(mgr, cfg, servers)
	if err != nil {
		return err
	}
	if err := makeAccount(mgr, cfg); err != nil {
		return err
	}
	loginKey, err := keepLoginKey(mgr, cfg, servers)
	if err != nil {
		return err
	}
	volumes := provision.New(provision.Config{
		Client: mgr.GetClient(), Servers: storage, Origins: origins(mgr, cfg.OriginNamespace),
		Events: mgr.GetEventRecorder("nearflash-controller"), Driver: driver.Name, LoginKey: loginKey,
	})
	locks := &keylock.Set{}
	err = reconcile.Setup(ctx, mgr, reconcile.Config{Client: mgr.GetClient(), Volumes: volumes, Locks: locks, Driver: driver.Name})
	if err != nil {
		return err
	}
	if err := scheduling.Setup(ctx, mgr, cfg.Scheduling, driver.Name); err != nil {
		return fmt.Errorf("scheduling webhook: %w", err)
	}
	checkStorageServers(ctx, servers)
	log.Info("Starting", "version", cfg.Version, "endpoint", cfg.Endpoint, "storageServer", cfg.Target.Address, "targets", namesOf(servers), "originNamespace", cfg.OriginNamespace)
	calls := rpc.NewCallMetrics(driver.Name)
	services := driver.NewController(volumes, locks)
	if volumes.HasSnapshots() {
		services = services.WithSnapshots(volumes)
	}
	group, ctx := errgroup.WithContext(ctx)
	isReady, err := ready(ctx, config, readyInterval)
	if err != nil {
		return err
	}
	group.Go(func() error { return serveCSI(ctx, cfg, calls, services, isReady) })
	group.Go(func() error { return health.Serve(ctx, cfg.HealthAddress, cfg.Endpoint, isReady) })
	group.Go(func() error { return metricserver.Serve(ctx, cfg.Metrics, config, allMetrics(calls, known)) })
	group.Go(func() error { return reconcilers(ctx, mgr) })
	return group.Wait()
}

// allMetrics are those of the controller, with what is known of the cluster.
func allMetrics(calls rpc.CallMetrics, known prometheus.Collector) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.BuildInfo("controller"), known)
	// controller-runtime keeps the metrics of the reconcilers and of the process.
	return prometheus.Gatherers{registry, calls.Gatherer(), ctrlmetrics.Registry}
}

// reconcilers runs the manager until ctx ends. The manager never ends if ctx
// ends before its informers have started (controller-runtime v0.24,
// runnableGroup.Start), so it is left behind after a while: the process ends.
func reconcilers(ctx context.Context, mgr manager.Manager) error {
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(rpc.StopTimeout):
			klog.FromContext(ctx).Info("Leaving the reconcilers behind, they did not end in time", "timeout", rpc.StopTimeout)
		}
	}
	if err != nil {
		return fmt.Errorf("reconcilers: %w", err)
	}
	return nil
}

// podNamespace is where Kubernetes tells a pod its namespace.
const podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// namesOf returns the names of storage servers, in order.
func namesOf(servers map[string]storageServer) []string { return slices.Sorted(maps.Keys(servers)) }

// keepEpochs lets orders to each storage server carry the epoch of this cluster there.
func keepEpochs(mgr manager.Manager, cfg Config, servers map[string]storageServer) (map[string]provision.Server, error) {
	out := map[string]provision.Server{}
	if len(servers) == 0 {
		return out, nil
	}
	namespace, err := ownNamespace(cfg, "ConfigMap "+epoch.RecordName)
	if err != nil {
		return nil, err
	}
	names := &epoch.Names{}
	for name, server := range servers {
		epochs := epoch.New(epoch.Config{
			Client: mgr.GetClient(), Namespace: namespace, Storage: server.storage, Name: name, Names: names,
			Events: mgr.GetEventRecorder("nearflash-controller"),
		})
		if err := mgr.Add(epochs); err != nil {
			return nil, fmt.Errorf("epoch of storage server %s: %w", server.address, err)
		}
		out[name] = provision.Server{Backend: epochs, TakenOver: epochs.TakenOver}
	}
	return out, nil
}

// ownNamespace is where the controller keeps something.
func ownNamespace(cfg Config, what string) (string, error) {
	if cfg.LeaderElectionNamespace != "" {
		return cfg.LeaderElectionNamespace, nil
	}
	own, err := os.ReadFile(podNamespace)
	if err != nil {
		return "", fmt.Errorf("the namespace for the %s is not known: this is no pod, so give --leader-elect and --leader-election-namespace: %w", what, err)
	}
	return string(own), nil
}

// makeAccount has the CHAP account made, if it is to be made here.
func makeAccount(mgr manager.Manager, cfg Config) error {
	if cfg.CHAPSecret == "" {
		return nil
	}
	namespace, err := ownNamespace(cfg, "Secret "+cfg.CHAPSecret)
	if err != nil {
		return err
	}
	maker := &chapaccount.Maker{Client: mgr.GetClient(), Secret: client.ObjectKey{Namespace: namespace, Name: cfg.CHAPSecret}, Username: cfg.CHAPUsername}
	if err := mgr.Add(maker); err != nil {
		return fmt.Errorf("CHAP account: %w", err)
	}
	return nil
}

// keepLoginKey has the key made of which accounts of storage servers are derived, if there is
// one, and returns how to read it.
func keepLoginKey(mgr manager.Manager, cfg Config, servers map[string]storageServer) (func(context.Context) (*keyagreement.Key, error), error) {
	if len(servers) == 0 {
		return nil, nil
	}
	namespace, err := ownNamespace(cfg, "Secret "+keeper.SecretName)
	if err != nil {
		return nil, err
	}
	maker := &keeper.Keeper{Client: mgr.GetClient(), Namespace: namespace}
	if err := mgr.Add(maker); err != nil {
		return nil, fmt.Errorf("key of accounts: %w", err)
	}
	return maker.Key, nil
}

// origins returns the backend of volumes of other CSI drivers, nil without a namespace for
// their claims.
func origins(mgr manager.Manager, namespace string) provision.Origins {
	if namespace == "" {
		return nil
	}
	return csiorigin.New(csiorigin.Config{Client: mgr.GetClient(), Namespace: namespace, Driver: driver.Name})
}

// waitForAPI gives a control plane that is starting, or an installation that is
// still under way, a while.
func waitForAPI(ctx context.Context, config *rest.Config) error {
	deadline := time.NewTimer(apiPatience)
	defer deadline.Stop()
	for {
		err := preflight.API(ctx, config)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-deadline.C:
			return err
		case <-time.After(apiRetry):
			klog.FromContext(ctx).Info("Waiting for the API server", "reason", err.Error())
		}
	}
}

func newManager(ctx context.Context, cfg Config, config *rest.Config, plugins *pluginPods) (manager.Manager, error) {
	scheme, err := kube.NewScheme()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, manager.Options{
		Scheme: scheme,
		Logger: klog.FromContext(ctx),
		// The fence must not be judged by what an informer remembers.
		NewClient: func(config *rest.Config, o client.Options) (client.Client, error) {
			o.Cache = nil
			return client.New(config, o)
		},
		Cache:                   cacheOptions(plugins),
		BaseContext:             func() context.Context { return ctx },
		LeaderElection:          cfg.LeaderElect,
		LeaderElectionID:        leaseName,
		LeaderElectionNamespace: cfg.LeaderElectionNamespace,
		// Reconcilers have ended when the manager gives the lease back.
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       server.Options{BindAddress: "0"}, // served by metricserver
	})
	if err != nil {
		return nil, fmt.Errorf("manager of the reconcilers: %w", err)
	}
	return mgr, nil
}

// serveCSI serves the CSI services until ctx ends.
func serveCSI(ctx context.Context, cfg Config, rec rpc.Recorder, c *driver.Controller, ready health.Check) error {
	path, err := rpc.SocketPath(cfg.Endpoint)
	if err != nil {
		return err
	}
	listener, err := rpc.Listen(ctx, path)
	if err != nil {
		return fmt.Errorf("CSI endpoint: %w", err)
	}
	s := rpc.NewServer(ctx, rec)
	groups := c.Groups()
	csi.RegisterIdentityServer(s, driver.NewIdentity(cfg.Version, ready).WithTopology(cfg.OriginNamespace != "").WithGroups(groups != nil))
	csi.RegisterControllerServer(s, c)
	if groups != nil {
		csi.RegisterGroupControllerServer(s, groups)
	}
	return rpc.Serve(ctx, s, listener)
}
