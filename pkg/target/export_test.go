package target

import (
	"context"
	"net"

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
