package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/freeze"
	"github.com/nearflash/nearflash/pkg/lvm/lvmtest"
	"github.com/nearflash/nearflash/pkg/peerexport"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/smart"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	mib = 1 << 20
	// lunBytes and cacheBytes are small: what is in them is no matter of the API server.
	lunBytes, cacheBytes = 16 * mib, 4 * mib
	metaBytes            = 16 * mib
)

// machine is a node in memory: its block layer, device mapper and LVM, mounts and sessions. It
// outlives its plugin, as its folder does.
type machine struct {
	dir    string
	blocks *blockdevtest.Machine
	kernel *devmappertest.Kernel
	lvm    *lvmtest.LVM
	load   load
	// chunks are what each cache holds, as far as the API server hears of it: a hot set.
	chunks atomic.Pointer[[]cachemap.Entry]

	mu       sync.Mutex
	mounts   map[string]mounted
	sessions map[string]transport.Origin
}

type mounted struct {
	device string
	close  func()
}

// newMachine returns a machine with one SSD, which has the volume group of the node's pool and
// room for some caches.
func newMachine(t testing.TB, node string, caches int) *machine {
	t.Helper()
	m := &machine{dir: memoryDir(t), blocks: blockdevtest.New(), mounts: map[string]mounted{}, sessions: map[string]transport.Origin{}}
	m.kernel, m.lvm = devmappertest.New(m.blocks), lvmtest.New(m.blocks)
	m.load.Client = m.kernel.Client(nil)
	m.chunks.Store(&[]cachemap.Entry{})
	if err := os.WriteFile(m.ssd(), nil, 0o600); err != nil { // the pool looks for the path
		t.Fatal(err)
	}
	if err := os.WriteFile(m.initiatorFile(), []byte("InitiatorName=iqn.1993-08.org.debian:01:"+node+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.blocks.Add("259:0", m.ssd(), blockdevtest.NewDisk(int64(caches+1)*(cacheBytes+metaBytes)))
	c := m.lvm.Client(nil)
	c.SetDevices([]string{m.ssd()})
	if err := c.CreateVG(t.Context(), pool.VolumeGroup(node), []string{m.ssd()}); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) ssd() string           { return filepath.Join(m.dir, "ssd") }
func (m *machine) initiatorFile() string { return filepath.Join(m.dir, "initiatorname.iscsi") }

// memoryDir is in memory where the system has such a folder: hundreds of journals on a disk
// would take most of the time.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "node")
	if errors.Is(err, fs.ErrNotExist) {
		return t.TempDir()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// host is the machine as a plugin of it sees it.
func (m *machine) host(cfg Config) host {
	return host{
		boot: "boot-1", sysfs: filepath.Join(m.dir, "sys"), dm: m.kernel.Client(nil), counters: &m.load, lvm: m.lvm.Client(nil), blocks: m.blocks.Blocks(nil),
		preflight: sound{preflight.Node{InitiatorNameFile: cfg.InitiatorNameFile}}, tools: sound{}, placeRule: func(bool) error { return nil },
		iscsi: func(string) transport.Transport { return luns{m} }, fs: filesystems{m}, freezer: thawed{},
		exporter: &peerexport.Exporter{Tree: lio.NewTree(lio.NewFS(filepath.Join(m.dir, "lio"))), Node: cfg.NodeName, NodeIP: cfg.NodeIP, Port: cfg.WarmStartPort, Prepare: func(context.Context) error { return nil }},
		maps:     devmappertest.Tools{Machine: m.blocks},
		readInUse: func(context.Context, string, string) (cachemap.Map, error) {
			return cachemap.Map{ChunkSectors: 64, CacheBlocks: 1 << 20, Entries: *m.chunks.Load()}, nil
		},
		health: func(context.Context, string) (smart.Health, error) { return smart.Health{}, nil },
	}
}

// sound is a host that lacks nothing.
type sound struct{ preflight.Node }

func (sound) LoadModules(context.Context)                {}
func (sound) Examine(context.Context) preflight.Findings { return preflight.Findings{} }
func (sound) Look(context.Context) (string, error)       { return "", nil }

// thawed has no filesystem frozen, and freezes none.
type thawed struct{}

func (thawed) Mounted(context.Context, string) (string, bool, error) { return "", false, nil }
func (thawed) Freeze(context.Context, freeze.Order) (freeze.Frozen, error) {
	return nil, errors.New("nothing is frozen here")
}
func (thawed) Left(context.Context) ([]volume.ID, error) { return nil, nil }
func (thawed) Recover(context.Context, volume.ID) error  { return nil }

// load is what the kernel counts for the sampler. A part of the volumes is busy: between two
// reports of them everything has changed.
type load struct {
	devmapper.Client
	// percent of the volumes are busy.
	percent atomic.Int64
	passes  atomic.Uint64
}

// StatusAll implements observe.Kernel.
func (l *load) StatusAll(ctx context.Context) (map[string]devmapper.CacheStatus, error) {
	all, err := l.Client.StatusAll(ctx)
	pass, names := l.passes.Add(1), slices.Sorted(maps.Keys(all))
	for i, name := range names {
		if int64(i)*100 >= l.percent.Load()*int64(len(names)) {
			break
		}
		st := all[name]
		st.CacheUsed = st.CacheTotal * (1 + pass%8) / 10
		st.ReadHits, st.ReadMisses = st.ReadHits+pass*10000, st.ReadMisses+pass*pass*10
		all[name] = st
	}
	return all, err
}

// luns are a node's sessions with the storage server: each volume is a blank disk.
type luns struct{ m *machine }

// Connect implements transport.Transport.
func (l luns) Connect(_ context.Context, t transport.Target, _ *volume.Credentials) (transport.Origin, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if o, found := l.m.sessions[t.ISCSI.IQN]; found {
		return o, nil
	}
	devno := fmt.Sprintf("8:%d", len(l.m.sessions)+1)
	o := transport.Origin{
		// The generation of the first owner: no volume moves here.
		Paths: []string{"/dev/" + devno}, DevNos: []string{devno}, Products: []string{volume.LUNProduct(1)},
		SizeBytes: lunBytes, LogicalBlock: 512, WWID: "wwid-" + t.ISCSI.IQN,
	}
	l.m.blocks.Add(devno, o.Paths[0], blockdevtest.NewDisk(lunBytes))
	l.m.sessions[t.ISCSI.IQN] = o
	return o, nil
}

// Disconnect implements transport.Transport. Nothing is detached here.
func (luns) Disconnect(context.Context, transport.Target) error { return nil }

// Lookup implements transport.Transport.
func (l luns) Lookup(_ context.Context, t transport.Target) (transport.Origin, bool, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	o, found := l.m.sessions[t.ISCSI.IQN]
	return o, found, nil
}

// Rescan implements transport.Transport.
func (luns) Rescan(context.Context, transport.Target, *volume.Credentials) error { return nil }

// Marks implements transport.Transport.
func (l luns) Marks(ctx context.Context, t transport.Target) (transport.Marks, error) {
	o, found, err := l.Lookup(ctx, t)
	if !found {
		return nil, err
	}
	return transport.Marks{t.ISCSI.Portals[0]: {Path: o.DevNos[0]}}, nil
}

// filesystems are what a node mounts. A filesystem is a word at the head of its device.
type filesystems struct{ m *machine }

const magic = "filesystem"

// Probe implements attach.Filesystem.
func (f filesystems) Probe(_ context.Context, device string) (volume.Content, error) {
	d, err := f.m.blocks.Device(device)
	if err != nil {
		return volume.Content{}, err
	}
	head := make([]byte, len(magic))
	if _, err := d.ReadAt(head, 0); err != nil {
		return volume.Content{}, err
	}
	if string(head) == magic {
		return volume.Content{Type: "ext4"}, nil
	}
	return volume.Content{Blank: bytes.Count(head, []byte{0}) == len(head)}, nil
}

// Format implements attach.Filesystem.
func (f filesystems) Format(_ context.Context, device, _ string) error {
	d, err := f.m.blocks.Device(device)
	if err == nil {
		_, err = d.WriteAt([]byte(magic), 0)
	}
	return err
}

// Mount implements attach.Filesystem.
func (f filesystems) Mount(ctx context.Context, device, target, _ string, _ []string) error {
	return f.BindBlock(ctx, device, target, nil)
}

// BindMount implements attach.Filesystem.
func (filesystems) BindMount(context.Context, string, string, []string) error { return unix.ENOTSUP }

// BindBlock implements attach.Filesystem.
func (f filesystems) BindBlock(_ context.Context, device, target string, _ []string) error {
	_, closed, err := f.m.blocks.Open(device)
	if err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.mounts[target] = mounted{device, closed}
	return nil
}

// Unmount implements attach.Filesystem. There are no paths.
func (f filesystems) Unmount(ctx context.Context, target string) error { return f.Release(ctx, target) }

// Release implements attach.Filesystem.
func (f filesystems) Release(_ context.Context, target string) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if m, found := f.m.mounts[target]; found {
		m.close()
		delete(f.m.mounts, target)
	}
	return nil
}

// Source implements attach.Filesystem.
func (f filesystems) Source(_ context.Context, target string) (string, bool, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	m, found := f.m.mounts[target]
	return f.m.blocks.DevNo(m.device), found, nil
}

// Grow implements attach.Filesystem.
func (filesystems) Grow(context.Context, string, string) error { return nil }

// Stats implements attach.Filesystem.
func (filesystems) Stats(context.Context, string) (volume.Stats, error) { return volume.Stats{}, nil }
