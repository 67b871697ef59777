package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar announces the driver to kubelet, as the sidecar node-driver-registrar does.
type registrar struct {
	registerapi.UnimplementedRegistrationServer
	driver, endpoint string
	refused          chan error
}

// GetInfo implements RegistrationServer.
func (r registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.driver, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus implements RegistrationServer.
func (r registrar) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		r.refused <- fmt.Errorf("kubelet refused the registration: %s", s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// register serves kubelet's questions of a driver until ctx ends, or kubelet refuses the driver: the
// container is then started again, and asks anew.
func register(ctx context.Context, driver, dir, endpoint string) error {
	path := filepath.Join(dir, driver+"-reg.sock")
	// kubelet notices a socket when it appears.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("registration: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("registration: %w", err)
	}
	r := registrar{driver: driver, endpoint: endpoint, refused: make(chan error, 1)}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, r)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case <-ctx.Done():
	case err = <-r.refused:
	case err = <-served:
	}
	server.Stop() // removes the socket, which tells kubelet that the driver is gone
	return err
}
