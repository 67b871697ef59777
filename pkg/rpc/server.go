package rpc

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

// StopTimeout is how long Serve lets running calls end before it cuts them
// off. It is below the 30 s that Kubernetes gives a pod to stop; what is cut
// off continues by its journal.
const StopTimeout = 20 * time.Second

// NewServer returns a gRPC server with the interceptors of this package. Each
// call's context carries the logger of ctx; rec may be nil.
func NewServer(ctx context.Context, rec Recorder) *grpc.Server {
	return grpc.NewServer(grpc.ChainUnaryInterceptor(
		withLogger(klog.FromContext(ctx)),
		withMetrics(rec),
		withLog,
		withRecover,
	))
}

// Serve serves on l until ctx ends, then lets the running calls end for at
// most StopTimeout. The socket is removed with the listener.
func Serve(ctx context.Context, s *grpc.Server, l net.Listener) error {
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(StopTimeout):
		klog.FromContext(ctx).Info("Cutting off calls that did not end in time", "socket", l.Addr().String(), "timeout", StopTimeout)
		s.Stop()
	}
	return <-done
}
