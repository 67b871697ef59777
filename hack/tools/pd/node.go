package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/deviceutils"
	driver "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-pd-csi-driver"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/linkcache"
	mountmanager "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/mount-manager"
)

// newNode returns the real node server of the machine o.nodeName.
func newNode(d *driver.GCEDriver, o options, zones map[string]string) (*driver.GCENodeServer, error) {
	zone, found := zones[o.nodeName]
	if !found {
		return nil, fmt.Errorf("--node-name %q is not among --instances", o.nodeName)
	}
	mounter, err := mountmanager.NewSafeMounter(1, 5*time.Minute)
	if err != nil {
		return nil, fmt.Errorf("mounter: %w", err)
	}
	args := &driver.NodeServerArgs{
		EnableDeviceInUseCheck: true, DeviceInUseTimeout: 30 * time.Second, SysfsPath: "/sys", NodeName: o.nodeName,
		DeviceCache: linkcache.NewTestDeviceCache(time.Minute, linkcache.NewTestNodeWithVolumes(nil)),
	}
	meta := metadata{project: o.project, zone: zone, name: o.nodeName}
	return driver.NewNodeServer(d, mounter, devices{deviceutils.NewDeviceUtils()}, meta, mountmanager.NewStatter(mounter), args), nil
}

// metadata answers what a machine of the cloud is asked about itself.
type metadata struct{ project, zone, name string }

// GetZone is where the machine is.
func (m metadata) GetZone() string { return m.zone }

// GetProject is whose machine it is.
func (m metadata) GetProject() string { return m.project }

// GetName is the machine's.
func (m metadata) GetName() string { return m.name }

// GetMachineType is one of which a label of the Node may say how many disks it takes.
func (m metadata) GetMachineType() string { return "n1-standard-1" }

// GetValue knows nothing else.
func (m metadata) GetValue(_ context.Context, name string) (string, error) {
	return "", fmt.Errorf("this cloud's metadata have no %s", name)
}

// devices finds disks without the cloud's own scsi_id and google_nvme_id: what they
// read is in sysfs.
type devices struct{ deviceutils.DeviceUtils }

// The pace of upstream's search for a device.
const (
	deviceLimit = 3 * time.Second
	devicePoll  = 100 * time.Millisecond
)

// VerifyDevicePath implements DeviceUtils: it returns the first path that leads to a
// device whose serial number is the disk's name.
func (devices) VerifyDevicePath(paths []string, disk string) (string, error) {
	for deadline := time.Now().Add(deviceLimit); ; time.Sleep(devicePoll) {
		var errs []error
		for _, path := range paths {
			serial, err := serialOf(path)
			if err == nil && serial == disk {
				return path, nil
			}
			errs = append(errs, fmt.Errorf("%s has serial number %q: %w", path, serial, err))
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("no device of disk %s: %w", disk, errors.Join(errs...))
		}
	}
}

func serialOf(path string) (string, error) {
	dev, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	// Page 0x80 of the disk: four bytes, then its unit serial number.
	const header = 4
	folder, err := filepath.EvalSymlinks(filepath.Join("/sys/class/block", filepath.Base(dev)))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(folder, "partition")); err == nil {
		folder = filepath.Dir(folder) // a partition's disk
	}
	b, err := os.ReadFile(filepath.Join(folder, "device/vpd_pg80"))
	return strings.Trim(string(b[min(header, len(b)):]), " \x00"), err
}

// registrar announces the driver to kubelet, as the sidecar node-driver-registrar does.
type registrar struct {
	registerapi.UnimplementedRegistrationServer
	endpoint string
	refused  chan error
}

// GetInfo implements RegistrationServer.
func (r registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: driverName, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus implements RegistrationServer.
func (r registrar) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		r.refused <- fmt.Errorf("kubelet refused the registration: %s", s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// register serves kubelet's questions until ctx ends, or kubelet refuses the driver:
// the container is then started again, and asks anew.
func register(ctx context.Context, dir, endpoint string) error {
	path := filepath.Join(dir, driverName+"-reg.sock")
	// kubelet notices a socket when it appears.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("registration: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("registration: %w", err)
	}
	r := registrar{endpoint: endpoint, refused: make(chan error, 1)}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, r)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	klog.InfoS("Serving kubelet", "socket", path)
	select {
	case <-ctx.Done():
	case err = <-r.refused:
	case err = <-served:
	}
	server.Stop() // removes the socket, which tells kubelet that the driver is gone
	return err
}
