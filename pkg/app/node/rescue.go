package node

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/rescue"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Rescue is the command that flushes the cache of a node that is lost, on any machine
// that has its SSDs.
type Rescue struct {
	// Out is where its findings go.
	Out io.Writer

	devices          stringList
	vg, volume       string
	origin           string
	portal, iqn      string
	lun              int
	chapFile         string
	generation       int64
	grown, dryRun    bool
	oneCopy          bool
	kubeconfig, temp string
}

// AddFlags defines the flags of nearflash-node rescue.
func (c *Rescue) AddFlags(fs *flag.FlagSet) {
	fs.Var(&c.devices, "pool-devices", "`path` or glob of the SSDs of the lost node (repeatable)")
	fs.StringVar(&c.vg, "volume-group", "", "`name` of the lost node's volume group, if the SSDs have several")
	fs.StringVar(&c.volume, "volume", "", "`ID` of the volume to rescue; without it all caches are listed, and nothing is written")
	fs.StringVar(&c.origin, "origin", "", "`path` of the origin's block device")
	fs.StringVar(&c.portal, "portal", "", "instead of --origin: `host:port` of the storage server")
	fs.StringVar(&c.iqn, "iqn", "", "iSCSI `name` of the origin's target")
	fs.IntVar(&c.lun, "lun", 0, "`number` of the origin's LUN")
	fs.StringVar(&c.chapFile, "chap-file", "", "`file` with the CHAP user in its first line and the password in its second")
	fs.Int64Var(&c.generation, "generation", 0, "refuse a cache of another `generation`; 0 takes any")
	fs.BoolVar(&c.grown, "origin-grew", false, "the volume was expanded since the SSD noted its size")
	fs.BoolVar(&c.oneCopy, "one-copy", false, "take a mirror of which an SSD is missing: that one is lost for good, and has no newer writes than the other")
	fs.BoolVar(&c.dryRun, "dry-run", false, "examine everything, write nothing")
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "`file` with the way to the cluster: the rescue is refused if the volume has moved on, and its record says afterwards that it is clean")
	fs.StringVar(&c.temp, "temp-dir", os.TempDir(), "`directory` for maps while they are read, on a filesystem with direct I/O")
}

func (c *Rescue) validate() error {
	var errs []error
	if len(c.devices) == 0 {
		errs = append(errs, errors.New("--pool-devices is required"))
	}
	for _, d := range c.devices {
		if _, err := filepath.Match(d, ""); err != nil || !strings.HasPrefix(d, "/dev/") {
			errs = append(errs, fmt.Errorf("--pool-devices %q: accepted are paths and globs below /dev", d))
		}
	}
	if _, err := volume.ParseID(c.volume); c.volume != "" && err != nil {
		errs = append(errs, fmt.Errorf("--volume: %w", err))
	}
	switch remote := c.portal != "" || c.iqn != ""; {
	case c.volume == "" && (c.origin != "" || remote):
		errs = append(errs, errors.New("--origin, --portal and --iqn go with --volume"))
	case c.volume != "" && (c.origin != "") == remote:
		errs = append(errs, errors.New("--volume needs either --origin, or --portal and --iqn"))
	case remote && (c.portal == "" || c.iqn == ""):
		errs = append(errs, errors.New("--portal and --iqn are given together"))
	case c.chapFile != "" && !remote:
		errs = append(errs, errors.New("--chap-file goes with --portal and --iqn"))
	}
	return errors.Join(errs...)
}

// Run lists the caches, or rescues one.
func (c *Rescue) Run(ctx context.Context) error {
	if err := c.validate(); err != nil {
		return err
	}
	// Of a name that nobody can know: the directory for temporary files is everybody's.
	links, err := os.MkdirTemp(c.temp, "nearflash-devices-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(links) }()
	probe := filepath.Join(links, "direct")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		return err
	}
	if err := cachetools.DirectIO(probe); err != nil {
		return fmt.Errorf("--temp-dir %q: %w", c.temp, err)
	}
	run := hostexec.New()
	dm := devmapper.New(run)
	r := &rescue.Rescuer{DM: dm, LVM: integrity.NewApart(lvm.New(run, links), dm, blockdev.Host{}), Tools: cachetools.Tools{Run: run}, LUNs: &reservation.Disks{}, OneCopy: c.oneCopy, Dir: c.temp, Now: time.Now}
	if err := c.findPool(ctx, r); err != nil {
		return err
	}
	if c.volume == "" {
		list, err := r.List(ctx)
		if err != nil {
			return err
		}
		return c.print(list)
	}
	if c.kubeconfig != "" {
		rec, err := recordsAt(c.kubeconfig)
		if err != nil {
			return err
		}
		r.Records = rec
	}
	disconnect, err := c.connect(ctx, iscsi.New(run, iscsi.Config{}))
	if err != nil {
		return err
	}
	defer disconnect()
	res, err := r.Rescue(ctx, rescue.Request{
		Volume: volume.ID(c.volume), Origin: c.origin, Generation: c.generation, Grown: c.grown, DryRun: c.dryRun,
	})
	if err != nil {
		return err
	}
	return c.say(res)
}

// findPool finds the volume group of the lost node.
func (c *Rescue) findPool(ctx context.Context, r *rescue.Rescuer) error {
	var paths []string
	for _, d := range c.devices {
		found, err := filepath.Glob(d)
		if err != nil {
			return err
		}
		paths = append(paths, found...)
	}
	if len(paths) == 0 {
		return fmt.Errorf("no device is named %s", c.devices.String())
	}
	r.LVM.SetDevices(paths)
	pvs, err := r.LVM.PVs(ctx, paths)
	if err != nil {
		return err
	}
	var groups []string
	for _, pv := range pvs {
		if strings.HasPrefix(pv.VG, pool.VolumeGroupPrefix) && !slices.Contains(groups, pv.VG) && (c.vg == "" || c.vg == pv.VG) {
			groups = append(groups, pv.VG)
		}
	}
	switch len(groups) {
	case 0:
		return fmt.Errorf("%s: no volume group of a nearflash pool", strings.Join(paths, ", "))
	case 1:
		r.VG = groups[0]
		return nil
	}
	return fmt.Errorf("several pools are on these devices, name one with --volume-group: %s", strings.Join(groups, ", "))
}

func recordsAt(file string) (*records.Records, error) {
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.Timeout = apiTimeout
	scheme, err := kube.NewScheme()
	if err != nil {
		return nil, err
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	return records.New(api, nil, time.Now), nil
}

// connect attaches the origin, if it is not here already.
func (c *Rescue) connect(ctx context.Context, t transport.Transport) (disconnect func(), err error) {
	if c.origin != "" {
		return func() {}, nil
	}
	var cred *volume.Credentials
	if c.chapFile != "" {
		if cred, err = readCHAP(c.chapFile); err != nil {
			return nil, err
		}
	}
	at := transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{c.portal}, IQN: c.iqn, LUN: c.lun}}}
	if _, found, err := t.Lookup(ctx, at); err != nil || found {
		if err == nil {
			err = fmt.Errorf("%s is attached to this machine already: something may use it", at)
		}
		return nil, err
	}
	disconnect = func() {
		if err := t.Disconnect(context.WithoutCancel(ctx), at); err != nil {
			klog.FromContext(ctx).Error(err, "Session with the storage server was not ended")
		}
	}
	o, err := t.Connect(ctx, at, cred)
	if err != nil {
		disconnect()
		return nil, err
	}
	c.origin = o.Paths[0]
	return disconnect, nil
}

// readCHAP reads a user and a password.
func readCHAP(file string) (*volume.Credentials, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--chap-file: %w", err)
	}
	defer func() { _ = f.Close() }()
	var lines []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if text := strings.TrimSpace(s.Text()); text != "" {
			lines = append(lines, text)
		}
	}
	if len(lines) != 2 {
		return nil, fmt.Errorf("--chap-file %s: %d lines; accepted are two, user and password", file, len(lines))
	}
	return &volume.Credentials{Username: lines[0], Password: lines[1]}, nil
}

// print is the list of caches.
func (c *Rescue) print(list []rescue.Cache) error {
	w := tabwriter.NewWriter(c.Out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "VOLUME\tMODE\tNODE\tGENERATION\tSTATE\tDIRTY BYTES\tUID\tDETAIL")
	for _, e := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", e.ID, e.Mode, e.Fence.Node, e.Fence.Generation, e.State, e.DirtyBytes(), e.Fence.UID, e.Detail)
	}
	return w.Flush()
}

// say tells what was done, or would be.
func (c *Rescue) say(res rescue.Result) error {
	e := res.Cache
	what := fmt.Sprintf("%s: generation %d of node %s, %s: %d bytes in %d blocks", e.ID, e.Fence.Generation, e.Fence.Node, e.State, e.DirtyBytes(), e.DirtyBlocks)
	if !res.Written {
		_, err := fmt.Fprintf(c.Out, "%s would be written to %s (%d bytes); nothing was written\n", what, c.origin, res.OriginBytes)
		return err
	}
	record := "; tell the cluster with kubectl nearflash abandon, which gives up nothing now"
	if res.Reported {
		record = "; the record says that the volume is clean"
	}
	_, err := fmt.Fprintf(c.Out, "%s were written to %s; the cache is retired%s\n", what, c.origin, record)
	return err
}
