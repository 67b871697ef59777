//go:build kernel

package kernel

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelSeededBugs shows that the checker can fail: each defect that is built in
// for this breaks one invariant, and is caught; without it the same story passes.
func TestKernelSeededBugs(t *testing.T) {
	m := newMachine(t)
	stories := map[string]func(*testing.T, *machine, string) checker.Report{
		"bug.no-flush":       unstageUnflushed,
		"bug.any-generation": returnToOldCache,
		"bug.crashed-cache":  crashWritethrough,
		"bug.no-fence":       publishDirty,

		"bug.trust-node-name": trustName,

		"bug.stream-untracked": streamUntracked,

		"bug.cut-undrained": cutUndrained,
	}
	for bug, tell := range stories {
		for _, present := range []bool{false, true} {
			name, suffix := bug+"/without", "-ok"
			if present {
				name, suffix = bug+"/with", "-bug"
			}
			t.Run(name, func(t *testing.T) {
				m.t = t
				dir := t.TempDir()
				t.Setenv("NEARFLASH_FAULT_DIR", dir)
				if present {
					mustPass(t, "arm", os.WriteFile(filepath.Join(dir, bug), nil, 0o600))
				}
				r := tell(t, m, bug[len("bug."):]+suffix)
				t.Logf("%s: %s", name, r)
				switch {
				case !present && r.Err() != nil:
					t.Errorf("the product as it is: %v", r.Err())
				case present && r.Verdicts[checker.Stale] == 0:
					t.Errorf("the defect was not noticed: %s", r)
				}
			})
		}
	}
	m.t = t
}

func seeded() *rand.Rand { return rand.New(rand.NewPCG(4, 2)) }

// unstageUnflushed: what was dirty on one node is read on the other (I2).
func unstageUnflushed(t *testing.T, m *machine, name string) checker.Report {
	w := newWatched(t, m, name, volume.ModeWriteback)
	w.ask(from(volume.WarmOff))
	w.use()
	w.dirty(w.load(seeded()))
	w.leave()
	w.publishTo(w.b, otherName)
	w.use()
	r := w.judge(checker.LossNothing)
	w.leave()
	w.end()
	return r
}

// returnToOldCache: a node gets the volume back that another one has written (I3).
func returnToOldCache(t *testing.T, m *machine, name string) checker.Report {
	w := newWatched(t, m, name, volume.ModeWritethrough)
	w.ask(from(volume.WarmOff))
	r := seeded()
	w.use()
	w.warm(w.load(r))
	w.leave()
	w.publishTo(w.b, otherName)
	w.use()
	w.write(w.load(r), 500*time.Millisecond)
	w.leave()
	w.publishTo(w.a, nodeName)
	w.use()
	report := w.judge(checker.LossNothing)
	w.leave()
	w.end()
	return report
}

// crashWritethrough: the SSD has lost what the storage server has (I4).
func crashWritethrough(t *testing.T, m *machine, name string) checker.Report {
	w := newWatched(t, m, name, volume.ModeWritethrough)
	l := w.load(seeded())
	w.use()
	w.warm(l)
	w.stop(true, l)
	w.use()
	r := w.judge(checker.LossNode)
	w.leave()
	w.end()
	return r
}

// publishDirty: the node with unflushed writes is down, and somebody wants the volume
// elsewhere (I1, I2). Here the records are objects, and the controller's own code
// decides.
func publishDirty(t *testing.T, m *machine, name string) checker.Report {
	f := newFenced(t, m, name)
	defer f.remove()
	w := newWitness(t, f.id, volume.ModeWriteback)
	d := f.publish(f.a, nodeName)
	d.stage()
	w.open(d.device())
	(&watched{movers: &movers{disk: d, a: f.a}, witness: w}).dirty(w.load(seeded()))
	s := stopping{m: m, n: f.a, name: nodeName, id: f.id, sources: []volume.Source{d.req.Publication.Source}}
	w.s.Dying()
	s.cut()
	w.close()
	s.vanish()
	f.a = f.open(nodeName, f.a.dir, onOneSSD())
	mustPass(t, "unpublish", f.svc.Unpublish(t.Context(), f.id, nodeName))

	pub, err := f.svc.Publish(t.Context(), f.id, otherName, &f.spec, nil)
	for tries := 0; errors.Is(err, volume.ErrFenced) && tries < 50; tries++ {
		// The node returns and flushes by itself, in as many steps as the machine's
		// load asks for; then the other one may have it.
		mustPass(t, "repair", f.a.Repair(t.Context()))
		pub, err = f.svc.Publish(t.Context(), f.id, otherName, &f.spec, nil)
	}
	mustPass(t, "publish elsewhere", err)
	d = f.disk(f.b, pub)
	d.stage()
	w.open(d.device())
	r := w.judge(checker.LossNode)
	w.close()
	d.unstage()
	mustPass(t, "repair", f.a.Repair(t.Context()))
	mustPass(t, "unpublish", f.svc.Unpublish(t.Context(), f.id, otherName))
	return r
}

// fenced is a volume that the controller publishes, and two nodes.
type fenced struct {
	t    *testing.T
	m    *machine
	id   volume.ID
	spec volume.Spec
	api  client.Client
	svc  *provision.Service
	a, b *node
	// cred is the account, for a volume that the controller admits nodes to.
	cred *volume.Credentials
}

func newFenced(t *testing.T, m *machine, name string) *fenced {
	t.Helper()
	ctx := t.Context()
	f := &fenced{t: t, m: m, id: volume.ID(name), api: api()}
	_, err := m.svc.CreateVolume(ctx, name, 128*mib, target.Thin)
	mustPass(t, "create", err)
	// The LUN is one that nearflash did not make: the record alone is the fence.
	c, err := m.svc.ExportVolume(ctx, name, m.initiator, target.Account{Username: chapUser, Password: chapWord}, 1)
	mustPass(t, "export", err)
	f.spec = cached(volume.ModeWriteback, witnessCache)
	f.spec.AcceptNodeLoss = true
	f.spec.WarmStart = volume.WarmStart{From: volume.WarmOff}
	f.spec.Static = &volume.ISCSI{Portals: c.Portals, IQN: c.IQN, LUN: int(c.LUN)}
	for _, n := range []string{nodeName, otherName} {
		p := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: n}}
		mustPass(t, "pool object", f.api.Create(ctx, p))
		p.Status.InitiatorIQN = m.initiator
		mustPass(t, "pool object", f.api.Status().Update(ctx, p))
	}
	obj := records.NewObject(f.id, f.spec)
	obj.UID, obj.Finalizers = types.UID("uid-"+name), nil
	mustPass(t, "record", f.api.Create(ctx, obj))
	f.svc = provision.New(provision.Config{Client: f.api, Events: events.NewFakeRecorder(1000)})
	f.a = f.open(nodeName, t.TempDir(), onOneSSD())
	f.b = f.open(otherName, t.TempDir(), onOtherSSD())
	t.Cleanup(func() {
		m.dropPool(onOneSSD())
		m.try("vgremove", "--yes", "--force", pool.VolumeGroup(otherName))
		m.try("pvremove", "--yes", ssdTwo)
	})
	return f
}

func (f *fenced) open(name, dir string, spec v1alpha1.CachePoolSpec) *node {
	f.t.Helper()
	n, err := openNodeAs(f.t.Context(), name, dir, spec, records.New(f.api, events.NewFakeRecorder(1000), time.Now), nil)
	mustPass(f.t, "node", err)
	return n
}

// publish makes a node the owner.
func (f *fenced) publish(n *node, name string) *disk {
	f.t.Helper()
	static := &f.spec
	if f.cred != nil {
		static = nil
	}
	pub, err := f.svc.Publish(f.t.Context(), f.id, name, static, f.cred)
	mustPass(f.t, "publish", err)
	return f.disk(n, pub)
}

func (f *fenced) remove() {
	ctx := f.t.Context()
	var obj v1alpha1.CachedVolume
	err := errors.Join(
		f.api.Get(ctx, client.ObjectKey{Name: string(f.id)}, &obj), f.api.Delete(ctx, &obj),
		f.m.svc.UnexportVolume(ctx, string(f.id), "", ""), f.m.svc.DeleteVolume(ctx, string(f.id)),
	)
	for _, n := range []*node{f.a, f.b} {
		err = errors.Join(err, n.deleted(ctx, f.id, volume.Fence{UID: string(obj.UID), Generation: ptr.Deref(obj.Status.Generation, 0)}))
	}
	if err != nil {
		f.t.Errorf("remove: %v", err)
	}
}
