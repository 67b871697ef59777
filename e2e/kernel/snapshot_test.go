//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/volume"
)

// photographer is a controller that has a volume cut: production's own over the records that the
// nodes have, and the guest's storage server.
type photographer struct {
	served
	d   *disk
	svc *provision.Service
	// left is how many steps the controller takes before it is killed, if it is above 0;
	// stops is how far the storage service comes with a cut before it ends, if it is above 0.
	left  int
	stops time.Duration
}

func newPhotographer(d *disk) *photographer {
	p := &photographer{served: served{m: d.m, who: d.m.initiator}, d: d}
	p.restart()
	return p
}

// restart begins a controller that knows nothing of the one before.
func (p *photographer) restart() {
	p.left = 0
	api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme()).Build(), interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			return p.get(obj)
		},
		Patch: func(_ context.Context, _ client.WithWatch, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
			return p.step(func() error { return p.patch(obj.(*v1alpha1.CachedVolume)) })
		},
	})
	p.svc = provision.New(provision.Config{Client: api, Servers: map[string]provision.Server{"": {Backend: p}}, Events: events.NewFakeRecorder(1000)})
}

var errKilled = errors.New("the controller was killed")

// step takes one step of the controller, unless it was killed before, or is now: before the step
// or behind it, so that nobody hears of it.
func (p *photographer) step(do func() error) error {
	switch p.left--; {
	case p.left == 1:
		return errors.Join(errKilled, do())
	case p.left == 0:
		p.left = 1
		return errKilled
	}
	p.left = max(p.left, -1)
	return do()
}

// get reads the record as the API server would show it, and the node, which is there.
func (p *photographer) get(obj client.Object) error {
	switch obj := obj.(type) {
	case *corev1.Node:
		obj.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	case *v1alpha1.CachedVolume:
		version, rec, err := p.read()
		if err != nil {
			return err
		}
		v := rec.Volume
		*obj = *records.NewObject(v.ID, v.Spec)
		obj.UID, obj.ResourceVersion = types.UID(v.Fence.UID), version
		obj.Spec.FlushRequest = v.FlushRequest
		if h := v.Hold; h != nil {
			obj.Spec.Hold = &v1alpha1.VolumeHold{Name: string(h.Name), Token: h.Token}
		}
		obj.Status.OwnerNode, obj.Status.Generation = v.Fence.Node, ptr.To(v.Fence.Generation)
		obj.Status.Publication, obj.Status.DirtyState = v1alpha1.PublicationReleased, v1alpha1.DirtyStateClean
		if v.Published {
			obj.Status.Publication = v1alpha1.PublicationPublished
		}
		if v.PossiblyDirty {
			obj.Status.DirtyState = v1alpha1.DirtyStatePossiblyDirty
		}
		obj.Status.Flush.Request, obj.Status.Filesystem = v.FlushDone, records.ObjectFilesystem(v.Filesystem)
	}
	return nil
}

// read returns the record, and what tells it from any other.
func (p *photographer) read() (version string, rec fileRecord, err error) {
	b, err := os.ReadFile(filepath.Join(p.d.rec.dir, string(p.d.req.ID)))
	if err == nil {
		rec, err = p.d.rec.load(p.d.req.ID)
	}
	return fmt.Sprint(crc32.ChecksumIEEE(b)), rec, err
}

// patch writes a hold and a request for a flush, as long as the record is what was read.
func (p *photographer) patch(obj *v1alpha1.CachedVolume) error {
	version, _, err := p.read()
	if err != nil {
		return err
	}
	if version != obj.ResourceVersion {
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("cachedvolumes").GroupResource(), obj.Name, errors.New("the record has changed"))
	}
	err = p.d.rec.update(p.d.req.ID, func(r *fileRecord) error {
		if r.Volume.Hold = nil; obj.Spec.Hold != nil {
			r.Volume.Hold = &volume.Hold{Name: volume.SnapshotID(obj.Spec.Hold.Name), Token: obj.Spec.Hold.Token}
		}
		r.Volume.FlushRequest = obj.Spec.FlushRequest
		r.Volume.SpecGeneration++
		return nil
	})
	obj.ResourceVersion, _, _ = p.read()
	return err
}

// cutOf and translate are what package iscsi does with the answers of the service.
func cutOf(s lvol.Snapshot) backend.Cut {
	return backend.Cut{
		ID: volume.SnapshotID(s.Name), Volume: volume.ID(s.Volume), SizeBytes: s.SizeBytes, Created: s.Created,
		Hold: s.Hold, Filesystem: volume.Formatted(s.Filesystem), Done: s.Done, Ready: s.Done, Accepted: s.Accepted,
	}
}

func translate(err error) error {
	for from, to := range map[error]error{
		target.ErrNotFound: volume.ErrNotFound, target.ErrInProgress: volume.ErrBusy, target.ErrStopping: volume.ErrUnavailable,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w: %w", to, err)
		}
	}
	return err
}

// Cut implements backend.Snapshots. The storage service ends in the middle of it, if it shall.
func (p *photographer) Cut(ctx context.Context, id volume.SnapshotID, of volume.ID, req backend.CutRequest) (made backend.Cut, err error) {
	err = p.step(func() error {
		type answer struct {
			s   lvol.Snapshot
			err error
		}
		done := make(chan answer, 1)
		go func() {
			s, err := p.m.svc.CreateSnapshot(ctx, target.SnapshotRequest{Name: string(id), Volume: string(of), Hold: req.Hold, Filesystem: string(req.Filesystem)})
			done <- answer{s, err}
		}()
		if p.stops > 0 {
			time.Sleep(p.stops)
			p.stops = 0
			p.m.stop()
			p.m.start(p.m.state)
		}
		a := <-done
		made = cutOf(a.s)
		return translate(a.err)
	})
	return made, err
}

var _ backend.Snapshots = (*photographer)(nil)

// CanCut implements backend.Snapshots: all volumes are thin.
func (p *photographer) CanCut(ctx context.Context, of volume.ID, _ string) error {
	_, err := p.m.svc.GetVolume(ctx, string(of))
	return translate(err)
}

// CanBegin implements backend.Snapshots.
func (p *photographer) CanBegin(context.Context, volume.ID, volume.ID, backend.Request) error {
	return nil
}

// Find implements backend.Snapshots.
func (p *photographer) Find(ctx context.Context, id volume.SnapshotID) (backend.Cut, error) {
	s, err := p.m.svc.GetSnapshot(ctx, string(id))
	return cutOf(s), translate(err)
}

// Accept implements backend.Snapshots.
func (p *photographer) Accept(ctx context.Context, id volume.SnapshotID, hold string) error {
	return p.step(func() error { return translate(p.m.svc.AcceptSnapshot(ctx, string(id), hold)) })
}

// DropCut implements backend.Snapshots.
func (p *photographer) DropCut(ctx context.Context, id volume.SnapshotID, hold string) error {
	return p.step(func() error { return translate(p.m.svc.DeleteSnapshot(ctx, string(id), hold)) })
}

// DeleteCut implements backend.Snapshots.
func (p *photographer) DeleteCut(ctx context.Context, id volume.SnapshotID) error {
	return translate(p.m.svc.DeleteSnapshot(ctx, string(id), ""))
}

// Cuts implements backend.Snapshots.
func (p *photographer) Cuts(ctx context.Context) (out []backend.Cut, err error) {
	all, _, err := p.m.svc.ListSnapshots(ctx, 0, "")
	for _, s := range all {
		out = append(out, cutOf(s))
	}
	return out, translate(err)
}

// shot is a snapshot on its way.
type shot struct {
	*photographer
	w    *watched
	id   volume.SnapshotID
	copy *checker.Copy
	// read is what it had when it was read first.
	read []checker.Content
}

// shoot asks for a snapshot of what was acknowledged until now.
func (w *watched) shoot(name string) *shot {
	return &shot{photographer: newPhotographer(w.disk), w: w, id: volume.SnapshotID(name), copy: w.h.BeginCopy()}
}

// ask is one call for the snapshot. One that a kill has ended is as one that has to be repeated.
func (s *shot) ask() (done bool) {
	s.w.t.Helper()
	_, err := s.svc.CreateSnapshot(s.w.t.Context(), s.id, s.d.req.ID, volume.SnapshotClass{})
	if errors.Is(err, errKilled) {
		s.restart()
		return false
	}
	if err != nil && !errors.Is(err, volume.ErrBusy) && !errors.Is(err, volume.ErrUnavailable) {
		s.w.t.Fatalf("snapshot %s: %v", s.id, err)
	}
	return err == nil
}

// insist repeats the call, with between before each further one, until the snapshot is there.
func (s *shot) insist(between func()) {
	s.w.t.Helper()
	for until := time.Now().Add(2 * time.Minute); !s.ask(); between() {
		if time.Now().After(until) {
			_, rec, err := s.photographer.read()
			s.w.t.Fatalf("no snapshot after two minutes; the record: %+v, %v", rec, err)
		}
	}
	if _, rec, err := s.photographer.read(); err != nil || rec.Volume.Hold != nil {
		s.w.t.Fatalf("the volume is held for a snapshot that is there: %+v, %v", rec.Volume.Hold, err)
	}
}

// drain is one look of the node at what the record asks for.
func (w *watched) drain() {
	w.t.Helper()
	_, err := w.n.Change(w.t.Context())
	mustPass(w.t, "change", err)
	time.Sleep(20 * time.Millisecond)
}

// judge reads the snapshot and decides.
func (s *shot) judge() checker.Report {
	s.w.t.Helper()
	lv := storageVG + "/nfsnap-" + string(s.id)
	s.m.must("lvchange", "--activate", "y", "--ignoreactivationskip", lv)
	s.read = s.w.contents("/dev/" + lv)
	s.m.must("lvchange", "--activate", "n", lv)
	r, err := s.copy.Judge(s.read)
	mustPass(s.w.t, "judge", err)
	s.copy.Done()
	return r
}

// contents reads every block of the witness.
func (w *watched) contents(path string) (out []checker.Content) {
	w.t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	mustPass(w.t, "open", err)
	defer func() { _ = f.Close() }()
	b := aligned(mib)
	for block := int64(0); block < w.h.Blocks(); {
		n, err := io.ReadFull(f, b)
		mustPass(w.t, "read", err)
		for at := 0; at < n && block < w.h.Blocks(); at += checker.BlockSize {
			out = append(out, checker.Decode(b[at:at+checker.BlockSize], w.h.Volume(), block))
			block++
		}
	}
	return out
}

// end makes a volume of the snapshot, which must have what was judged, and deletes both.
func (s *shot) end() {
	s.w.t.Helper()
	ctx, name := s.w.t.Context(), strings.TrimPrefix(string(s.id), "snapshot-")+"-restored"
	_, err := s.m.svc.CreateVolumeFromSnapshot(ctx, name, s.d.size, target.Thin, string(s.id))
	mustPass(s.w.t, "restore", err)
	for i, c := range s.w.contents("/dev/" + storageVG + "/nf-" + name) {
		if c != s.read[i] {
			s.w.t.Fatalf("block %d of snapshot %s had %s, and what was made of it has %s", i, s.id, s.read[i], c)
		}
	}
	mustPass(s.w.t, "delete", s.m.svc.DeleteVolume(ctx, name))
	mustPass(s.w.t, "delete", s.svc.DeleteSnapshot(ctx, volume.SnapshotHandle{Backend: records.BackendISCSI, ID: s.id}))
	if _, err := s.Find(ctx, s.id); !errors.Is(err, volume.ErrNotFound) {
		s.w.t.Fatalf("snapshot %s is there after it was deleted: %v", s.id, err)
	}
}

// haphazard has the controller killed, or the storage service ended, on the way, or neither.
func (s *shot) haphazard(r *rand.Rand) {
	switch r.IntN(3) {
	case 0:
		s.left = 2 + r.IntN(6)
	case 1:
		s.stops = time.Duration(1 + r.IntN(int(200*time.Millisecond)))
	}
}
