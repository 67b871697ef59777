// Package origintest is a CSI driver for tests of whoever calls CSI drivers: a real one, with
// its services and its registration on unix sockets, over devices that are given. It holds its
// caller to the CSI specification (spec.md, v1.13) and to the paths of kubelet, and keeps what
// was against them as breaches. It can be told to fail, hang and crash at each call.
//
// Its state may be kept in a directory. Then it outlives the process, and several processes of
// one driver, a controller's and those of nodes, can share it.
package origintest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Config says what the driver is.
type Config struct {
	// Name is the driver's name, Node that of the node (NodeGetInfo's node_id).
	Name, Node string
	// Kubelet is kubelet's root. Sockets are below it, and the caller's paths must be.
	Kubelet string
	// Endpoint is the CSI socket, default <Kubelet>/plugins/<Name>/csi.sock.
	Endpoint string
	// State is a directory for the state, "" for memory.
	State        string
	Capabilities Capabilities
	Devices      Devices
	// Secrets are what stage, publish and expand must be given.
	Secrets map[string]string
	// SecretsOf are what a call must be given instead, by its method.
	SecretsOf map[string]map[string]string
	// AccessMode is what every call must ask for; the zero value is that of ReadWriteOnce.
	AccessMode csipb.VolumeCapability_AccessMode_Mode
}

// Capabilities are those that drivers may have or not have.
type Capabilities struct {
	// Attach is PUBLISH_UNPUBLISH_VOLUME of the controller, Stage, Expand and MultiWriter are
	// STAGE_UNSTAGE_VOLUME, EXPAND_VOLUME and SINGLE_NODE_MULTI_WRITER of the node.
	Attach, Stage, Expand, MultiWriter bool
}

// Devices are the disks behind the driver, and what a node sees of them. All methods are
// idempotent.
type Devices interface {
	// Create makes the disk of a volume, Delete removes it, Resize grows it; sizes are in bytes.
	Create(handle string, size int64) error
	Delete(handle string) error
	Resize(handle string, size int64) error
	// Attach makes a block device of the disk on this node, Detach takes it away. Refresh
	// makes the node see its size.
	Attach(handle string) error
	Detach(handle string) error
	Refresh(handle string) error
	// Publish shows the attached device at a path, and Unpublish removes that.
	Publish(handle, target string) error
	Unpublish(target string) error
	// Open reports whether somebody uses the device.
	Open(handle string) (bool, error)
}

// Driver is the driver. It is safe for concurrent use.
type Driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer

	c     Config
	store store

	mu      sync.Mutex
	faults  map[string][]Fault
	calls   []string
	serving []served
	// life is held while the sockets open or close.
	life sync.Mutex
}

// served is one socket.
type served struct {
	server *grpc.Server
	socket *net.UnixListener
	done   chan struct{}
}

// New returns a driver that does not serve yet.
func New(c Config) *Driver {
	if c.Endpoint == "" {
		c.Endpoint = filepath.Join(c.Kubelet, "plugins", c.Name, "csi.sock")
	}
	return &Driver{c: c, store: store{dir: c.State}, faults: map[string][]Fault{}}
}

// Registration is the path of the registration socket.
func (d *Driver) Registration() string {
	return filepath.Join(d.c.Kubelet, "plugins_registry", d.c.Name+"-reg.sock")
}

// Endpoint is the path of the CSI socket.
func (d *Driver) Endpoint() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.c.Endpoint
}

// SetEndpoint has the next Start serve at another path.
func (d *Driver) SetEndpoint(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.c.Endpoint = path
}

// Start opens the sockets. What a crash has left of them is replaced.
func (d *Driver) Start(ctx context.Context) error {
	d.life.Lock()
	defer d.life.Unlock()
	endpoint := d.Endpoint()
	// As a node plugin registers: when it serves.
	err := d.serve(ctx, endpoint, func(s *grpc.Server) {
		csipb.RegisterIdentityServer(s, d)
		csipb.RegisterControllerServer(s, d)
		csipb.RegisterNodeServer(s, d)
	})
	if err == nil {
		err = d.serve(ctx, d.Registration(), func(s *grpc.Server) { registerapi.RegisterRegistrationServer(s, d) })
	}
	if err != nil {
		d.close(true)
	}
	return err
}

func (d *Driver) serve(ctx context.Context, path string, register func(*grpc.Server)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	l, err := rpc.Listen(ctx, path)
	if err != nil {
		return err
	}
	socket, ok := l.(*net.UnixListener)
	if !ok {
		return errors.Join(fmt.Errorf("%s is no unix socket", path), l.Close())
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	register(s)
	one := served{server: s, socket: socket, done: make(chan struct{})}
	d.serving = append(d.serving, one)
	go func() {
		defer close(one.done)
		_ = s.Serve(l) // until it is stopped
	}()
	return nil
}

// Stop closes the sockets and removes them, as a plugin that is told to end.
func (d *Driver) Stop() { d.down(true) }

// Crash closes the sockets and leaves their files, as a plugin that is killed. Calls that are
// under way end without an answer; the state stays.
func (d *Driver) Crash() { d.down(false) }

func (d *Driver) down(remove bool) {
	d.life.Lock()
	defer d.life.Unlock()
	d.close(remove)
}

// close closes the sockets; life is held.
func (d *Driver) close(remove bool) {
	for _, s := range d.serving {
		s.socket.SetUnlinkOnClose(remove)
		s.server.Stop()
		<-s.done
	}
	d.serving = nil
}

// Serve serves until ctx ends.
func (d *Driver) Serve(ctx context.Context) error {
	if err := d.Start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	d.Stop()
	return nil
}

// Calls are the calls that have come, in their order.
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Forget begins the list of calls anew.
func (d *Driver) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = nil
}

// Breaches are the caller's breaches so far. They are kept with the state.
func (d *Driver) Breaches() ([]string, error) {
	var out []string
	err := d.store.do(func(s *state) error {
		out = slices.Clone(s.Breaches)
		return nil
	})
	return out, err
}

// Left lists what the caller has not taken back on any node: attachments, staging directories
// and targets.
func (d *Driver) Left() ([]string, error) {
	var out []string
	err := d.store.do(func(s *state) error {
		for handle, v := range s.Volumes {
			out = append(out, v.left(handle)...)
		}
		return nil
	})
	slices.Sort(out)
	return out, err
}

// OnNode lists what is staged and published; attachments are the controller's.
func (d *Driver) OnNode() ([]string, error) {
	var out []string
	err := d.store.do(func(s *state) error {
		for handle, v := range s.Volumes {
			for name, n := range v.Nodes {
				out = append(out, n.left(handle, name)...)
			}
		}
		return nil
	})
	slices.Sort(out)
	return out, err
}

// TB is the part of testing.TB that Check needs; this package is built into programs too.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Cleanup(f func())
}

// Check fails the test at its end for each breach, and for what is left on the nodes. The
// driver is stopped then.
func (d *Driver) Check(t TB) {
	t.Helper()
	t.Cleanup(func() {
		t.Helper()
		d.Stop()
		breaches, err := d.Breaches()
		if err != nil {
			t.Errorf("breaches: %v", err)
		}
		for _, b := range breaches {
			t.Errorf("breach of the CSI specification: %s", b)
		}
		left, err := d.OnNode()
		if err != nil || len(left) > 0 {
			t.Errorf("left on the node: %v, %v", left, err)
		}
	})
}

// Provision makes a volume and attaches it to the node, as sidecars would, and returns it as
// a source; pv is the name of its PersistentVolume.
func (d *Driver) Provision(ctx context.Context, pv string, size int64) (*volume.CSISource, error) {
	capability := d.capability()
	made, err := d.CreateVolume(ctx, &csipb.CreateVolumeRequest{
		Name: pv, CapacityRange: &csipb.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csipb.VolumeCapability{capability},
	})
	if err != nil {
		return nil, err
	}
	v := made.GetVolume()
	source := &volume.CSISource{
		Driver: d.c.Name, Handle: v.GetVolumeId(), PV: pv, Attributes: v.GetVolumeContext(), CapacityBytes: v.GetCapacityBytes(),
	}
	if !d.c.Capabilities.Attach {
		return source, nil
	}
	attached, err := d.ControllerPublishVolume(ctx, &csipb.ControllerPublishVolumeRequest{
		VolumeId: source.Handle, NodeId: d.c.Node, VolumeCapability: capability, VolumeContext: source.Attributes,
	})
	source.Attachment = attached.GetPublishContext()
	return source, err
}
