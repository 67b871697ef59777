//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/volume"
)

// otherInitiator is what the controller knows the second node by. In one kernel it has
// the name of the first, so that nothing but the generation keeps the two apart.
const otherInitiator = "iqn.2026-11.io.nearflash.test:other"

// served is the guest's storage server as the controller sees it.
type served struct {
	backend.Backend // for what is not asked
	m               *machine
	who             string
}

func (s *served) Access(ctx context.Context, id volume.ID) (backend.Access, error) {
	v, err := s.m.svc.GetVolume(ctx, string(id))
	out := backend.Access{Generation: v.Generation, SizeBytes: v.SizeBytes}
	for _, e := range v.Exports {
		out.Exports = append(out.Exports, backend.Export{Initiator: s.who, Generation: e.Generation, LoggedIn: e.LoggedIn, Admission: e.Admission})
	}
	return out, err
}

func (s *served) Export(ctx context.Context, id volume.ID, g backend.Grant) (volume.Source, error) {
	c, err := s.m.svc.ExportVolume(ctx, string(id), s.m.initiator, target.Account{Username: chapUser, Password: chapWord}, g.Generation)
	if err == nil {
		s.who = g.Initiator
	}
	return volume.Source{ISCSI: volume.ISCSI{Portals: c.Portals, IQN: c.IQN, LUN: int(c.LUN)}}, err
}

func (s *served) Unexport(ctx context.Context, id volume.ID, e backend.Export) error {
	if e.Initiator != s.who {
		return nil
	}
	return s.m.svc.UnexportVolume(ctx, string(id), s.m.initiator, e.Admission)
}

// newServed is newFenced with a volume of the storage server.
func newServed(t *testing.T, m *machine, name string, mode volume.CacheMode) *fenced {
	t.Helper()
	ctx := t.Context()
	f := &fenced{t: t, m: m, id: volume.ID(name), api: api(), cred: &volume.Credentials{Username: chapUser, Password: chapWord}}
	_, err := m.svc.CreateVolume(ctx, name, 128*mib, target.Thin)
	mustPass(t, "create", err)
	spec := cached(mode, witnessCache)
	spec.AcceptNodeLoss = mode == volume.ModeWriteback
	spec.WarmStart = volume.WarmStart{From: volume.WarmOff}
	for n, initiator := range map[string]string{nodeName: m.initiator, otherName: otherInitiator} {
		p := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: n}}
		mustPass(t, "pool object", f.api.Create(ctx, p))
		p.Status.InitiatorIQN = initiator
		mustPass(t, "pool object", f.api.Status().Update(ctx, p))
	}
	obj := records.NewObject(f.id, spec)
	obj.UID, obj.Finalizers = types.UID("uid-"+name), nil
	mustPass(t, "record", f.api.Create(ctx, obj))
	f.svc = provision.New(provision.Config{Client: f.api, Servers: map[string]provision.Server{"": {Backend: &served{m: m}}}, Events: events.NewFakeRecorder(1000)})
	f.a = f.open(nodeName, t.TempDir(), onOneSSD())
	f.b = f.open(otherName, t.TempDir(), onOtherSSD())
	t.Cleanup(func() {
		m.dropPool(onOneSSD())
		m.try("vgremove", "--yes", "--force", pool.VolumeGroup(otherName))
		m.try("pvremove", "--yes", ssdTwo)
	})
	return f
}

// TestKernelRestoredRecord: the records come back from a backup of before the volume
// moved. Nothing that was written after the backup is lost, and no node serves what
// another has overwritten (states.md, A record that is older than the truth).
func TestKernelRestoredRecord(t *testing.T) {
	m := newMachine(t)
	for _, mode := range []volume.CacheMode{volume.ModeWriteback, volume.ModeWritethrough} {
		for _, when := range []string{"published", "released"} {
			for _, end := range []string{"unstaged", "stopped"} {
				t.Run(strings.Join([]string{string(mode), when, end}, "/"), func(t *testing.T) {
					m.t = t
					f := newServed(t, m, strings.Join([]string{"restored", string(mode), when, end}, "-"), mode)
					f.restore(mode, when == "published", end == "stopped")
					f.remove()
				})
			}
		}
	}
	m.t = t
}

// restore is the story: written on A, moved to B, written there, backup of before.
func (f *fenced) restore(mode volume.CacheMode, published, stopped bool) {
	t, ctx := f.t, f.t.Context()
	w := newWitness(t, f.id, mode)
	d := f.publish(f.a, nodeName)
	old := d.req
	on := func(n *node, d *disk) *watched { return &watched{movers: &movers{disk: d, a: n}, witness: w} }
	d.stage()
	w.open(d.device())
	on(f.a, d).warm(w.load(seeded()))
	backup := f.record()
	w.close()
	d.unstage()
	w.h.Drained()
	mustPass(t, "unpublish", f.svc.Unpublish(ctx, f.id, nodeName))
	if !published {
		backup = f.record()
	}

	d = f.publish(f.b, otherName)
	d.stage()
	w.open(d.device())
	loss := checker.LossNothing
	if mode == volume.ModeWriteback {
		on(f.b, d).dirty(w.load(seeded()))
	} else {
		w.write(w.load(seeded()), 500*time.Millisecond)
	}
	if stopped {
		s := stopping{m: f.m, n: f.b, name: otherName, id: f.id, sources: []volume.Source{d.req.Publication.Source}}
		w.s.Dying()
		s.cut()
		w.close()
		s.vanish()
		loss = checker.LossNode
	} else {
		w.close()
	}
	f.put(backup)
	if stopped {
		f.b = f.open(otherName, f.b.dir, onOtherSSD())
		d.n = f.b
		f.controllerFirst(mode)
	} else {
		d.unstage() // nobody knows the pod any more
		w.h.Drained()
	}
	refusesGivenAway(t, f.a, old)
	mustPass(t, "unpublish", f.svc.Unpublish(ctx, f.id, ""))
	f.flushed(mode)
	d = f.publish(f.a, nodeName)
	if d.req.Publication.Fence.Generation != 3 {
		t.Errorf("published anew as %+v", d.req.Publication.Fence)
	}
	d.stage()
	w.open(d.device())
	if err := w.judge(loss).Err(); err != nil {
		t.Fatal(err)
	}
	w.close()
	d.unstage()
	mustPass(t, "unpublish", f.svc.Unpublish(ctx, f.id, nodeName))
}

// controllerFirst: the volume is wanted before the node that was stopped has flushed.
func (f *fenced) controllerFirst(mode volume.CacheMode) {
	ctx := f.t.Context()
	if mode != volume.ModeWriteback {
		return
	}
	_, err := f.svc.Publish(ctx, f.id, nodeName, nil, f.cred)
	if !errors.Is(err, volume.ErrFenced) || !strings.Contains(err.Error(), otherName) {
		f.t.Fatalf("publication while another node has unflushed writes: %v", err)
	}
}

// flushed lets repair bring what the other node has to the storage server, and the
// controller learn of it.
func (f *fenced) flushed(mode volume.CacheMode) {
	f.t.Helper()
	ctx := f.t.Context()
	for range 20 {
		mustPass(f.t, "settle", f.svc.Settle(ctx, f.id))
		mustPass(f.t, "repair", f.b.Repair(ctx))
		mustPass(f.t, "repair", f.a.Repair(ctx))
		if f.record().Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty || !f.a.atRest(f.id) || !f.b.atRest(f.id) {
			continue
		}
		// Which may bring up the owner of after the backup.
		mustPass(f.t, "settle", f.svc.Settle(ctx, f.id))
		if f.record().Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
			return
		}
	}
	f.t.Fatalf("%s: the record stays possibly dirty: %+v", mode, f.record().Status)
}

// atRest reports whether a node has nothing of a volume but, at most, a retained cache.
func (n *node) atRest(id volume.ID) bool {
	e, err := n.Journal.Load(string(id))
	return err != nil || e.State == state.Retained
}

func (f *fenced) record() *v1alpha1.CachedVolume {
	f.t.Helper()
	obj := &v1alpha1.CachedVolume{}
	mustPass(f.t, "record", f.api.Get(f.t.Context(), client.ObjectKey{Name: string(f.id)}, obj))
	return obj
}

// put restores the status of a record.
func (f *fenced) put(backup *v1alpha1.CachedVolume) {
	f.t.Helper()
	now := f.record()
	now.Status = backup.DeepCopy().Status
	mustPass(f.t, "restore", f.api.Status().Update(f.t.Context(), now))
}

// disk is the volume as a node is to stage it.
func (f *fenced) disk(n *node, pub volume.Publication) *disk {
	return &disk{m: f.m, n: n, size: 128 * mib, req: volume.StageRequest{
		ID: f.id, Publication: pub, Block: true, StagingPath: filepath.Join(n.dir, "staging"),
		Credentials: &volume.Credentials{Username: chapUser, Password: chapWord},
	}}
}

// refusesGivenAway: a node does not attach what the storage server has given to another
// since the publication that it has. Either the record tells by now, or the target of that
// admission is gone (states.md, A session of an earlier admission).
func refusesGivenAway(t *testing.T, n *node, old volume.StageRequest) {
	t.Helper()
	err := n.Stage(t.Context(), old)
	gone := errors.Is(err, volume.ErrUnavailable) && strings.Contains(err.Error(), fmt.Sprintf("under generation %d no more", old.Publication.Fence.Generation))
	if !gone && !errors.Is(err, volume.ErrFenced) {
		t.Fatalf("a node attaches what was given to another since: %v", err)
	}
}
