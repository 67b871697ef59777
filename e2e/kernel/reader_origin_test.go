//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// readOnlyLUN is a volume that the kernel's target exports to two initiators, and lets neither of
// them write.
type readOnlyLUN struct {
	m      *machine
	tree   *lio.Tree
	target lio.Target
	// Origin is the logical volume below, for who writes while nobody reads.
	origin string
}

const readersLUN = "readers"

// newReadOnlyLUN makes the volume; export shows it.
func (m *machine) newReadOnlyLUN(size int64) *readOnlyLUN {
	m.t.Helper()
	m.must("lvcreate", "--yes", "--type", "thin", "--thinpool", "pool", "--virtualsize", fmt.Sprintf("%db", size), "--name", readersLUN, storageVG)
	l := &readOnlyLUN{m: m, tree: lio.NewTree(lio.NewFS(lio.DefaultRoot)), origin: "/dev/" + storageVG + "/" + readersLUN}
	l.target = lio.Target{
		IQN: "iqn.2026-11.com.example:" + readersLUN, Backstore: readersLUN, Device: l.origin, Serial: fmt.Sprintf("%032x", 0x4ead), ReadOnly: true,
		Portals: []string{portalA, portalB},
	}
	for _, who := range []string{initiatorA, initiatorB} {
		l.target.ACLs = append(l.target.ACLs, lio.ACL{Initiator: who, Username: chapUser, Password: chapWord})
	}
	m.t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(l.unexport(ctx), run(ctx, m, "lvremove", "--yes", storageVG+"/"+readersLUN)); err != nil {
			m.t.Error(err)
		}
	})
	return l
}

func run(ctx context.Context, m *machine, name string, args ...string) error {
	_, err := m.run.Run(ctx, hostexec.Command(name, args...))
	return err
}

func (l *readOnlyLUN) unexport(ctx context.Context) error {
	return l.tree.Remove(ctx, l.target.IQN, l.target.Backstore)
}

func (l *readOnlyLUN) export() {
	l.m.t.Helper()
	mustPass(l.m.t, "export", l.tree.Ensure(l.m.t.Context(), l.target))
}

// login is a session of one initiator, by a portal of its own.
func (l *readOnlyLUN) login(initiator, portal string) transport.Origin {
	t := l.m.t
	t.Helper()
	i := l.m.initiatorAs(initiator)
	at := transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{portal}, IQN: l.target.IQN, LUN: lio.LUN}}}
	o, err := i.Connect(t.Context(), at, &volume.Credentials{Username: chapUser, Password: chapWord})
	mustPass(t, "log in as "+initiator, err)
	t.Cleanup(func() {
		if err := i.Disconnect(context.Background(), at); err != nil {
			t.Error(err)
		}
	})
	return o
}

// reader is what one node has over a session: an origin, and a cache above it.
type reader struct {
	l          *readOnlyLUN
	dm         devmapper.Client
	name       string
	origin     devmapper.Info
	top        devmapper.Info
	sectors    uint64
	meta, data string
	metaPath   string
}

func (l *readOnlyLUN) reader(name string, o transport.Origin) *reader {
	t := l.m.t
	t.Helper()
	r := &reader{l: l, dm: devmapper.New(l.m.run), name: "nf-" + name, sectors: uint64(o.SizeBytes) / devmapper.SectorSize, metaPath: "/dev/" + storageVG + "/" + name + "-meta"}
	for _, lv := range []string{"meta", "data"} {
		l.m.must("lvcreate", "--yes", "--type", "thin", "--thinpool", "pool", "--virtualsize", "32m", "--name", name+"-"+lv, storageVG)
		t.Cleanup(func() { l.m.must("lvremove", "--yes", storageVG+"/"+name+"-"+lv) })
	}
	r.meta, r.data = l.m.devno(r.metaPath), l.m.devno("/dev/"+storageVG+"/"+name+"-data")
	var err error
	r.origin, err = r.dm.CreateReadOnly(t.Context(), r.name+".origin", "", devmapper.LinearTable(r.sectors, o.DevNos[0]))
	mustPass(t, "origin of "+name, err)
	t.Cleanup(func() {
		if err := errors.Join(r.dm.Remove(context.Background(), r.name), r.dm.Remove(context.Background(), r.name+".origin")); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (m *machine) devno(path string) string {
	m.t.Helper()
	no, err := blockdev.DevNo(path)
	mustPass(m.t, "number of "+path, err)
	return no
}

// table is that of a cache over an origin.
func (r *reader) table(origin string) devmapper.Table {
	return devmapper.Table{{Length: r.sectors, Target: devmapper.CacheTarget{
		Metadata: r.meta, Data: r.data, Origin: origin, ChunkSectors: 64, Mode: devmapper.Writethrough, Policy: devmapper.PolicySMQ,
		MigrationThreshold: devmapper.MigrationThreshold(64),
	}}}
}

// TestKernelReadOnlyOrigin is what a cache of a reader rests on. dm-cache opens its origin for
// writing (parse_origin_dev in drivers/md/dm-cache-target.c), which a disk that the server lets
// nobody write refuses (sd_open in drivers/scsi/sd.c). Over a read-only device of the device
// mapper it works, since the kernel opens that by its number, and asks nobody whether it may be
// written; nothing that would write gets past it.
func TestKernelReadOnlyOrigin(t *testing.T) {
	m := newMachine(t)
	const size = 64 * mib
	l := m.newReadOnlyLUN(size)
	data := pattern(1, size)
	write(t, l.origin, data, 0, true)
	l.export()
	oa, ob := l.login(initiatorA, portalA), l.login(initiatorB, portalB)
	a, b := l.reader("a", oa), l.reader("b", ob)
	l.wantWriteProtected(oa, a)
	// One that could be written itself: nothing of what is written is in the cache after that.
	a.create(a.dm.Create)
	a.wantNoWrite("a writable cache over a read-only origin")
	check(t, a.top.DevPath(), data, 0)
	a.begin()
	for _, r := range []*reader{a, b} {
		r.create(r.dm.CreateReadOnly)
		r.wantNoWrite("a reader's cache")
		r.warm(data[:16*mib])
	}
	for _, r := range []*reader{a, b} {
		before := r.status()
		mustPass(t, "load", r.dm.LoadReadOnly(t.Context(), r.name, r.table(r.origin.DevNo())))
		mustPass(t, "resume", r.dm.Resume(t.Context(), r.name))
		if now := r.status(); now.CacheUsed < before.CacheUsed || now.Dirty > 0 {
			t.Errorf("%s after a change of its table: %+v, before: %+v", r.name, now, before)
		}
		r.wantNoWrite("a reader's cache after a change of its table")
		check(t, r.top.DevPath(), data, 0)
	}
	mustPass(t, "end", a.dm.Remove(t.Context(), a.name))
	a.create(a.dm.CreateReadOnly) // its map was committed
	if st := a.status(); st.CacheUsed == 0 || st.Dirty > 0 {
		t.Errorf("a cache that was kept begins with %+v", st)
	}
	check(t, a.top.DevPath(), data, 0)
	check(t, l.origin, data, 0)
}

// wantWriteProtected: neither a cache nor a linear device that may be written is possible over the
// disk itself.
func (l *readOnlyLUN) wantWriteProtected(o transport.Origin, r *reader) {
	t := l.m.t
	t.Helper()
	if ro, err := os.ReadFile(filepath.Join("/sys/dev/block", o.DevNos[0], "ro")); err != nil || strings.TrimSpace(string(ro)) != "1" {
		t.Errorf("the disk of a reader says ro %q, %v", ro, err)
	}
	if _, err := os.OpenFile(o.Paths[0], os.O_WRONLY, 0); !errors.Is(err, unix.EROFS) {
		t.Errorf("the disk of a reader is opened for writing: %v", err)
	}
	for what, table := range map[string]devmapper.Table{"cache": r.table(o.DevNos[0]), "linear": devmapper.LinearTable(r.sectors, o.DevNos[0])} {
		if _, err := r.dm.Create(t.Context(), r.name, "", table); err == nil {
			t.Errorf("a %s device over a disk that cannot be written", what)
		}
	}
}

// create makes the cache.
func (r *reader) create(create func(ctx context.Context, name, uuid string, t devmapper.Table) (devmapper.Info, error)) {
	t := r.l.m.t
	t.Helper()
	var err error
	r.top, err = create(t.Context(), r.name, "", r.table(r.origin.DevNo()))
	mustPass(t, "cache "+r.name, err)
}

// begin ends the cache, and has the next one be empty.
func (r *reader) begin() {
	t := r.l.m.t
	t.Helper()
	mustPass(t, "end of "+r.name, r.dm.Remove(t.Context(), r.name))
	r.l.m.must("dd", "if=/dev/zero", "of="+r.metaPath, "bs=4096", "count=1", "oflag=direct")
}

func (r *reader) status() devmapper.CacheStatus {
	t := r.l.m.t
	t.Helper()
	st, found, err := r.dm.Status(t.Context(), r.name)
	if err != nil || !found {
		t.Fatalf("status of %s: %v, %v", r.name, found, err)
	}
	return st
}

// warm reads what the origin has until the cache answers: the policy takes its time.
func (r *reader) warm(data []byte) {
	t := r.l.m.t
	t.Helper()
	for range 200 {
		check(t, r.top.DevPath(), data, 0)
		switch st := r.status(); {
		case st.Dirty > 0:
			t.Fatalf("%s is dirty: %+v", r.name, st)
		case st.ReadHits > 0 && st.Promotions > 0:
			return
		}
	}
	t.Fatalf("%s caches nothing: %+v", r.name, r.status())
}

// wantNoWrite writes to the cache's device, in vain.
func (r *reader) wantNoWrite(what string) {
	t := r.l.m.t
	t.Helper()
	f, err := os.OpenFile(r.top.DevPath(), os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt(aligned(4096), 0); err == nil {
		err = f.Sync()
		t.Errorf("%s takes a write (sync: %v)", what, err)
	}
}
