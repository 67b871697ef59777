package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// callTimeout is kubelet's for one operation of a driver (csiTimeout in
// pkg/volume/csi/csi_plugin.go).
const callTimeout = 2 * time.Minute

// Config are the places of the host; the zero value is right outside tests.
type Config struct {
	// Kubelet is kubelet's root, /var/lib/kubelet. It must be the same path on the host and
	// here: node plugins are told paths below it.
	Kubelet string
	// Sysfs is where sysfs is mounted, /sys, and Dev where device nodes are, /dev.
	Sysfs, Dev string
	// BootID is the file with the kernel's boot id, /proc/sys/kernel/random/boot_id.
	BootID string
	// CallTimeout ends each call of a driver, default 2 min as kubelet's.
	CallTimeout time.Duration
	// AskTimeout is how long a registration socket may take to say who it is, and the driver
	// behind it too; default 1 s, as kubelet's.
	AskTimeout time.Duration
	// Stat says what is at a path, following links; nil asks the kernel.
	Stat Stat
}

// Stat returns the number "major:minor" of the block device that a path leads to; block is
// false for anything else. A path that is not there is fs.ErrNotExist.
type Stat func(path string) (devno string, block bool, err error)

// Transport is transport.Transport over the node plugins of other CSI drivers.
type Transport struct {
	kubelet string
	boot    string
	timeout time.Duration
	drivers *registry
	disks   disks

	mu sync.Mutex
	// secrets are those of the last Connect, by PersistentVolume.
	secrets map[string]map[string]string
}

var _ transport.Transport = (*Transport)(nil)

// New returns a Transport.
func New(c Config) *Transport {
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	def(&c.Kubelet, "/var/lib/kubelet")
	def(&c.Sysfs, "/sys")
	def(&c.Dev, "/dev")
	def(&c.BootID, "/proc/sys/kernel/random/boot_id")
	if c.CallTimeout == 0 {
		c.CallTimeout = callTimeout
	}
	if c.AskTimeout == 0 {
		c.AskTimeout = askTimeout
	}
	if c.Stat == nil {
		c.Stat = statDevice
	}
	return &Transport{
		kubelet: c.Kubelet, boot: c.BootID, timeout: c.CallTimeout,
		drivers: newRegistry(filepath.Join(c.Kubelet, "plugins_registry"), c.AskTimeout),
		disks:   disks{sysfs: c.Sysfs, dev: c.Dev, stat: c.Stat},
		secrets: map[string]map[string]string{},
	}
}

// Connect implements transport.Transport. A device that is attached already is returned
// without a call: its node plugin need not run.
func (t *Transport) Connect(ctx context.Context, at transport.Target, cred *volume.Credentials) (transport.Origin, error) {
	v, err := t.volume(at)
	if err != nil {
		return transport.Origin{}, err
	}
	secrets := t.secretsFor(v, cred)
	found, attached, err := t.attached(v)
	if err != nil {
		return transport.Origin{}, fmt.Errorf("connect %s: %w", v, err)
	}
	known, err := t.recall(v)
	// Of an attachment that has ended since, or is half gone: the device may be another one's by now,
	// and a driver says of what is published that it is.
	leave := known != nil && (known.Leaving || known.Admission != v.source.Admission)
	if err == nil && !leave && !attached {
		leave, err = t.vanished(v)
	}
	if err == nil && leave {
		err = t.undo(ctx, v)
	}
	if err != nil {
		return transport.Origin{}, fmt.Errorf("connect %s: %w", v, err)
	}
	if attached && !leave {
		return found.origin(), nil
	}
	if err := t.call(ctx, v, secrets); err != nil {
		return transport.Origin{}, fmt.Errorf("connect %s: %w", v, err)
	}
	d, err := t.published(v)
	if err != nil {
		return transport.Origin{}, fmt.Errorf("connect %s: %w", v, err)
	}
	if err := t.remember(v, d); err != nil {
		return transport.Origin{}, fmt.Errorf("connect %s: %w", v, err)
	}
	return d.origin(), nil
}

// secretsFor are the secrets of a volume: those given, which are kept, or else those kept.
func (t *Transport) secretsFor(v vol, cred *volume.Credentials) map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cred != nil {
		t.secrets[v.source.PV] = maps.Clone(cred.Secrets)
	}
	return t.secrets[v.source.PV]
}

// call has the driver stage and publish a volume.
func (t *Transport) call(ctx context.Context, v vol, secrets map[string]string) error {
	shared, err := toConnect(v, secrets)
	if err != nil {
		return err
	}
	n, err := t.dial(ctx, v.source.Driver, shared)
	if err != nil {
		return err
	}
	defer n.close()
	// Both before the first call: what Disconnect goes by.
	if err := os.MkdirAll(v.publishDir(), dirMode); err != nil {
		return err
	}
	if n.can.stage {
		if err := os.MkdirAll(v.staging, dirMode); err != nil {
			return err
		}
		if err := n.stage(ctx, v); err != nil {
			return err
		}
	}
	return n.publish(ctx, v)
}

// published is the device that the driver has just published.
func (t *Transport) published(v vol) (disk, error) {
	devno, block, err := t.disks.stat(v.target)
	if err != nil {
		return disk{}, fmt.Errorf("%w: %s says that it has published the volume: %w", transport.ErrNoLUN, v.source.Driver, err)
	}
	if !block {
		return disk{}, fmt.Errorf("%w: %s has published no block device at %s", transport.ErrNoLUN, v.source.Driver, v.target)
	}
	d, found, err := t.disks.describe(devno, v.identity())
	if err != nil {
		return disk{}, err
	}
	if !found {
		return disk{}, fmt.Errorf("%w: %s has published %s, which the kernel does not have", transport.ErrNoLUN, v.source.Driver, devno)
	}
	known, err := t.recall(v)
	if err != nil {
		return disk{}, err
	}
	return d, known.check(d)
}

// vanished reports whether the published device is one that the kernel does not have any more. It may be
// there again under another number, which drivers publish nowhere else as long as the one of before is
// published.
func (t *Transport) vanished(v vol) (bool, error) {
	devno, block, err := t.disks.stat(v.target)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !block {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, found, err := t.disks.describe(devno, v.identity())
	if err != nil || found {
		return false, err
	}
	klog.Background().Info("The device of a volume is gone, and is asked for anew", "driver", v.source.Driver, "handle", v.source.Handle, "device", devno)
	return true, nil
}

// attached finds the device of a volume without its driver.
func (t *Transport) attached(v vol) (disk, bool, error) {
	known, err := t.recall(v)
	if err != nil || known == nil || known.Leaving {
		return disk{}, false, err
	}
	devno, block, err := t.disks.stat(v.target)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !block) {
		return disk{}, false, nil
	}
	if err != nil {
		return disk{}, false, err
	}
	d, found, err := t.disks.describe(devno, v.identity())
	if err != nil || !found {
		return disk{}, false, err
	}
	return d, true, known.check(d)
}

// Lookup implements transport.Transport. The driver need not run.
func (t *Transport) Lookup(_ context.Context, at transport.Target) (transport.Origin, bool, error) {
	v, err := t.volume(at)
	if err != nil {
		return transport.Origin{}, false, err
	}
	d, found, err := t.attached(v)
	if err != nil {
		return transport.Origin{}, false, fmt.Errorf("%s: %w", v, err)
	}
	if !found {
		return transport.Origin{}, false, nil
	}
	return d.origin(), true, nil
}

// Rescan implements transport.Transport: the driver does its part of an expansion, if it has
// one on the node. Without secrets of its own it gets those of the last Connect of this process,
// which a new process does not have.
func (t *Transport) Rescan(ctx context.Context, at transport.Target, cred *volume.Credentials) error {
	v, err := t.volume(at)
	if err != nil {
		return err
	}
	_, found, err := t.attached(v)
	if err == nil && !found {
		err = transport.ErrNoLUN
	}
	if err != nil {
		return fmt.Errorf("rescan %s: %w", v, err)
	}
	secrets := toExpand(v, t.secretsFor(v, nil), cred)
	n, err := t.dial(ctx, v.source.Driver, secrets)
	if err != nil {
		return fmt.Errorf("rescan %s: %w", v, err)
	}
	defer n.close()
	if !n.can.expand {
		return nil // whoever grew it has told the kernel
	}
	if names := v.source.Secrets; names != nil && names.Expand != "" && len(secrets.expand) == 0 {
		return fmt.Errorf("rescan %s: %w", v, noSecret(v, "NodeExpandVolume", names.Expand, "node-expand-secret-name"))
	}
	if err := n.expand(ctx, v); err != nil {
		return fmt.Errorf("rescan %s: %w", v, err)
	}
	d, found, err := t.attached(v)
	if err == nil && !found {
		err = transport.ErrNoLUN
	}
	if err == nil && d.size < v.source.CapacityBytes {
		err = fmt.Errorf("%s says that it has expanded the volume to %d bytes, and the kernel sees %d", v.source.Driver, v.source.CapacityBytes, d.size)
	}
	if err != nil {
		return fmt.Errorf("rescan %s: %w", v, err)
	}
	return nil
}
