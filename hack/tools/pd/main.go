// Command pd-csi-driver is Google's Persistent Disk CSI driver for the lab, as an
// example of a driver whose volumes are cached: its identity, controller and node
// servers are the real ones. Only the cloud below them is not: disks are files of
// the host, which are plugged into the lab's machines.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
	driver "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-pd-csi-driver"
)

// driverName is the one that the driver has everywhere.
const driverName = "pd.csi.storage.gke.io"

// version is the driver's; the build sets it.
var version = "unknown"

// options are the program's flags.
type options struct {
	mode, endpoint    string
	project           string
	instances         string
	stateDir          string
	diskCommand       string
	nodeName          string
	registrationDir   string
	endpointOnTheHost string
}

func main() {
	var o options
	flag.StringVar(&o.mode, "mode", "", "controller or node")
	flag.StringVar(&o.endpoint, "endpoint", "unix:/csi/csi.sock", "the CSI `socket`")
	flag.StringVar(&o.project, "project", "lab", "the cloud's project")
	flag.StringVar(&o.instances, "instances", "", "the cloud's machines and their zones: `NAME=ZONE,...`")
	flag.StringVar(&o.stateDir, "state-dir", "", "controller: `folder` of disks and of what is attached")
	flag.StringVar(&o.diskCommand, "disk-command", "",
		"controller: `command` that plugs disks, called with plug MACHINE FILE NAME [--read-only], or unplug MACHINE NAME")
	flag.StringVar(&o.nodeName, "node-name", "", "node: this machine's name")
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
	zones, err := parseInstances(o.instances)
	if err != nil {
		return err
	}
	d := driver.GetGCEDriver()
	var controller *driver.GCEControllerServer
	var node *driver.GCENodeServer
	switch o.mode {
	case "controller":
		controller, err = newController(ctx, d, o, zones)
	case "node":
		node, err = newNode(d, o, zones)
	default:
		err = fmt.Errorf("--mode %q: want controller or node", o.mode)
	}
	if err != nil {
		return err
	}
	if err := d.SetupGCEDriver(driverName, version, nil, nil, driver.NewIdentityServer(d), controller, node); err != nil {
		return fmt.Errorf("set the driver up: %w", err)
	}
	// It serves until the process ends.
	go d.Run(o.endpoint, maxLogged, false, nil)
	if node == nil {
		<-ctx.Done()
		return nil
	}
	if err := awaitSocket(ctx, o.endpoint); err != nil {
		return err
	}
	return register(ctx, o.registrationDir, o.endpointOnTheHost)
}

// maxLogged bounds what is logged of a request.
const maxLogged = 10000

// newController returns the controller's server, over a cloud that has plugged in
// again what its records say is attached.
func newController(ctx context.Context, d *driver.GCEDriver, o options, zones map[string]string) (*driver.GCEControllerServer, error) {
	if o.stateDir == "" || o.diskCommand == "" {
		return nil, errors.New("--mode controller wants --state-dir and --disk-command")
	}
	c, err := newCloud(ctx, o.project, zones, o.stateDir, commandPlugger(strings.Fields(o.diskCommand)))
	if err != nil {
		return nil, err
	}
	return driver.NewControllerServer(d, c, retryAtOnce, 5*time.Minute, nil, false, false,
		driver.MultiZoneVolumeHandleConfig{}, driver.ListVolumesConfig{}, driver.ProvisionableDisksConfig{}, false,
		&driver.GCEControllerServerArgs{}), nil
}

// retryAtOnce is what the driver refuses calls for after one failed; upstream waits
// 200 ms, which is for the cloud's sake.
const retryAtOnce = 0

// parseInstances reads NAME=ZONE,...
func parseInstances(s string) (map[string]string, error) {
	zones := map[string]string{}
	for pair := range strings.SplitSeq(s, ",") {
		name, zone, found := strings.Cut(pair, "=")
		// The driver finds a zone's region by its last hyphen.
		if !found || name == "" || strings.Count(zone, "-") != 2 {
			return nil, fmt.Errorf("--instances %q: want NAME=ZONE,... with zones such as us-lab1-a", s)
		}
		zones[name] = zone
	}
	return zones, nil
}

// awaitSocket waits until a server listens.
func awaitSocket(ctx context.Context, endpoint string) error {
	path := strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//")
	for {
		if st, err := os.Stat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
