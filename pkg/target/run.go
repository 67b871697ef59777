package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

const (
	// repairInterval is how often exports with a problem are tried again.
	repairInterval = 30 * time.Second
	// drainTimeout is how long running calls may take once the server stops.
	drainTimeout = 10 * time.Second
	// connectionAge is how old a connection gets. Its client makes another one, without a call
	// that fails, and both sides show the certificates that they have then.
	connectionAge = 10 * time.Minute
)

// Run serves until ctx ends: preflight, restore of the exports, then the gRPC
// service. The exports outlive it in the kernel.
func Run(ctx context.Context, cfg Config, version string) error {
	run := hostexec.New()
	if err := cfg.CheckTLS(); err != nil {
		return err
	}
	if err := NewHost(run).Preflight(ctx); err != nil {
		return fmt.Errorf("preflight: %w", err)
	}
	// First, and it only reads: a group of another machine is not this one's to serve.
	vols, err := lvol.Open(ctx, lvol.Config{
		VolumeGroup: cfg.VolumeGroup, ThinPool: cfg.ThinPool, Devices: cfg.LVMDevices, MaxOvercommit: cfg.MaxOvercommit,
	}, run, lvol.NewBlockDevice())
	if err != nil {
		return err
	}
	if err := cfg.checkStateVolume(unix.Stat); err != nil {
		return err
	}
	store, err := exportstate.Open(cfg.StateDir)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // the lock ends with the process anyway
	svc := NewService(ctx, cfg, vols, store, lio.NewTree(lio.NewFS(lio.DefaultRoot)))
	defer svc.Close()
	if err := svc.Restore(ctx); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return err
	}
	face := NewServer(svc, version)
	stopMetrics, err := startMetrics(ctx, cfg, face)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	defer stopMetrics()
	server, err := NewGRPC(logr.FromContextOrDiscard(ctx), cfg.TLS, face)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	return serve(ctx, svc, server, lis)
}

// NewGRPC returns a gRPC server with the service registered, over ServerTLS. At each call
// a client is refused whose certificate is not good any more, or, with allowed names, has
// another one.
func NewGRPC(log logr.Logger, c TLSConfig, srv *Server) (*grpc.Server, error) {
	return newGRPC(log, c, srv, connectionAge)
}

func newGRPC(log logr.Logger, c TLSConfig, srv *Server, age time.Duration) (*grpc.Server, error) {
	conf, err := ServerTLS(c)
	if err != nil {
		return nil, err
	}
	g := grpc.NewServer(grpc.Creds(endable{credentials.NewTLS(conf)}),
		grpc.ChainUnaryInterceptor(logCalls(log, srv.calls), judgeClients(c.files()), allowClients(c.AllowedClientNames), readEpoch),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: age}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	targetpb.RegisterTargetServer(g, srv)
	return g, nil
}

func serve(ctx context.Context, svc *Service, server *grpc.Server, lis net.Listener) error {
	log := logr.FromContextOrDiscard(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	background, stopBackground := context.WithCancel(ctx)
	defer stopBackground()
	wg.Go(func() { svc.Repair(background, repairInterval) })

	failed := make(chan error, 1)
	wg.Go(func() { failed <- server.Serve(lis) })
	if err := notifySystemd(ctx, "READY=1"); err != nil {
		log.Error(err, "systemd was not told that the server is ready")
	}
	wg.Go(func() { svc.CleanUp(background) })
	log.Info("Serving", "address", lis.Addr().String())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Info("Stopping; exports stay in the kernel")
	hard := time.AfterFunc(drainTimeout, server.Stop)
	defer hard.Stop()
	server.GracefulStop()
	if err := <-failed; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// notifySystemd does what sd_notify(3) does; without systemd it does nothing.
func notifySystemd(ctx context.Context, state string) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixgram", socket)
	if err != nil {
		return err
	}
	_, werr := conn.Write([]byte(state))
	return errors.Join(werr, conn.Close())
}
