//go:build kernel

package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/volume"
)

// lost is a node that stopped with unflushed writes, the newest of the volume.
type lost struct {
	*disk
	data []byte
}

// stopDirty stages a writeback volume, writes to it and stops the node.
func (m *machine) stopDirty(n *node, name string) *lost {
	t := m.t
	t.Helper()
	d := m.volume(n, name, 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	l := &lost{disk: d, data: pattern(8, 8*mib)}
	d.writeDirty(d.device(), pattern(7, 8*mib))
	write(t, d.device(), l.data, 0, true)
	s := stopping{m: m, n: n, name: nodeName, id: d.req.ID, sources: []volume.Source{d.req.Publication.Source}}
	s.cut()
	s.vanish()
	if l.onServer() == nil {
		t.Fatal("the storage server has everything: nothing is at risk")
	}
	return l
}

// back starts the node's plugin again.
func (l *lost) back() {
	l.m.t.Helper()
	n, err := openNode(l.m.t.Context(), l.n.dir, onOneSSD(), l.rec)
	mustPass(l.m.t, "node", err)
	l.n = n
}

// repair lets the node do what it does by itself, until it is at rest.
func (l *lost) repair() {
	l.m.t.Helper()
	for range 20 {
		mustPass(l.m.t, "repair", l.n.Repair(l.m.t.Context()))
		if kept, _ := l.n.Kept(); len(kept) > 0 || l.n.atRest(l.req.ID) {
			return
		}
	}
}

// askEvery is the pause between two questions to the storage server, each of which may
// take longer than a pass of the repair.
const askEvery = 15 * time.Second

// deleted says, as the controller does before a record goes, that the data of an
// ownership are not wanted any more, and has the node clear away what it has of it.
func (n *node) deleted(ctx context.Context, id volume.ID, f volume.Fence) error {
	var obj v1alpha1.CachePool
	if err := n.objects.Get(ctx, client.ObjectKey{Name: n.Node}, &obj); err != nil {
		return err
	}
	obj.Status.Deleted = append(obj.Status.Deleted, v1alpha1.DeletedVolume{VolumeName: string(id), VolumeUID: f.UID, Generation: &f.Generation})
	return errors.Join(n.objects.Status().Update(ctx, &obj), n.pool.Reconcile(ctx), n.Repair(ctx), n.pool.Reconcile(ctx))
}

// flushed: what was unflushed is on the storage server, and the cache is a retained cache.
func (l *lost) flushed() {
	l.m.t.Helper()
	l.repairAgain()
	if err := l.onServer(); err != nil {
		l.m.t.Errorf("the writes are not on the storage server: %v", err)
	}
	e, err := l.n.Journal.Load(string(l.req.ID))
	if err != nil || e.State != state.Retained || !e.Clean {
		l.m.t.Errorf("journal: %s, clean %t, %v", e.State, e.Clean, err)
	}
	l.wantKept(0)
	if got := l.cacheVolumes(); len(got) != 2 {
		l.m.t.Errorf("a clean cache is kept until its time is up, found %q", got)
	}
}

// wantKept looks at what the node says of caches that wait for somebody.
func (l *lost) wantKept(n int) {
	l.m.t.Helper()
	mustPass(l.m.t, "pool", l.n.pool.Reconcile(l.m.t.Context()))
	var obj v1alpha1.CachePool
	mustPass(l.m.t, "pool object", l.n.objects.Get(l.m.t.Context(), client.ObjectKey{Name: nodeName}, &obj))
	if len(obj.Status.Kept) != n || meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionWritesKept) != (n > 0) {
		l.m.t.Errorf("the pool says that it keeps %+v, conditions %+v, want %d", obj.Status.Kept, obj.Status.Conditions, n)
	}
	if n > 0 && len(l.cacheVolumes()) != 2 {
		l.m.t.Errorf("of a cache that is kept there is %q", l.cacheVolumes())
	}
}

// end removes the volume and everything of it.
func (l *lost) end() {
	l.m.t.Helper()
	ctx := l.m.t.Context()
	err := errors.Join(l.m.svc.UnexportVolume(ctx, string(l.req.ID), "", ""), l.m.svc.DeleteVolume(ctx, string(l.req.ID)))
	_ = os.Remove(filepath.Join(l.rec.dir, string(l.req.ID))) // which may be gone
	e, loadErr := l.n.Journal.Load(string(l.req.ID))
	if loadErr == nil {
		err = errors.Join(err, l.n.deleted(ctx, l.req.ID, e.Fence))
	}
	mustPass(l.m.t, "remove", err)
	if got := l.cacheVolumes(); len(got) > 0 {
		l.m.t.Errorf("%q outlive their volume", got)
	}
}

// forget removes the record, by hand.
func (l *lost) forget() {
	l.m.t.Helper()
	mustPass(l.m.t, "remove record", os.Remove(filepath.Join(l.rec.dir, string(l.req.ID))))
}

// anew is a record that was made anew: of another UID, with what it knows of the owner.
func (l *lost) anew(change func(*volume.Volume)) {
	l.m.t.Helper()
	spec := cached(volume.ModeWriteback, 32*mib)
	spec.CapacityBytes = l.size
	v := volume.Volume{ID: l.req.ID, Spec: spec, Fence: volume.Fence{UID: "anew"}, Filesystem: volume.FormatDone}
	change(&v)
	mustPass(l.m.t, "record", l.rec.store(l.req.ID, fileRecord{Volume: v}))
}

// cacheVolumes are the names of the logical volumes of the cache.
func (l *lost) cacheVolumes() (out []string) {
	l.m.t.Helper()
	lvs, err := l.n.LVM.LVs(l.m.t.Context(), pool.VolumeGroup(nodeName))
	mustPass(l.m.t, "logical volumes", err)
	for _, lv := range lvs {
		if strings.HasPrefix(lv.Name, string(l.req.ID)+".") {
			out = append(out, lv.Name)
		}
	}
	return out
}

// onServer reads the volume on the storage server.
func (l *lost) onServer() error {
	return compare("/dev/"+storageVG+"/nf-"+string(l.req.ID), l.data, 0)
}

// TestKernelShutOut: the storage server lets a node in no more while its volume is
// attached. While the volume may come back to it, the flush is waited for; once its
// ownership is over, a cache without unflushed writes holds nobody up.
func TestKernelShutOut(t *testing.T) {
	m := newMachine(t, portal, secondPortal)
	n := m.node(t.TempDir(), onOneSSD())
	for name, portals := range map[string][]string{"one": {portal}, "two": {portal, secondPortal}} {
		d := m.volume(n, "shutout-"+name, 64*mib, cached(volume.ModeWritethrough, 32*mib))
		d.req.Publication.Source.Portals = portals
		d.req.Block = true
		d.stage()
		write(t, d.device(), pattern(1, mib), 0, true)
		m.patience("3")
		mustPass(t, "shut out", m.svc.UnexportVolume(t.Context(), string(d.req.ID), "", ""))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		err := n.Unstage(ctx, d.req.ID, d.req.StagingPath)
		cancel()
		if err == nil {
			t.Errorf("%s: unstaged, and what the server has in memory is not flushed", name)
		}
		if _, found := d.cache(); !found {
			t.Fatalf("%s: the cache is gone", name)
		}
		mustPass(t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error {
			r.Volume.Published = false
			return nil
		}))
		// As repair does it, which has little time each time.
		soon(t, name+": the volume is brought down", func() bool {
			mustPass(t, "repair", n.Repair(t.Context()))
			_, found := d.cache()
			return !found
		})
		d.unstage()
		d.wantNoVolumes()
		d.remove()
	}
}

// TestKernelShutOutReader: the same, with somebody who reads the device when its paths are
// gone, and waits for them. A volume without a cache is not held up by that either.
func TestKernelShutOutReader(t *testing.T) {
	m := newMachine(t, portal, secondPortal)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough} {
		d := m.volume(n, "reader-"+string(mode), 64*mib, cached(mode, 32*mib))
		read := d.shutOutReader()
		mustPass(t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error {
			r.Volume.Published = false
			return nil
		}))
		soon(t, string(mode)+": the volume is brought down", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			return n.Unstage(ctx, d.req.ID, d.req.StagingPath) == nil
		})
		if err := <-read; err == nil {
			t.Error("the reader has read from paths that were gone")
		}
		d.wantNoVolumes()
		d.remove()
	}
}

// shutOutReader attaches a volume over two paths, shuts its node out, and has somebody read
// it who waits for them. What becomes of the read is received.
func (d *disk) shutOutReader() <-chan error {
	t := d.m.t
	t.Helper()
	d.req.Publication.Source.Portals = []string{portal, secondPortal}
	d.req.Block = true
	d.stage()
	d.m.patience("3")
	mustPass(t, "shut out", d.m.svc.UnexportVolume(t.Context(), string(d.req.ID), "", ""))
	dm := devmapper.New(hostexec.New())
	read := make(chan error, 1)
	go func() { // what is not in the cache, past the page cache
		_, err := hostexec.New().Run(context.Background(), hostexec.Command("dd", "if="+d.device(), "of=/dev/null", "bs=4096", "count=1", "skip=8192", "iflag=direct"))
		read <- err
	}()
	soon(t, "the reader waits for paths that are gone", func() bool {
		s, err := dm.MultipathStatus(t.Context(), layout.Device(d.req.ID, layout.Origin))
		return err == nil && !s.HasPath()
	})
	return read
}

// TestKernelShutOutReturns: the volume comes back to the node while the reader still waits
// for the paths of the earlier ownership. Nothing else would ever end that, and the devices
// of then would be in the way of every stage.
func TestKernelShutOutReturns(t *testing.T) {
	m := newMachine(t, portal, secondPortal)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range []volume.CacheMode{volume.ModeNone, volume.ModeWriteback} {
		d := m.volume(n, "returns-"+string(mode), 64*mib, cached(mode, 32*mib))
		read := d.shutOutReader()
		d.publish(3)
		d.req.Publication.Source.Portals = []string{portal, secondPortal}
		d.stage()
		if err := <-read; err == nil {
			t.Error("the reader has read from paths that were gone")
		}
		data := pattern(1, 4*mib)
		write(t, d.device(), data, 0, true)
		check(t, d.device(), data, 0)
		d.unstage()
		d.remove()
	}
}

// TestKernelRecordLost: that a record cannot be found proves nothing. What the storage
// server still admits is flushed; what it does not is kept, and shown, until it does or
// somebody says that it is not wanted (states.md, What ends unflushed writes).
func TestKernelRecordLost(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for name, story := range map[string]func(*lost){
		"flushed": func(l *lost) {
			l.forget()
			l.back()
			l.flushed()
			// The controller makes the record anew, and believes the storage server.
			l.anew(func(v *volume.Volume) { v.Fence.Generation, v.Fence.Node, v.PossiblyDirty = 1, nodeName, true })
			mustPass(t, "repair", l.n.Repair(t.Context()))
			l.wantDirty(false)
		},
		"recordfirst": func(l *lost) {
			l.anew(func(v *volume.Volume) { v.Fence.Generation, v.Fence.Node, v.PossiblyDirty = 1, nodeName, true })
			l.back()
			l.flushed()
			l.wantDirty(false)
		},
		"kept": func(l *lost) {
			mustPass(t, "unexport", m.svc.UnexportVolume(t.Context(), string(l.req.ID), "", ""))
			l.forget()
			l.back()
			l.repair()
			l.wantKept(1)
			if err := l.n.Unstage(t.Context(), l.req.ID, l.req.StagingPath); !errors.Is(err, volume.ErrUnavailable) {
				t.Errorf("unstage of writes that nobody can judge: %v, want ErrUnavailable", err)
			}
			_, err := m.svc.ExportVolume(t.Context(), string(l.req.ID), m.initiator, target.Account{Username: chapUser, Password: chapWord}, 1)
			mustPass(t, "export", err)
			l.flushed()
		},
		"discarded": func(l *lost) {
			mustPass(t, "unexport", m.svc.UnexportVolume(t.Context(), string(l.req.ID), "", ""))
			l.forget()
			l.back()
			l.repair()
			l.wantKept(1)
			mustPass(t, "discard", l.n.deleted(t.Context(), l.req.ID, l.req.Publication.Fence))
			l.wantKept(0)
			if got := l.cacheVolumes(); len(got) > 0 || !l.n.atRest(l.req.ID) {
				t.Errorf("%q are left of what was given up", got)
			}
			var obj v1alpha1.CachePool
			mustPass(t, "pool object", l.n.objects.Get(t.Context(), client.ObjectKey{Name: nodeName}, &obj))
			if len(obj.Status.Deleted) > 0 {
				t.Errorf("not acknowledged: %+v", obj.Status.Deleted)
			}
		},
		"owned-later": func(l *lost) {
			// Somebody had the volume since, and it came back here.
			c, err := m.svc.ExportVolume(t.Context(), string(l.req.ID), m.initiator, target.Account{Username: chapUser, Password: chapWord}, 3)
			mustPass(t, "export", err)
			l.forget()
			l.back()
			l.repair()
			l.wantKept(1) // repair knows the target of the entry alone, which is gone
			l.anew(func(v *volume.Volume) { v.Fence.Generation, v.Fence.Node, v.Published = 3, nodeName, true })
			l.req.Publication = volume.Publication{
				Fence:  volume.Fence{UID: "anew", Generation: 3, Node: nodeName},
				Source: volume.Source{ISCSI: volume.ISCSI{Portals: c.Portals, IQN: c.IQN, LUN: int(c.LUN)}},
			}
			l.stage()
			if err := compare(l.device(), l.data, 0); err == nil {
				t.Error("a cache that somebody wrote past was used")
			}
			l.unstage()
			l.wantKept(0)
		},
		"another-volume": func(l *lost) {
			// The volume of the name is another one, and its generation says nothing.
			ctx := t.Context()
			mustPass(t, "delete", errors.Join(
				m.svc.UnexportVolume(ctx, string(l.req.ID), "", ""), m.svc.DeleteVolume(ctx, string(l.req.ID))))
			_, err := m.svc.CreateVolume(ctx, string(l.req.ID), l.size, target.Thin)
			mustPass(t, "create", err)
			_, err = m.svc.ExportVolume(ctx, string(l.req.ID), m.initiator, target.Account{Username: chapUser, Password: chapWord}, 1)
			mustPass(t, "export", err)
			l.anew(func(v *volume.Volume) { v.Fence.Generation, v.Fence.Node, v.Published = 1, nodeName, true })
			l.back()
			l.repair()
			l.wantKept(1)
		},
		"stage": func(l *lost) {
			// The record was made anew and published before the node had flushed.
			l.anew(func(v *volume.Volume) {
				v.Fence.Generation, v.Fence.Node, v.Published, v.PossiblyDirty = 1, nodeName, true, true
			})
			l.back()
			l.req.Publication.Fence.UID = "anew"
			err := l.n.Stage(t.Context(), l.req)
			if !errors.Is(err, volume.ErrFenced) || !strings.Contains(err.Error(), "they are flushed first") {
				t.Fatalf("stage past unflushed writes: %v", err)
			}
			l.flushed()
			l.stage()
			check(t, l.device(), l.data, 0)
			l.unstage()
		},
		"stage-kept": func(l *lost) {
			mustPass(t, "unexport", m.svc.UnexportVolume(t.Context(), string(l.req.ID), "", ""))
			l.anew(func(v *volume.Volume) { v.Fence.Generation, v.Fence.Node, v.Published = 1, nodeName, true })
			l.back()
			l.req.Publication.Fence.UID = "anew"
			err := l.n.Stage(t.Context(), l.req)
			if !errors.Is(err, volume.ErrFenced) || !strings.Contains(err.Error(), "discard "+nodeName+" "+string(l.req.ID)) {
				t.Fatalf("stage past unflushed writes that nobody can judge: %v", err)
			}
			l.repair()
			l.wantKept(1)
		},
		"journal": func(l *lost) {
			// Only the SSD's tags tell of the writes.
			l.forget()
			mustPass(t, "journal", l.n.Journal.Delete(string(l.req.ID)))
			l.back()
			l.repair()
			mustPass(t, "repair", l.n.Repair(t.Context()))
			l.wantKept(1)
			mustPass(t, "discard", l.n.deleted(t.Context(), l.req.ID, l.req.Publication.Fence))
			l.wantKept(0)
			m.try("iscsiadm", "--mode", "node", "--targetname", l.req.Publication.Source.IQN, "--op", "delete")
		},
	} {
		if !every() && !slices.Contains([]string{"flushed", "another-volume", "stage", "journal"}, name) {
			continue // what decides the others, the model goes through in every order
		}
		t.Run(name, func(t *testing.T) {
			m.t = t
			l := m.stopDirty(n, "lost-"+name)
			story(l)
			l.end()
		})
	}
	m.t = t
}

// repairAgain lets the node do what it does by itself until it is at rest: the storage
// server may not have answered in time when it was asked first.
func (l *lost) repairAgain() {
	l.m.t.Helper()
	for range 60 {
		mustPass(l.m.t, "repair", l.n.Repair(l.m.t.Context()))
		if l.n.atRest(l.req.ID) {
			return
		}
		time.Sleep(askEvery / 15)
	}
}

// wantDirty looks at the mark of the record.
func (l *lost) wantDirty(want bool) {
	l.m.t.Helper()
	v, err := l.rec.Get(l.m.t.Context(), l.req.ID)
	if err != nil || v.PossiblyDirty != want {
		l.m.t.Errorf("the record says possibly dirty %t, %v", v.PossiblyDirty, err)
	}
}
