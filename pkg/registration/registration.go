// Package registration announces the node plugin to kubelet: a socket in
// kubelet's registration directory, over which kubelet asks who is there (the
// plugin watcher, k8s.io/kubelet/pkg/apis/pluginregistration/v1).
//
// The node plugin does this itself, without a sidecar: it announces itself when
// it is ready to serve, and not before.
package registration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nearflash/nearflash/pkg/rpc"
)

// csiVersions are the versions of CSI that the driver speaks. kubelet accepts
// any 1.x by this word.
var csiVersions = []string{"1.0.0"}

// Server answers kubelet.
type Server struct {
	registerapi.UnimplementedRegistrationServer
	driver, endpoint string
	registered       atomic.Bool
	failed           func(error)
}

// New returns a Server for a driver whose CSI socket kubelet finds at endpoint, a
// path on the host. failed is called when kubelet refuses the registration.
func New(driver, endpoint string, failed func(error)) *Server {
	return &Server{driver: driver, endpoint: endpoint, failed: failed}
}

// Registered reports whether kubelet has accepted the driver.
func (s *Server) Registered() bool { return s.registered.Load() }

// Serve serves the socket in dir until ctx ends. The socket goes with it, which
// tells kubelet that the driver is gone.
func (s *Server) Serve(ctx context.Context, dir string) error {
	path := filepath.Join(dir, s.driver+"-reg.sock")
	// kubelet notices a socket when it appears: one that a killed process left
	// is removed and made anew.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("registration socket: %w", err)
	}
	l, err := rpc.Listen(ctx, path)
	if err != nil {
		return fmt.Errorf("registration socket: %w", err)
	}
	g := grpc.NewServer()
	registerapi.RegisterRegistrationServer(g, s)
	return rpc.Serve(ctx, g, l)
}

// GetInfo implements registerapi.RegistrationServer.
func (s *Server) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: s.driver, Endpoint: s.endpoint, SupportedVersions: csiVersions,
	}, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer.
func (s *Server) NotifyRegistrationStatus(ctx context.Context, st *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	s.registered.Store(st.GetPluginRegistered())
	if !st.GetPluginRegistered() {
		s.failed(fmt.Errorf("kubelet refused the registration: %s", st.GetError()))
	} else {
		klog.FromContext(ctx).Info("Registered with kubelet", "driver", s.driver)
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
