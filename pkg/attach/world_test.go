package attach_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/lvm/lvmtest"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/memapi"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	mib      = 1 << 20
	volumeID = volume.ID("pvc-1")
	vgName   = "nearflash"
	ssdPath  = "/dev/nvme0n1"
	staging  = "/staging"
	lunBytes = 64 * mib
)

// world is a cluster with one volume and its controller, a storage server with the LUN,
// and nodes over a block layer in memory.
type world struct {
	t testing.TB
	// ctx has a logger that says nothing: thousands of lives say too much.
	ctx     context.Context
	api     client.WithWatch
	storage *backendtest.Server
	control *provision.Service
	lun     *blockdevtest.Disk
	// disks are all that there are.
	disks []*blockdevtest.Disk
	// written is what the pod wrote last to each place, once that was acknowledged.
	written map[int64]uint64
	// warm tells that caches follow the volume; peers are what that takes. Without churn, the
	// pod reads nothing that would take another one's chunk.
	warm, churn bool
	// checked has the nodes' pools ask for checksums.
	checked bool
	// method is how caches are filled; empty is by clone.
	method volume.MoveMethod
	peers
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s)); err != nil {
		panic(err)
	}
	return s
}()

var account = volume.Credentials{Username: "user", Password: "password-of-user"}

func newWorld(t testing.TB, mode volume.CacheMode) *world { return newWorldOf(t, mode, 32<<10) }

// newWorldOf is newWorld with chunks of some size.
func newWorldOf(t testing.TB, mode volume.CacheMode, chunk int64) *world {
	w := &world{t: t, ctx: logr.NewContext(t.Context(), logr.Discard()), storage: backendtest.New(1 << 30), written: map[int64]uint64{}}
	w.lun = w.disk(lunBytes)
	w.api = interceptor.NewClient(
		memapi.New(scheme, &v1alpha1.CachedVolume{}, &v1alpha1.CachePool{}),
		interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			obj.SetUID(uuid.NewUUID())
			return c.Create(ctx, obj, opts...)
		}})
	w.control = provision.New(provision.Config{Client: w.api, Servers: map[string]provision.Server{"": {Backend: w.storage}}, Events: &events.FakeRecorder{}, FreezePoll: time.Millisecond})
	_, err := w.control.Create(w.ctx, volumeID, volume.Spec{
		CapacityBytes: lunBytes, Mode: mode, Cache: volume.Size{Bytes: 4 * mib}, ChunkBytes: chunk, AcceptNodeLoss: mode == volume.ModeWriteback,
	})
	w.must("create the volume", err)
	return w
}

// disk makes a disk.
func (w *world) disk(size int64) *blockdevtest.Disk {
	d := blockdevtest.NewDisk(size)
	w.disks = append(w.disks, d)
	return d
}

// forget lets the content of all disks go: processes that were ended keep the world, for they never
// return.
func (w *world) forget() {
	for _, d := range w.disks {
		d.Forget()
	}
}

func (w *world) record() *v1alpha1.CachedVolume {
	w.t.Helper()
	obj, err := records.Load(w.ctx, w.api, volumeID)
	w.must("read the record", err)
	return obj
}

func (w *world) must(what string, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// publish gives the volume to a node.
func (w *world) publish(node string) volume.StageRequest {
	w.t.Helper()
	p, err := w.control.Publish(w.ctx, volumeID, node, nil, &account)
	w.must("publish", err)
	return volume.StageRequest{ID: volumeID, StagingPath: staging, FSType: "ext4", Publication: p, Credentials: &account}
}

// unpublish takes it back, and ends the session that the node may have.
func (w *world) unpublish(node string) {
	w.t.Helper()
	w.must("unpublish", w.control.Unpublish(w.ctx, volumeID, node))
}

// admission is that of a node now.
func (w *world) admission(node string) (e backend.Export, admitted bool) {
	v, _ := w.storage.Volume(volumeID)
	for _, e := range v.Access.Exports {
		if e.Initiator == iqnOf(node) {
			return e, true
		}
	}
	return backend.Export{}, false
}

func iqnOf(node string) string { return "iqn.x:" + node }

// host is a node: what its power loss takes, and what it leaves.
type host struct {
	w       *world
	name    string
	machine *blockdevtest.Machine
	kernel  *devmappertest.Kernel
	lvm     *lvmtest.LVM
	// dir has a folder for each process, with the journal and the maps.
	dir          string
	boots, begun int
	// mounts are by path, sessions by the name of their target.
	mu       sync.Mutex
	mounts   map[string]mount
	sessions map[string]session
	luns     int
	// sends is what the node streams; meanwhile is called once, when it has got the first chunk
	// of another node's stream.
	sends     sending
	meanwhile func()
	// lateMaps: maps in use are read by no one in time; lateLevels: nor are those of levels written.
	lateMaps, lateLevels atomic.Bool
	// asked counts how often this node has asked for another one's map.
	asked atomic.Int32
	// silent is told when this node asks for another one's map, which it does not get; nil if it
	// gets them.
	silent chan struct{}
	// listed is closed when this node has got another one's map, which its stage waits for; nil if
	// it does not.
	listed chan struct{}
	// got counts the chunks that other nodes have sent.
	got atomic.Int64
	// ice is what is frozen.
	ice ice
	// ssds are the node's, and pool what its next process knows of them.
	ssds []string
	pool attach.PoolView
	// mirrors is nil where nothing is mirrored.
	mirrors ssd.Copies
	*plugin
}

type mount struct {
	device string
	close  func()
}

func (w *world) host(name string) *host {
	w.t.Helper()
	h := &host{w: w, name: name, machine: blockdevtest.New(), dir: tempDir(w.t), mounts: map[string]mount{}, sessions: map[string]session{}}
	h.kernel, h.lvm = devmappertest.New(h.machine), lvmtest.New(h.machine)
	h.lvm.VolatileTags()
	h.ssds, h.pool = []string{ssdPath}, poolOf{checked: w.checked}
	h.machine.Add("259:0", ssdPath, w.disk(64*mib))
	w.must("volume group", h.lvmClient(nil).CreateVG(w.ctx, vgName, []string{ssdPath}))
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.must("CachePool", w.api.Create(w.ctx, pool))
	pool.Status.InitiatorIQN = iqnOf(name)
	w.must("CachePool", w.api.Status().Update(w.ctx, pool))
	ready := corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
	w.must("Node", w.api.Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: ready}))
	w.join(h)
	h.start()
	return h
}

// lvmClient is LVM on the node's SSDs.
func (h *host) lvmClient(step blockdevtest.Step) lvm.Client {
	c := h.lvm.Client(step)
	c.SetDevices(h.ssds)
	return c
}

// pair gives the node a second SSD, of which its pool makes no mirror by itself.
func (h *host) pair() {
	h.w.t.Helper()
	h.secondSSD()
	h.pool = poolOf{second: otherSSD, checked: h.w.checked}
	h.start()
}

// powerLoss leaves what is on disks.
func (h *host) powerLoss() {
	h.gate.end()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lvm.Tear()
	h.kernel.PowerLoss()
	h.lvm.PowerLoss()
	for _, s := range h.sessions {
		h.machine.Remove(s.devno)
	}
	h.w.lose(h)
	clear(h.mounts)
	h.ice.melt()
	clear(h.sessions)
	h.boots++
}

// plugin is a process of the node plugin.
type plugin struct {
	*attach.Attacher
	gate   *gate
	blocks *blockdevtest.Blocks
}

// files is the folder of the process.
func (h *host) files() string { return filepath.Join(h.dir, fmt.Sprint(h.begun)) }

// inherit gives the next process a copy of the files of the one before it, which would write
// on until it comes to its next step.
func (h *host) inherit() error {
	from := h.files()
	h.begun++
	if err := os.MkdirAll(filepath.Join(h.files(), "journal"), 0o700); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreGone(err)
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return ignoreGone(err)
		}
		return os.WriteFile(filepath.Join(h.files(), rel), b, 0o600)
	})
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// start begins a process in place of the one before it, which ends where that would have.
func (h *host) start() {
	h.w.t.Helper()
	left, last := 0, ""
	if h.plugin != nil {
		h.gate.end()
		h.blocks.Exit()
		if left = h.gate.left; h.gate.at == replaced {
			last = h.gate.last
		}
	}
	h.w.must("the files of the process before", h.inherit())
	g := &gate{left: left, last: last, dead: make(chan struct{}), journal: filepath.Join(h.files(), "journal", string(volumeID)+".json")}
	entries, err := journal.Open[state.Entry](filepath.Join(h.files(), "journal"))
	h.w.must("journal", err)
	recorder := &events.FakeRecorder{} // nobody reads it: with room for some it would wait at the next one
	blocks := h.machine.Blocks(g.step)
	config := attach.Config{Node: h.name, Boot: fmt.Sprint("boot-", h.boots), PollInterval: time.Microsecond, Sysfs: h.dir}
	deps := attach.Deps{
		DM: h.kernel.Client(g.step), LVM: integrity.New(h.lvmClient(g.step), h.kernel.Client(g.step), blocks), Blocks: blocks,
		Owned: owned{h}, Transport: initiator{h, g.step}, FS: filesystems{h, g.step}, Journal: entries, Pool: h.pool, Copies: h.mirrors, Locks: &keylock.Set{},
		Records:      records.New(stepping(h.w.api, g.step), recorder, time.Now),
		CacheProblem: func(context.Context) string { return "" }, Freezer: freezer{h, g.step},
	}
	if h.w.warm {
		config.Warm.Dir = h.files()
		deps.Moves, deps.Exporter, deps.Tools = moves{h, g.step}, exporter{h, g.step}, levelTools{devmappertest.Tools{Machine: h.machine, Step: g.step}, h}
		deps.Now = h.w.now
		config.Warm.Method, config.Warm.PullPause = h.w.method, time.Millisecond
		if h.lateLevels.Load() {
			config.Warm.MapsTimeout = 50 * time.Millisecond
		}
		if h.w.method == volume.MethodStream {
			config.Warm.Settle = time.Millisecond // there is no clock that its copy would wait by
		}
		deps.Requested = requested{h}
		deps.Stream, deps.ReadInUse = puller{h, g}, h.maps(readInUse(devmappertest.Tools{Machine: h.machine, Step: g.step, InUse: true}))
	}
	h.plugin = &plugin{gate: g, blocks: blocks, Attacher: attach.New(config, deps)}
	h.Lessor().Streams = streams{h}
}

// stepping is the API server as a process sees it.
func stepping(api client.WithWatch, step blockdevtest.Step) client.Client {
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if err := step.Query(ctx, "the record"); err != nil {
				return err
			}
			return c.Get(ctx, key, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
			return step.Change(ctx, "a change of the record", func() error { return c.Patch(ctx, obj, p, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return step.Change(ctx, "a change of the record's status", func() error { return c.SubResource(sub).Patch(ctx, obj, p, opts...) })
		},
	})
}

// run calls the plugin, and tells where it ended instead of an answer, if it did.
func (p *plugin) run(do func() error) (ended string, err error) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	hung := time.NewTimer(callHangs)
	defer hung.Stop()
	select {
	case err := <-done:
		return "", err
	case <-p.gate.dead:
		p.gate.settle()
		return p.gate.at, nil
	case <-hung.C:
		panic("a call of the plugin hangs:\n\n" + waiting())
	}
}

// callHangs is when a call of the plugin, which takes milliseconds, does not end any more, also on a
// machine that has much to do.
const callHangs = 5 * time.Minute

// killAfter has the plugin end at its n-th step from now; 0 is never.
func (p *plugin) killAfter(n int) {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	p.gate.left = n
}

// killAt has the plugin end at a step that is named; "" is none.
func (p *plugin) killAt(step string) {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	p.gate.last = step
}

// owned are the records of a node's own volumes.
type owned struct{ h *host }

// List implements attach.OwnedRecords.
func (o owned) List(ctx context.Context) ([]volume.Volume, error) {
	obj, err := records.Load(ctx, o.h.w.api, volumeID)
	if err != nil || obj.Status.OwnerNode != o.h.name {
		return nil, err
	}
	v, err := records.Volume(obj)
	return []volume.Volume{v}, err
}

// Changed implements attach.OwnedRecords.
func (owned) Changed() <-chan struct{} { return nil }

// poolOf is a pool of one SSD, or of two, whose caches have checksums or not.
type poolOf struct {
	second  string
	checked bool
}

func (poolOf) Deletions(context.Context) ([]volume.Deletion, error) { return nil, nil }

func (p poolOf) View() pool.View {
	v := pool.View{Ready: true, Integrity: p.checked, VG: vgName, Devices: []string{ssdPath}, ExtentBytes: 4 * mib, LogicalBlock: 512, Copies: 1, Stripes: 1, CapacityBytes: 60 * mib}
	if p.second != "" {
		v.Devices, v.Stripes, v.CapacityBytes = append(v.Devices, p.second), 2, 2*v.CapacityBytes
	}
	return v
}

// places are where the pod may write.
const places = 16

func offset(place int64) int64 { return (place + 1) * mib }

// podDevice is what the pod has mounted.
func (h *host) podDevice() blockdevtest.Device {
	h.w.t.Helper()
	h.mu.Lock()
	m := h.mounts[staging]
	h.mu.Unlock()
	d, err := h.machine.Device(m.device)
	h.w.must("the pod's device", err)
	return d
}

// podWrites writes a new value to some places of the mounted volume.
func (h *host) podWrites(value uint64, at ...int64) {
	h.w.t.Helper()
	d := h.podDevice()
	for _, place := range at {
		_, err := d.WriteAt(binary.LittleEndian.AppendUint64(nil, value), offset(place))
		h.w.must("the pod writes", err)
	}
	h.w.must("the pod syncs", d.Flush())
	for _, place := range at {
		h.w.written[place] = value
	}
}

// podReads compares everything with what was acknowledged.
func (h *host) podReads() {
	h.w.t.Helper()
	h.w.compare("the pod", h.podDevice())
}

func (w *world) compare(who string, d blockdevtest.Device) {
	w.t.Helper()
	w.must(who+" reads", w.differs(d))
}

var errDiffers = errors.New("not what was acknowledged")

// differs compares what a device has with what was acknowledged.
func (w *world) differs(d blockdevtest.Device) error {
	b := make([]byte, 8)
	for place := range int64(places) {
		if _, written := w.written[place]; w.warm && !w.churn && !written {
			continue
		}
		if _, err := d.ReadAt(b, offset(place)); err != nil {
			return err
		}
		if got := binary.LittleEndian.Uint64(b); got != w.written[place] {
			return fmt.Errorf("%w: %d at place %d, want %d", errDiffers, got, place, w.written[place])
		}
	}
	return nil
}
