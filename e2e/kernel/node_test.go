//go:build kernel

package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/freeze"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/ioerrors"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/mount"
	"github.com/nearflash/nearflash/pkg/peerexport"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

// node is a node plugin without its sockets, over the real kernel.
type node struct {
	*attach.Attacher
	pool *pool.Manager
	dir  string
	// rec are the records it was opened with, whatever the attacher wraps them in.
	rec volume.Records
	// objects has the node's CachePool.
	objects client.Client
	streams *streamServer
	// raw is LVM without what lies over its volumes.
	raw lvm.Client
}

// scheme knows the types of nearflash.
func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		panic(err)
	}
	return s
}

// api is an API server in memory; the records that the fence rests on are
// fileRecords, which a killed process shares with its successor.
func api() client.Client {
	return fake.NewClientBuilder().WithScheme(scheme()).WithStatusSubresource(&v1alpha1.CachePool{}, &v1alpha1.CachedVolume{}).Build()
}

// openNode starts a node plugin on the state in dir.
func openNode(ctx context.Context, dir string, spec v1alpha1.CachePoolSpec, rec volume.Records) (*node, error) {
	return openNodeAs(ctx, nodeName, dir, spec, rec, nil)
}

// openNodeAs starts a plugin for one of several nodes that share this kernel.
func openNodeAs(ctx context.Context, name, dir string, spec v1alpha1.CachePoolSpec, rec volume.Records, moves volume.Moves) (*node, error) {
	owned, _ := rec.(attach.OwnedRecords)
	boot, err := bootOf(dir)
	if err != nil {
		return nil, err
	}
	entries, err := journal.Open[state.Entry](filepath.Join(dir, "journal"))
	if err != nil {
		return nil, err
	}
	run, err := hostexec.NewApart(filepath.Join(dir, "commands"))
	if err != nil {
		return nil, err
	}
	raw := lvm.New(run, filepath.Join(dir, "devices"))
	lv := integrity.New(raw, devmapper.New(run), blockdev.Host{})
	n := &node{dir: dir, raw: raw, rec: rec, objects: api()}
	other := csi.Config{Kubelet: filepath.Join(dir, kubeletDir)}
	if _, err := os.Stat(bootFile(dir)); err == nil {
		other.BootID = bootFile(dir)
	}
	// On an emulated machine maps take longer than a stage that asks no API server.
	warm := attach.WarmConfig{Dir: filepath.Join(dir, "fills"), Settle: time.Millisecond, MapsLeast: 30 * time.Second, MapsTimeout: time.Minute}
	if err := os.MkdirAll(warm.Dir, 0o700); err != nil {
		return nil, err
	}
	n.pool = pool.NewManager(pool.Config{Node: name, StateDir: dir, Default: spec, InitiatorIQN: "iqn.x", Preflight: func() string { return "" }},
		lv, n.objects, func() (int64, error) { return 0, nil })
	if err := n.pool.Reconcile(ctx); err != nil {
		return nil, err
	}
	if n.streams, err = newStreamServer(ctx, name, dir); err != nil {
		return nil, err
	}
	freezer, err := freeze.Open(run, filepath.Join(dir, "freezes"), boot)
	if err != nil {
		return nil, err
	}
	judge, err := scrub.Open(run, devmapper.New(run), filepath.Join(dir, "scrubs"), boot)
	if err != nil {
		return nil, err
	}
	n.Attacher = attach.New(attach.Config{Node: name, Boot: boot, Warm: warm, AskEvery: askEvery}, attach.Deps{
		DM: devmapper.New(run), LVM: lv, Transport: transport.Mux{ISCSI: iscsi.New(run, iscsi.Config{}), CSI: csi.New(other)}, IOErrors: ioerrors.New("/sys/kernel/tracing", "/sys"), FS: mount.New(run), Reserver: &reservation.Disks{},
		Journal: entries, Records: rec, Owned: owned, Requested: owned, Pool: n.pool, Copies: n.pool, Locks: &keylock.Set{},
		Moves: moves, Stream: n.streams.Client(n.streams.token), Tools: cachetools.Tools{Run: run},
		Exporter:     &peerexport.Exporter{Tree: lio.NewTree(lio.NewFS(lio.DefaultRoot)), Node: name, NodeIP: "127.0.0.1", Port: 3262},
		CacheProblem: func(context.Context) string { return "" }, Freezer: freezer, Judge: judge,
	})
	n.Lessor().Streams = n.streams
	n.pool.Serve(n.Attacher)
	return n, nil
}

// bootOf is the kernel's boot id as the node with its state in dir sees it: powerLoss
// makes it a new one.
func bootOf(dir string) (string, error) {
	b, err := os.ReadFile(bootFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		b, err = os.ReadFile("/proc/sys/kernel/random/boot_id")
	}
	return strings.TrimSpace(string(b)), err
}

// bootFile is there when the node with its state in dir has stopped once.
func bootFile(dir string) string { return filepath.Join(dir, "boot") }

func onOneSSD() v1alpha1.CachePoolSpec { return v1alpha1.CachePoolSpec{Devices: []string{ssdOne}} }

// node starts a node plugin in the test's own process.
func (m *machine) node(dir string, spec v1alpha1.CachePoolSpec) *node {
	m.t.Helper()
	n, err := openNode(m.t.Context(), dir, spec, fileRecords{filepath.Join(dir, "records")})
	if err != nil {
		m.t.Fatal(err)
	}
	if v := n.pool.View(); len(spec.Devices) > 0 && !v.Ready {
		m.t.Fatalf("the pool is not ready: %s", v.Problem)
	}
	m.t.Cleanup(func() { m.dropPool(spec) })
	return n
}

// dropPool removes what the pool holds and its volume group.
func (m *machine) dropPool(spec v1alpha1.CachePoolSpec) {
	if len(spec.Devices) == 0 {
		return
	}
	m.try("vgremove", "--yes", "--force", pool.VolumeGroup(nodeName))
	for _, d := range spec.Devices {
		m.try("pvremove", "--yes", d)
	}
}

// fileRecords is volume.Records in files, one for each volume.
type fileRecords struct{ dir string }

type fileRecord struct {
	Volume        volume.Volume
	RetainedCache *volume.RetainedCache
	Report        volume.CacheReport
	Reasons       []string
	Applied       volume.AppliedReport
	// Told are the pods that were told of writes that were abandoned, "" before there
	// was one.
	Told []string
	// Scrubs are the reports of scrubs.
	Scrubs []volume.ScrubReport
	// Torn are the unclean stops that were reported of a volume whose flushes were dropped.
	Torn []string
}

// hidden is a file in the folder of the records while nobody can reach them.
const hidden = ".hidden"

// hide makes the records unreachable for everybody, or reachable again.
func (r fileRecords) hide(now bool) error {
	if now {
		return os.WriteFile(filepath.Join(r.dir, hidden), nil, 0o600)
	}
	err := os.Remove(filepath.Join(r.dir, hidden))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (r fileRecords) load(id volume.ID) (fileRecord, error) {
	var rec fileRecord
	if _, err := os.Stat(filepath.Join(r.dir, hidden)); err == nil {
		return rec, fmt.Errorf("%w: the records are out of reach", volume.ErrUnavailable)
	}
	b, err := os.ReadFile(filepath.Join(r.dir, string(id)))
	if errors.Is(err, fs.ErrNotExist) {
		return rec, fmt.Errorf("%w: %s", volume.ErrNotFound, id)
	}
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	return rec, err
}

func (r fileRecords) update(id volume.ID, change func(*fileRecord) error) error {
	rec, err := r.load(id)
	if err != nil {
		return err
	}
	if err := change(&rec); err != nil {
		return err
	}
	return r.store(id, rec)
}

func (r fileRecords) store(id volume.ID, rec fileRecord) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	tmp := filepath.Join(r.dir, ".tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(r.dir, string(id)))
}

func (r fileRecords) Get(_ context.Context, id volume.ID) (volume.Volume, error) {
	rec, err := r.load(id)
	return rec.Volume, err
}

func (r fileRecords) MarkPossiblyDirty(_ context.Context, id volume.ID, f volume.Fence) error {
	return r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f || !rec.Volume.Published {
			return volume.ErrFenced
		}
		if rec.Volume.Hold != nil && !rec.Volume.PossiblyDirty {
			return volume.ErrBusy
		}
		rec.Volume.PossiblyDirty = true
		return nil
	})
}

func (r fileRecords) MarkClean(_ context.Context, id volume.ID, f volume.Fence) error {
	err := r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f {
			return volume.ErrFenced
		}
		rec.Volume.PossiblyDirty = false
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

func (r fileRecords) PendActivation(_ context.Context, id volume.ID, f volume.Fence, a volume.Activation) (bool, error) {
	held := true
	err := r.update(id, func(rec *fileRecord) error {
		if v := rec.Volume.For(f.Node); v.Fence != f || !v.Published {
			return volume.ErrFenced
		} else if held = !v.ReadOnly; held {
			rec.Volume.Pending = a
		}
		return nil
	})
	return held, err
}

func (r fileRecords) SetActivation(_ context.Context, id volume.ID, f volume.Fence, a volume.Activation) error {
	return r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f || rec.Volume.Identify(volume.Activation{ID: a.ID, Generation: f.Generation, Count: a.Count}) == volume.IdentityPast {
			return volume.ErrFenced
		}
		if a.ID == "" {
			return nil
		}
		rec.Volume.Activation = a
		if rec.Volume.Pending.ID == a.ID {
			rec.Volume.Pending = volume.Activation{}
		}
		return nil
	})
}

func (r fileRecords) SetFormatted(_ context.Context, id volume.ID, f volume.Fence, state volume.Formatted) error {
	return r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f || !rec.Volume.Published {
			return volume.ErrFenced
		}
		rec.Volume.Filesystem = state
		return nil
	})
}

func (r fileRecords) SetRetainedCache(_ context.Context, id volume.ID, _ string, res *volume.RetainedCache) error {
	return r.update(id, func(rec *fileRecord) error { rec.RetainedCache = res; return nil })
}

func (r fileRecords) Report(_ context.Context, id volume.ID, rep volume.CacheReport) error {
	return r.update(id, func(rec *fileRecord) error {
		rec.Report, rec.Reasons = rep, append(rec.Reasons, rep.Reason)
		return nil
	})
}

func (r fileRecords) ReportApplied(_ context.Context, id volume.ID, _ string, rep volume.AppliedReport) error {
	return r.update(id, func(rec *fileRecord) error { rec.Applied = rep; return nil })
}

func (r fileRecords) ReportAbandoned(_ context.Context, id volume.ID, f volume.Fence, pod *volume.Pod) error {
	return r.update(id, func(rec *fileRecord) error {
		switch {
		case rec.Volume.Fence != f:
			return volume.ErrFenced
		case !rec.Volume.Abandoned:
		case pod == nil:
			rec.Told = append(rec.Told, "")
		default:
			rec.Told, rec.Volume.Abandoned = append(rec.Told, pod.Name), false
		}
		return nil
	})
}

func (r fileRecords) ReportTorn(_ context.Context, id volume.ID, f volume.Fence, message string) error {
	return r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f {
			return volume.ErrFenced
		}
		rec.Torn = append(rec.Torn, message)
		return nil
	})
}

func (r fileRecords) ReportFlushed(_ context.Context, id volume.ID, f volume.Fence, request string) error {
	return r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f {
			return volume.ErrFenced
		}
		rec.Volume.FlushDone = request
		return nil
	})
}

func (r fileRecords) ReportScrub(_ context.Context, id volume.ID, f volume.Fence, rep volume.ScrubReport) error {
	return r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f {
			return volume.ErrFenced
		}
		if rec.Scrubs = append(rec.Scrubs, rep); rep.Done {
			rec.Volume.ScrubDone, rec.Volume.ScrubbedAt = rep.Request, time.Now()
		}
		return nil
	})
}

func (r fileRecords) ReportFreeze(_ context.Context, id volume.ID, f volume.Fence, rep volume.FreezeReport) error {
	return r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f {
			return volume.ErrFenced
		}
		rec.Volume.Freeze = rep
		return nil
	})
}

func (r fileRecords) ReportPreload(_ context.Context, id volume.ID, f volume.Fence, rep volume.PreloadReport) error {
	return r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f {
			return volume.ErrFenced
		}
		rec.Volume.Preloaded = rep
		return nil
	})
}

func (r fileRecords) TakeWarmSource(_ context.Context, id volume.ID, f volume.Fence) error {
	return r.update(id, func(rec *fileRecord) error {
		if rec.Volume.Fence != f {
			return volume.ErrFenced
		}
		rec.Volume.WarmSource = nil
		return nil
	})
}

// List implements attach.OwnedRecords.
func (r fileRecords) List(context.Context) ([]volume.Volume, error) {
	files, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []volume.Volume
	for _, f := range files {
		if f.Name() == ".tmp" || f.Name() == hidden {
			continue // being written; no record
		}
		rec, err := r.load(volume.ID(f.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, rec.Volume)
	}
	return out, nil
}

// Changed implements attach.OwnedRecords: nobody signals, the tests call Change.
func (r fileRecords) Changed() <-chan struct{} { return nil }
