package target

import (
	"context"
	"net"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
)

// RestoreVolume is what Repair does for one volume.
func RestoreVolume(ctx context.Context, s *Service, name string) error {
	return s.restoreVolume(ctx, name)
}

// Serve is what Run does once the exports are back.
func Serve(ctx context.Context, s *Service, server *grpc.Server, lis net.Listener) error {
	return serve(ctx, s, server, lis)
}

// NewShortLivedGRPC is NewGRPC with connections that do not get old.
func NewShortLivedGRPC(log logr.Logger, c TLSConfig, srv *Server, age time.Duration) (*grpc.Server, error) {
	return newGRPC(log, c, srv, age)
}

// ServeMetrics is what Run does with the listener of metrics.
func ServeMetrics(ctx context.Context, cfg Config, srv *Server, lis net.Listener) (stop func(), err error) {
	return serveMetrics(ctx, cfg, srv, lis)
}

// CheckMetrics finds the figures of metrics once.
func CheckMetrics(ctx context.Context, s *Service) error {
	return (&watch{svc: s}).check(ctx)
}

// StartMetrics is what Run does about metrics.
func StartMetrics(ctx context.Context, cfg Config, srv *Server) (stop func(), err error) {
	return startMetrics(ctx, cfg, srv)
}
