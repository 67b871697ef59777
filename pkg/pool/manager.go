package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/smart"
	"github.com/nearflash/nearflash/pkg/volume"
)

// View is the pool as of its last reconciliation.
type View struct {
	// Ready is true while the pool can hold caches; Problem says why not.
	Ready   bool
	Problem string
	// VG is the volume group; empty until it has been found or made.
	VG          string
	Devices     []string
	ExtentBytes int64
	// Leaving are those of Devices that are to be out of the pool: nothing is made on them, and
	// they count neither as capacity nor as free.
	Leaving []string
	// LogicalBlock is the largest logical block of the devices, in bytes; 0 if that is
	// not known.
	LogicalBlock int
	// Mirror asks for two copies of every logical volume, and Copies is how
	// many bytes of the pool one byte of cache takes. Stripes is over how many
	// devices cache data are spread; 1 or less is none. What one volume asks for
	// differs: see For.
	Mirror  bool
	Copies  int64
	Stripes int
	// NamespaceSharePercent of CapacityBytes may be taken by the caches of one namespace; 0 is no
	// limit.
	NamespaceSharePercent int32
	// Integrity asks for checksums of what caches hold.
	Integrity bool
	// Degraded says which part of the mirror, or of the mirrors that single volumes
	// have, is missing or out of date, or is empty.
	Degraded string
	// CapacityBytes, FreeBytes and RetainedCacheBytes are known while VG is not empty:
	// the space of all devices, what no logical volume takes, and what clean
	// caches of volumes that left the node take.
	CapacityBytes, FreeBytes, RetainedCacheBytes int64
	// Health is what each device of the pool said of itself last.
	Health map[string]smart.Health
}

// devicesTimeout is how long a pass waits for the SSDs of the pool.
const devicesTimeout = time.Minute

// Config are the values of a Manager.
type Config struct {
	// Node is the node's name, which is also the name of its CachePool.
	Node string
	// Default is the spec given by the node plugin's flags. It is written to the
	// node's CachePool unless that object was made by somebody else.
	Default v1alpha1.CachePoolSpec
	// Choices take the place of Default on nodes with certain labels; the first that matches
	// counts. Labels returns those of this node, and is only asked if there are choices.
	Choices []Choice
	Labels  func(context.Context) (map[string]string, error)
	// InitiatorIQN is the node's iSCSI initiator name.
	InitiatorIQN string
	// InitiatorUnknown says that the name cannot be read now. That which was reported stays: by
	// it the storage server knows what the node still has.
	InitiatorUnknown bool
	// StreamPublicKey is what the plugin proves itself by to other nodes' plugins, "" if it listens
	// nowhere for them; nil is "".
	StreamPublicKey func() string
	// StateDir is the plugin's directory on the node.
	StateDir string
	// LoginPublicKey is the public half of the node's key for logins to the storage server.
	LoginPublicKey string
	// Health asks a device for its health and wear; nil asks none.
	Health func(ctx context.Context, device string) (smart.Health, error)
	// Events tells of caches that wait for an administrator; nil tells nobody.
	Events events.EventRecorder
	// Preflight gives the findings of the node's preflight, "" when it passed.
	Preflight func() string
	// HostTools says which of the host's tools do not leave volumes alone, "" if all do; note is
	// what they do only if somebody runs them. looked is false until that is known. nil says
	// nothing about them.
	HostTools func() (problem, note string, looked bool)
}

// Caches is what the node has of volumes.
type Caches interface {
	// Holds reports whether anything is left here of a volume that was deleted.
	Holds(ctx context.Context, d volume.Deletion) (bool, error)
	// Kept are the caches that wait for an administrator; known is false while the node
	// has not looked at all of them.
	Kept() (list []volume.KeptCache, known bool)
	// Left says what becomes of the caches of which these are logical volumes, which lie on a
	// device that is to be out of the pool.
	Left(ctx context.Context, lvs []string) []volume.LeftCache
}

// RetainedCacheBytes reports how much of the pool clean retained caches occupy.
type RetainedCacheBytes func() (int64, error)

// Manager reconciles the pool with the node's CachePool object.
type Manager struct {
	Config
	lvm           lvm.Client
	api           client.Client
	retainedCache RetainedCacheBytes
	view          atomic.Pointer[View]
	// caches is nil until Serve was called.
	caches atomic.Pointer[Caches]
	// spec is the CachePool's as it was read last, nil before the first time.
	spec atomic.Pointer[v1alpha1.CachePoolSpec]
	// health is used by one reconciliation at a time.
	health health
	// behindLock is held by whoever looks at the copies of mirrors, until that is noted.
	behindLock chan struct{}
}

// NewManager returns a Manager whose pool is not ready until Reconcile ran.
func NewManager(c Config, l lvm.Client, api client.Client, retainedCache RetainedCacheBytes) *Manager {
	m := &Manager{Config: c, lvm: l, api: api, retainedCache: retainedCache, behindLock: make(chan struct{}, 1)}
	m.view.Store(&View{Problem: "the pool has not been examined yet"})
	return m
}

// Serve makes the Manager report what the node has of volumes.
func (m *Manager) Serve(c Caches) { m.caches.Store(&c) }

// Deletions implements attach.PoolView. Only the API server's own answer proves that
// nobody has deleted a volume: the record goes after the word has been written.
func (m *Manager) Deletions(ctx context.Context) ([]volume.Deletion, error) {
	var obj v1alpha1.CachePool
	err := m.api.Get(ctx, client.ObjectKey{Name: m.Node}, &obj)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: CachePool %s: %w", volume.ErrUnavailable, m.Node, err)
	}
	return deletions(obj.Status.Deleted), nil
}

// View returns the state of the pool as of the last reconciliation.
func (m *Manager) View() View { return *m.view.Load() }

// VolumeGroupPrefix is what the names of all nodes' volume groups begin with.
const VolumeGroupPrefix = "nearflash-"

// VolumeGroup is the name of a node's volume group. It carries the node, since
// two nodes may share a kernel and SSDs may change machines.
func VolumeGroup(node string) string { return VolumeGroupPrefix + volume.NodeDigits(node) }

// Reconcile makes the pool what the node's CachePool says, and reports on it. An
// unreachable API server does not keep a node from using the pool that it has;
// but no device is taken then, since the object may name others than the flags. The same holds
// while the node's labels are not known, if the flags count: an object of before may be of
// another machine that had the name.
func (m *Manager) Reconcile(ctx context.Context) error {
	spec, chooseErr := m.chosen(ctx)
	obj, apiErr := m.object(ctx, spec, chooseErr)
	switch last := m.spec.Load(); {
	case apiErr == nil:
		spec = obj.Spec
		m.spec.Store(&spec)
	case last != nil:
		spec = *last
	}
	dctx, cancel := context.WithTimeout(ctx, devicesTimeout)
	mayTake := apiErr == nil && (chooseErr == nil || !obj.FromFlags())
	known := mayTake || m.spec.Load() != nil
	st := m.reconcileDevices(dctx, spec, mayTake, known)
	cancel()
	m.view.Store(&st.view)
	if apiErr != nil {
		return fmt.Errorf("CachePool %s: %w", m.Node, apiErr)
	}
	if mayTake {
		chooseErr = nil // the object is an administrator's
	}
	return errors.Join(chooseErr, m.report(ctx, obj, st))
}

// Run repeats Reconcile until ctx ends.
func (m *Manager) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := m.Reconcile(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Pool could not be reconciled")
		}
	}
}

// outcome is what one reconciliation found and did.
type outcome struct {
	view            View
	reason, message string
	devices         []DeviceFacts
	size, free      int64
	// left are devices that were taken out.
	left []string
}

// reconcileDevices makes the devices what spec says. mayTake is false if none may be taken, or taken
// out; known is false if spec may not be what somebody has said of this node.
func (m *Manager) reconcileDevices(ctx context.Context, spec v1alpha1.CachePoolSpec, mayTake, known bool) outcome {
	vg := VolumeGroup(m.Node)
	f, err := m.gather(ctx, spec, vg)
	if err != nil {
		return m.failed(err)
	}
	if !known {
		stay(f)
	}
	p := decide(spec, f)
	if !mayTake {
		p = withoutTaking(p, f.VGExists)
	}
	o := outcome{reason: p.Reason, message: p.Message, devices: f.Devices}
	o.view = View{Ready: p.Ready, Devices: usable(f.Devices), Leaving: p.Leaving, LogicalBlock: logicalBlock(f.Devices)}
	if !p.Ready {
		o.view.Problem = p.Message
	}
	if f.VGExists || p.Ready {
		o.view.VG = vg
	}
	o.view.Health = m.health.of(ctx, m.Health, o.view.Devices)
	if err := m.act(ctx, vg, p); err != nil {
		return m.failed(err)
	}
	if o.left = m.leave(ctx, vg, p, f.Devices); len(o.left) > 0 {
		o.view.Devices = usable(f.Devices)
		o.view.Leaving = slices.DeleteFunc(p.Leaving, func(d string) bool { return slices.Contains(o.left, d) })
		if p.Dissolve {
			o.view.VG = ""
		}
	}
	if o.view.VG == "" {
		return o
	}
	report, err := m.lvm.VG(ctx, vg)
	if err != nil {
		return m.failed(err)
	}
	o.size, o.free = report.SizeBytes, report.FreeBytes
	if len(o.view.Leaving) > 0 {
		if o.size, o.free, err = m.room(ctx, vg, o.view.Staying()); err != nil {
			return m.failed(err)
		}
	}
	o.view.CapacityBytes, o.view.FreeBytes = o.size, o.free
	if o.view.RetainedCacheBytes, err = m.retainedCache(); err != nil {
		return m.failed(err)
	}
	o.view.ExtentBytes, o.view.Copies, o.view.Stripes = report.ExtentBytes, 1, len(o.view.Staying())
	o.view.NamespaceSharePercent, o.view.Integrity = spec.NamespaceSharePercent, spec.Integrity && spec.Redundancy != v1alpha1.RedundancyMirror
	whole := spec.Redundancy == v1alpha1.RedundancyMirror
	if whole {
		o.view = o.view.of(true)
	}
	if whole || report.PVCount > 1 {
		o.view.Degraded = m.mirror(ctx, vg, f.MissingPVs, whole)
	}
	return o
}

// failed is a pool that cannot be used now. If its SSDs do not answer, what was known of
// it still holds, so that nobody takes its caches for gone.
func (m *Manager) failed(err error) outcome {
	o := outcome{reason: v1alpha1.ReasonPoolError, message: err.Error()}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, hostexec.ErrStuck) || errors.Is(err, hostexec.ErrRuns) {
		o.view = m.View()
	}
	o.view.Ready, o.view.Problem = false, err.Error()
	return o
}

func (m *Manager) act(ctx context.Context, vg string, p plan) error {
	switch {
	case len(p.Create) > 0:
		klog.FromContext(ctx).Info("Making the pool", "volumeGroup", vg, "devices", p.Create)
		return m.lvm.CreateVG(ctx, vg, p.Create)
	case len(p.Extend) > 0:
		klog.FromContext(ctx).Info("Extending the pool", "volumeGroup", vg, "devices", p.Extend)
		return m.lvm.ExtendVG(ctx, vg, p.Extend)
	}
	return nil
}

// used reports whether the pool may use a device.
func (d DeviceFacts) used() bool { return d.InPool || d.Problem == "" && !d.Evacuate && !d.Noted }

// stay has nothing leave.
func stay(f facts) {
	for i := range f.Devices {
		f.Devices[i].Evacuate = f.Devices[i].Evacuate && !f.Devices[i].InPool
	}
}

// usable returns the paths of the devices that the pool may use.
func usable(devs []DeviceFacts) []string {
	var out []string
	for _, d := range devs {
		if d.used() {
			out = append(out, d.Path)
		}
	}
	return out
}

// logicalBlock is the largest logical block of the devices that the pool may use.
func logicalBlock(devs []DeviceFacts) int {
	n := 0
	for _, d := range devs {
		if d.used() {
			n = max(n, d.LogicalBlock)
		}
	}
	return n
}

// gather looks at every device that the spec matches.
func (m *Manager) gather(ctx context.Context, spec v1alpha1.CachePoolSpec, vg string) (facts, error) {
	paths, named, evacuate, err := m.matched(spec)
	if err != nil {
		return facts{}, err
	}
	m.lvm.SetDevices(paths)
	if len(paths) == 0 {
		return facts{}, nil
	}
	report, err := m.lvm.VG(ctx, vg)
	if err != nil && !errors.Is(err, lvm.ErrNotFound) {
		return facts{}, err
	}
	f := facts{VGExists: err == nil, MissingPVs: report.MissingPVs}
	pvs, err := m.lvm.PVs(ctx, paths)
	if err != nil {
		return facts{}, err
	}
	announced := m.View().Leaving
	for _, path := range paths {
		d := DeviceFacts{Path: path, Evacuate: evacuate[path], Announced: slices.Contains(announced, path)}
		pv := pvOf(pvs, path)
		if d.InPool = pv.VG == vg; d.InPool {
			d.UUID, d.UsedBytes = pv.UUID, pv.SizeBytes-pv.FreeBytes
		}
		if err := m.refuse(ctx, &d, pv, named[path]); err != nil {
			return facts{}, err
		}
		if size, err := blockdev.Size(path); err == nil {
			d.SizeBytes = size
		}
		if devno, err := blockdev.DevNo(path); err == nil {
			d.LogicalBlock, err = blockdev.LogicalBlock("/sys", devno)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Logical block size of a device is not known", "device", path)
			}
		}
		f.Devices = append(f.Devices, d)
	}
	return f, nil
}

// matched returns the devices that the spec matches, those of them that it names, and those that are to
// be out of the pool. A device that is only to be out is looked at as the others: the group is not
// whole without it.
func (m *Manager) matched(spec v1alpha1.CachePoolSpec) (paths []string, named, evacuate map[string]bool, err error) {
	wanted, named, err := expand(spec.Devices)
	if err != nil {
		return nil, nil, nil, err
	}
	out, _, err := expand(spec.Evacuate)
	evacuate = map[string]bool{}
	for _, path := range out {
		evacuate[path] = true
	}
	paths = slices.Concat(wanted, out)
	slices.Sort(paths)
	return slices.Compact(paths), named, evacuate, err
}

// refuse notes why a device outside of the pool is not taken.
func (m *Manager) refuse(ctx context.Context, d *DeviceFacts, pv lvm.PV, named bool) (err error) {
	switch {
	case d.InPool:
		return nil
	case strings.HasPrefix(pv.VG, VolumeGroupPrefix):
		d.Problem = fmt.Sprintf("%s (volume group %s), and may have unflushed writes: docs/how-to/prepare-ssds.md, Take over the SSDs of another node", v1alpha1.MessageForeignDevice, pv.VG)
		return nil
	case pv.Device != "" && pv.VG == "":
		d.UUID = pv.UUID
		if d.Noted, err = m.noted(pv.UUID); d.Noted || err != nil {
			return err
		}
	}
	d.Problem = m.problem(ctx, d.Path, named)
	return nil
}

// pvOf is the physical volume on a device, without a name if there is none.
func pvOf(pvs []lvm.PV, path string) lvm.PV {
	i := slices.IndexFunc(pvs, func(pv lvm.PV) bool { return canonical(pv.Device) == path })
	if i < 0 {
		return lvm.PV{}
	}
	return pvs[i]
}

// canonical resolves the name that LVM gives a device: one of the device mapper has a
// link in /dev/mapper for a name.
func canonical(device string) string {
	if real, err := filepath.EvalSymlinks(device); err == nil {
		return real
	}
	return device
}

// problem says why a device that is not in the pool must not be taken. named is true if
// the spec has its name, and not only a glob that matches it.
func (m *Manager) problem(ctx context.Context, path string, named bool) string {
	part, err := blockdev.IsPartition(path)
	if err != nil {
		return err.Error()
	}
	if part && !named {
		// Of the system disk too: a BIOS boot partition holds a boot loader and carries no
		// signature.
		return "is a partition: only one that is named without a wildcard is taken"
	}
	blank, signature, err := m.lvm.Blank(ctx, path)
	switch {
	case err != nil:
		return err.Error()
	case !blank:
		return signature
	}
	return ""
}

// expand resolves paths and globs to canonical device paths, each once: two
// links to one device must not make two physical volumes of it. named are those that a
// pattern without a wildcard leads to.
func expand(patterns []string) (paths []string, named map[string]bool, err error) {
	named = map[string]bool{}
	for _, p := range patterns {
		matches, err := filepath.Glob(p)
		if err != nil {
			return nil, nil, fmt.Errorf("device pattern %q: %w", p, err)
		}
		for _, match := range matches {
			real, err := filepath.EvalSymlinks(match)
			if err != nil {
				return nil, nil, fmt.Errorf("device %s: %w", match, err)
			}
			named[real] = named[real] || !strings.ContainsAny(p, `*?[\`)
		}
	}
	return slices.Sorted(maps.Keys(named)), named, nil
}
