// Command rbd-csi-driver is a small CSI driver over Ceph's block devices, as an example
// of a driver whose volumes are cached: raw block volumes of one writer. It is for the
// lab, and strict: a call out of order is refused, never made good.
//
// What fences is the exclusive lock, as with any RBD client, and the OSDs' blocklist. A
// node that stages a volume takes the lock, and has it until it unstages the volume.
// ControllerUnpublishVolume of a node whose client is still there puts that client on the
// blocklist, so that a node which nobody can reach writes nothing any more. Each mapping is
// a client of its own (noshare): the node's other volumes go on. The entry is taken away
// by a publication after the node's reboot, see fence.go.
//
// The lock is one that a client gives away when it is asked for (there is no map option
// exclusive), since an image cannot grow below a client that keeps it: so the controller
// remembers who had it. That an image is on one node is for the controller to see to.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/klog/v2"
)

// driverName is the one of CSIDriver and class.
const driverName = "rbd.lab.nearflash.io"

// options are the program's flags.
type options struct {
	mode, endpoint string
	// Of the controller.
	command, user, kubeconfig string
	// Of the node.
	nodeName, driverName, stateDir, registrationDir, endpointOnTheHost string
}

func main() {
	var o options
	flag.StringVar(&o.mode, "mode", "", "controller, node, or registrar of another driver's node")
	flag.StringVar(&o.driverName, "driver-name", driverName, "registrar: the driver's `name`")
	flag.StringVar(&o.endpoint, "endpoint", "unix:///csi/csi.sock", "the CSI `socket`")
	flag.StringVar(&o.command, "command", "", "controller: `words` that go before rbd and ceph, such as those that enter a root")
	flag.StringVar(&o.user, "user", "controller", "controller: Ceph's `name` for it, whose keyring those programs find")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "controller: `file`; it asks for the boot ids of nodes")
	flag.StringVar(&o.nodeName, "node-name", "", "node: this machine's name")
	flag.StringVar(&o.stateDir, "state-dir", "/csi/volumes", "node: `folder` that says what is staged")
	flag.StringVar(&o.registrationDir, "registration-dir", "/registration", "node: kubelet's plugins_registry, as mounted here")
	flag.StringVar(&o.endpointOnTheHost, "kubelet-endpoint", "/var/lib/kubelet/plugins/"+driverName+"/csi.sock",
		"node: the CSI socket, as kubelet sees it")
	klog.InitFlags(nil)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		klog.ErrorS(err, "Ended")
		klog.Flush()
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.mode == "registrar" {
		return register(ctx, o.driverName, o.registrationDir, o.endpointOnTheHost)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csi.RegisterIdentityServer(server, identity{})
	switch o.mode {
	case "controller":
		boots, err := newNodeBoots(o.kubeconfig)
		if err != nil {
			return err
		}
		csi.RegisterControllerServer(server, newController(&cluster{run: commandRunner(strings.Fields(o.command)), user: o.user}, boots))
	case "node":
		n, err := newNode(o.nodeName, o.stateDir)
		if err != nil {
			return err
		}
		csi.RegisterNodeServer(server, n)
	default:
		return fmt.Errorf("--mode %q: want controller, node or registrar", o.mode)
	}
	listener, err := listen(ctx, o.endpoint)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	klog.InfoS("Serving", "mode", o.mode, "endpoint", o.endpoint)
	if o.mode == "node" {
		go func() { served <- register(ctx, driverName, o.registrationDir, o.endpointOnTheHost) }()
	}
	select {
	case <-ctx.Done():
		server.GracefulStop()
		return nil
	case err := <-served:
		return err
	}
}

// listen makes the socket; one that a killed process left is in the way.
func listen(ctx context.Context, endpoint string) (net.Listener, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	return l, nil
}

// logged tells of each call and of its error. Requests are left out: they have secrets.
func logged(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, req)
	volume := ""
	if v, ok := req.(interface{ GetVolumeId() string }); ok {
		volume = v.GetVolumeId()
	}
	klog.InfoS("Called", "method", info.FullMethod, "volume", volume, "err", err)
	return answer, err
}

// identity is the same for both halves.
type identity struct {
	csi.UnimplementedIdentityServer
}

// GetPluginInfo implements IdentityServer.
func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: driverName, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements IdentityServer.
func (identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}
	expansion := csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &service}, {Type: &expansion}}}, nil
}

// Probe implements IdentityServer.
func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
