package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/heat"
	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/attach/lease"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/freeze"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/ioerrors"
	"github.com/nearflash/nearflash/pkg/iosizes"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/mount"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/peerexport"
	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/preflight/hosttools"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/smart"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
)

// bootIDFile tells one run of the kernel from another.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// host is the machine that a plugin works on: its kernel, tools and devices. What is not in it
// is the API server, other nodes' plugins, and files of the plugin's own. Tests have machines in
// memory, many of them in one process.
type host struct {
	// boot is the kernel's boot id, sysfs where the kernel shows its devices.
	boot, sysfs string
	preflight   inspector
	tools       toolInspector
	// placeRule writes the rule of udev, or removes it.
	placeRule func(wanted bool) error
	dm        devmapper.Client
	// counters are what the sampler reads.
	counters observe.Kernel
	lvm      lvm.Client
	// blocks are the devices; nil is this machine's.
	blocks attach.Blocks
	// iscsi attaches LUNs in the name of an initiator.
	iscsi    func(initiator string) transport.Transport
	ioErrors attach.ErrorCounter
	ioSizes  heat.Sampler
	fs       attach.Filesystem
	reserver attach.Reserver
	exporter lease.Exporter
	freezer  attach.Freezer
	judge    scrub.Judge
	maps     attach.MetadataTools
	// readInUse reads the map of metadata that are in use; nil is by a copy of them.
	readInUse func(ctx context.Context, device, base string) (cachemap.Map, error)
	health    func(ctx context.Context, device string) (smart.Health, error)
}

// inspector says what a node brings; preflight.Node is one.
type inspector interface {
	LoadModules(ctx context.Context)
	Examine(ctx context.Context) preflight.Findings
	InitiatorName() (string, error)
}

// toolInspector says which of the host's tools do not leave volumes alone; hosttools.Host is one.
type toolInspector interface {
	Look(ctx context.Context) (note string, problems error)
}

// thisHost is the machine that this process runs on.
func thisHost(cfg Config) (host, error) {
	id, err := os.ReadFile(bootIDFile)
	if err != nil {
		return host{}, fmt.Errorf("boot id: %w", err)
	}
	boot := strings.TrimSpace(string(id))
	runner, err := hostexec.NewApart(filepath.Join(cfg.StateDir, "commands"))
	if err != nil {
		return host{}, err
	}
	freezer, err := freeze.Open(runner, filepath.Join(cfg.StateDir, "freezes"), boot)
	if err != nil {
		return host{}, err
	}
	dm := devmapper.New(runner)
	judge, err := scrub.Open(runner, dm, filepath.Join(cfg.StateDir, "scrubs"), boot)
	if err != nil {
		return host{}, err
	}
	judge.Outside = runner.Outside
	return host{
		boot: boot, sysfs: "/sys", dm: dm, counters: dm, lvm: integrity.New(lvm.New(runner, filepath.Join(cfg.StateDir, "devices")), dm, blockdev.Host{}),
		preflight: preflight.Node{
			Run: runner, DM: dm, Sysfs: "/sys", InitiatorNameFile: cfg.InitiatorNameFile, OwnISCSID: cfg.MakeInitiatorName,
			Programs: &preflight.Programs{}, Outside: runner.Outside, Without: cfg.WithoutTargets,
			OpenISCSI: cfg.openISCSI(), HostISCSI: &openiscsi.Host{Proc: "/proc"},
		},
		tools:     hosttools.Host{Run: runner, Proc: "/proc"},
		placeRule: func(wanted bool) error { return hosttools.PlaceRule(hosttools.RuleDir, wanted) },
		iscsi: func(initiator string) transport.Transport {
			return iscsi.New(runner, iscsi.Config{InitiatorName: initiator, Host: cfg.openISCSI()})
		},
		ioErrors: ioerrors.New("/sys/kernel/tracing", "/sys"), ioSizes: iosizes.New("/sys/kernel/tracing"), fs: mount.New(runner), reserver: &reservation.Disks{}, freezer: freezer, judge: judge,
		exporter: &peerexport.Exporter{
			Tree: lio.NewTree(lio.NewFS(lio.DefaultRoot)), Node: cfg.NodeName, NodeIP: cfg.NodeIP, Port: cfg.WarmStartPort, Prepare: lio.NewHost(runner).Prepare,
		},
		maps:   cachetools.Tools{Run: runner},
		health: func(ctx context.Context, device string) (smart.Health, error) { return smart.Read(ctx, runner, device) },
	}, nil
}
