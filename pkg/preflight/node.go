package preflight

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/target/lio"
)

// What a node must have at least.
var (
	// minCacheTarget is the first with metadata2 and without the mq policy
	// (drivers/md/dm-cache-target.c).
	minCacheTarget = devmapper.Version{Major: 2}
	// minLVM is the first whose commands take --devices (lvm2's WHATS_NEW).
	minLVM = devmapper.Version{Major: 2, Minor: 3, Patch: 12}
)

// Node looks at what a node brings.
type Node struct {
	Run hostexec.Runner
	DM  devmapper.Client
	// Sysfs is where sysfs is mounted, /sys outside tests.
	Sysfs string
	// InitiatorNameFile is the initiator's name of open-iscsi.
	InitiatorNameFile string
	// OwnISCSID says that the iscsid is to be nearflash's own, and the host has none.
	OwnISCSID bool
	// OpenISCSI is the host's open-iscsi, if its iscsiadm is used; nil is the image's.
	OpenISCSI *openiscsi.Host
	// HostISCSI finds the host's iscsid, to name its version; nil if nothing of the host is seen.
	HostISCSI *openiscsi.Host
	// Iscsid is the daemon, the zero value outside tests.
	Iscsid openiscsi.Daemon
	// Programs remembers what was found of programs; nil asks them each time.
	Programs *Programs
	// Outside says why commands that change the kernel would end with the plugin's
	// container; nil outside of one.
	Outside func() error
	// Exports prepares the kernel to export devices; for tests, nil means that of
	// this machine.
	Exports func(context.Context) error
	// Kernel asks the kernel what it is; for tests, nil means that of this machine.
	Kernel func() (Kernel, error)
	// Without are names of [MoveTargets] that count as absent, though the kernel has them.
	Without []string
}

// Programs remembers which programs could be used. They belong to the driver's image,
// so that one that was found stays; one that was not is asked again. The zero value
// knows of none.
type Programs struct {
	mu sync.Mutex
	// usable has what they said.
	usable map[string]string
}

// ask returns what check says of a program, or nil if it has passed before.
func (p *Programs) ask(name string, check func() error) error {
	_, err := p.say(name, func() (string, error) { return "", check() })
	return err
}

// say returns what a program says to check, or said when it passed before.
func (p *Programs) say(name string, check func() (string, error)) (string, error) {
	if p == nil {
		return check()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if said, ok := p.usable[name]; ok {
		return said, nil
	}
	said, err := check()
	if err == nil {
		if p.usable == nil {
			p.usable = map[string]string{}
		}
		p.usable[name] = said
	}
	return said, err
}

// modules are what the node plugin uses of the kernel. Loading may fail where
// they are built in, or where the image has no /lib/modules; what counts is what
// is there afterwards.
var modules = []string{
	"dm-mod", "dm-cache", "dm-cache-smq", "dm-raid", "dm-multipath", "dm-round-robin", "iscsi_tcp",
	"dm-clone", "dm-zero", "dm-integrity", "configfs", "target_core_mod", "target_core_iblock", "iscsi_target_mod",
}

// LoadModules asks the kernel for its modules, one by one.
func (n Node) LoadModules(ctx context.Context) {
	for _, m := range modules {
		_, _ = n.Run.Run(ctx, hostexec.Change("module "+m, "modprobe", "--quiet", m)) // judged by the checks below
	}
}

// Findings are what Node lacks, nil where it lacks nothing.
type Findings struct {
	// Essential is for every volume, ISCSI for those of iSCSI servers, Cache for caches, WarmMove
	// for moves by dm-clone.
	Essential, ISCSI, Cache, WarmMove error
	// WriteTracking says why dm-cache's passthrough mode may not be used on this kernel to
	// learn which blocks are written. It says nothing of what else caches need.
	WriteTracking error
	// Integrity says why there can be no checksums of what caches hold.
	Integrity error
	// Sending says why no cache can leave this node by stream. WarmMove has the same of clones.
	Sending error
}

// Examine makes all checks, with one look at the kernel's targets.
func (n Node) Examine(ctx context.Context) Findings {
	dm := n.DM
	n.DM = oneQuery{Client: dm, targets: sync.OnceValues(func() (map[string]devmapper.Version, error) { return dm.Targets(ctx) })}
	return Findings{Essential: n.Essential(ctx), ISCSI: n.ISCSI(ctx), Cache: n.Cache(ctx), WarmMove: n.WarmMove(ctx), WriteTracking: n.WriteTracking(), Sending: n.Sending(ctx), Integrity: n.Integrity(ctx)}
}

// oneQuery is a client that asks for the targets once.
type oneQuery struct {
	devmapper.Client
	targets func() (map[string]devmapper.Version, error)
}

func (o oneQuery) Targets(context.Context) (map[string]devmapper.Version, error) { return o.targets() }

// Essential checks what every volume needs, cached or not. Each error names the
// missing thing and the remedy.
func (n Node) Essential(ctx context.Context) error {
	return n.deviceMapper(ctx)
}

// Cache checks what only caches need; without it volumes are attached uncached.
func (n Node) Cache(ctx context.Context) error {
	return errors.Join(n.cacheTarget(ctx), n.outside(), n.lvm(ctx), n.tool(ctx, "cache_check", "-V"))
}

// Sending checks what a node needs that sends a cache by stream: what its map does not name is
// shown as zeroes (states.md, What a lease shows).
func (n Node) Sending(ctx context.Context) error {
	if err := n.targets(ctx, "zero"); err != nil {
		return fmt.Errorf("caches that leave this node start cold elsewhere: %w", err)
	}
	return nil
}

// Integrity checks what a pool needs that asks for checksums.
func (n Node) Integrity(ctx context.Context) error {
	have, err := n.DM.Targets(ctx)
	if err != nil {
		return fmt.Errorf("targets of the device mapper: %w", err)
	}
	if _, ok := have["integrity"]; !ok {
		return errors.New("the pool asks for integrity, and the kernel has no target integrity: no cache is made without checksums; remedy: load the module dm-integrity on the node (CONFIG_DM_INTEGRITY), or take integrity out of the pool")
	}
	return nil
}

// WriteTracking asks the kernel what it is, and judges it by [Kernel.TracksWrites].
func (n Node) WriteTracking() error {
	ask := n.Kernel
	if ask == nil {
		ask = runningKernel
	}
	k, err := ask()
	if err != nil {
		return err
	}
	return k.TracksWrites()
}

// outside: the kernel may not survive that the command which makes a cache is killed
// (hostexec.Change), and the end of a container kills what is in it.
func (n Node) outside() error {
	if n.Outside == nil {
		return nil
	}
	if err := n.Outside(); err != nil {
		return fmt.Errorf("commands would be killed with the plugin's container, which can crash the node while a cache is made: %w", err)
	}
	return nil
}

// moveTargets are what only warm moves need of the device mapper, each with its
// module and its option in the kernel's configuration.
var moveTargets = []struct{ name, module, option string }{
	{"clone", "dm-clone", "CONFIG_DM_CLONE"},
	{"multipath", "dm-multipath", "CONFIG_DM_MULTIPATH"},
	{"zero", "dm-zero", "CONFIG_DM_ZERO"},
}

// iscsiTarget is the kernel's iSCSI target among [MoveTargets].
const iscsiTarget = "iscsi"

// MoveTargets are the kernel's targets that only warm moves need, sorted: those of the
// device mapper, and iscsi. A node can be told to do without them ([Node].Without).
func MoveTargets() []string {
	names := []string{iscsiTarget}
	for _, t := range moveTargets {
		names = append(names, t.name)
	}
	slices.Sort(names)
	return names
}

// withheld is a finding about a target that counts as absent, nil for others.
func (n Node) withheld(target string) error {
	if !slices.Contains(n.Without, target) {
		return nil
	}
	return fmt.Errorf("the kernel's target %s counts as absent; remedy: take it out of --without-targets (node.withoutTargets of the chart)", target)
}

// WarmMove checks what only warm moves need, on either side of them; without it
// caches start cold. It mounts configfs where it is missing.
func (n Node) WarmMove(ctx context.Context) error {
	return errors.Join(n.targets(ctx, MoveTargets()...), n.tool(ctx, "cache_dump", "-V"), n.tool(ctx, "cache_restore", "-V"), n.exports(ctx))
}

func (n Node) exports(ctx context.Context) error {
	if err := n.withheld(iscsiTarget); err != nil {
		return err
	}
	if n.Exports != nil {
		return n.Exports(ctx)
	}
	return lio.NewHost(n.Run).Prepare(ctx)
}

// targets checks those of moveTargets that have one of the names.
func (n Node) targets(ctx context.Context, names ...string) error {
	have, err := n.DM.Targets(ctx)
	if err != nil {
		return fmt.Errorf("targets of the device mapper: %w", err)
	}
	var errs []error
	for _, t := range moveTargets {
		if !slices.Contains(names, t.name) {
			continue
		}
		if err := n.withheld(t.name); err != nil {
			errs = append(errs, err)
		} else if _, ok := have[t.name]; !ok {
			errs = append(errs, fmt.Errorf("the kernel has no target %s; remedy: load the module %s on the node (%s)", t.name, t.module, t.option))
		}
	}
	return errors.Join(errs...)
}

func (n Node) deviceMapper(ctx context.Context) error {
	targets, err := n.DM.Targets(ctx)
	switch {
	case errors.Is(err, hostexec.ErrNotInstalled):
		return fmt.Errorf("dmsetup is missing: %w; remedy: use the driver's own image, it has it", err)
	case err != nil:
		return fmt.Errorf("the kernel has no device mapper: %w; remedy: load the module dm-mod on the node", err)
	}
	if _, ok := targets["linear"]; !ok {
		return errors.New("the kernel's device mapper has no target linear; remedy: use a kernel with CONFIG_BLK_DEV_DM")
	}
	return nil
}

func (n Node) cacheTarget(ctx context.Context) error {
	targets, err := n.DM.Targets(ctx)
	if err != nil {
		return fmt.Errorf("targets of the device mapper: %w", err)
	}
	v, ok := targets["cache"]
	if !ok {
		return errors.New("the kernel has no target cache; remedy: load the modules dm-cache and dm-cache-smq on the node (CONFIG_DM_CACHE, CONFIG_DM_CACHE_SMQ)")
	}
	if !v.AtLeast(minCacheTarget) {
		return fmt.Errorf("the kernel's target cache is version %s, %s is needed; remedy: use kernel 4.12 or later", v, minCacheTarget)
	}
	return nil
}

var lvmVersion = regexp.MustCompile(`LVM version:\s+(\d+)\.(\d+)\.(\d+)`)

func (n Node) lvm(ctx context.Context) error {
	return n.Programs.ask("lvm", func() error { return n.lvmVersion(ctx) })
}

func (n Node) lvmVersion(ctx context.Context) error {
	res, err := n.Run.Run(ctx, hostexec.Query("lvm", "version"))
	if err != nil {
		return fmt.Errorf("lvm2 cannot be used: %w; remedy: use the driver's own image, it has it", err)
	}
	m := lvmVersion.FindStringSubmatch(string(res.Stdout))
	if m == nil {
		return fmt.Errorf("lvm version says %q", strings.TrimSpace(string(res.Stdout)))
	}
	var v devmapper.Version
	for i, dst := range []*int{&v.Major, &v.Minor, &v.Patch} {
		if *dst, err = strconv.Atoi(m[i+1]); err != nil {
			return fmt.Errorf("lvm version: %w", err)
		}
	}
	if !v.AtLeast(minLVM) {
		return fmt.Errorf("lvm2 is version %s, 2.03.12 is needed; remedy: use the driver's own image", strings.Join(m[1:], "."))
	}
	return nil
}

func (n Node) tool(ctx context.Context, name string, args ...string) error {
	return n.Programs.ask(name, func() error {
		if _, err := n.Run.Run(ctx, hostexec.Query(name, args...)); err != nil {
			return fmt.Errorf("%s cannot be used: %w; remedy: use the driver's own image, it has it", name, err)
		}
		return nil
	})
}
