//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/volume"
)

// disk is a volume on the storage server, or over another driver, published to this node.
type disk struct {
	m    *machine
	n    *node
	rec  fileRecords
	req  volume.StageRequest
	size int64
	// origin is the other driver, nil on the storage server.
	origin *strictOrigin
	// integrity tells that the pool asks for checksums.
	integrity bool
}

// volume makes, records and exports a volume.
func (m *machine) volume(n *node, name string, size int64, spec volume.Spec) *disk {
	m.t.Helper()
	ctx := m.t.Context()
	if _, err := m.svc.CreateVolume(ctx, name, size, target.Thin); err != nil {
		m.t.Fatal(err)
	}
	d := &disk{m: m, n: n, rec: fileRecords{filepath.Join(n.dir, "records")}, size: size}
	id := volume.ID(name)
	d.req = volume.StageRequest{
		ID: id, StagingPath: filepath.Join(n.dir, "staging-"+name),
		Credentials: &volume.Credentials{Username: chapUser, Password: chapWord},
	}
	spec.CapacityBytes = size
	rec := fileRecord{Volume: volume.Volume{ID: id, Spec: spec, Fence: volume.Fence{UID: fmt.Sprintf("uid-%s-%d", name, time.Now().UnixNano()), Node: nodeName}, Published: true, Filesystem: volume.FormatNever}}
	if err := d.rec.store(id, rec); err != nil {
		m.t.Fatal(err)
	}
	d.publish(1)
	return d
}

// admit lets the node that the record names have the volume.
func (d *disk) admit(generation int64) volume.Source {
	d.m.t.Helper()
	if d.origin != nil {
		return d.origin.admit(d, generation)
	}
	c, err := d.m.svc.ExportVolume(d.m.t.Context(), string(d.req.ID), d.m.initiator, target.Account{Username: chapUser, Password: chapWord}, generation)
	if err != nil {
		d.m.t.Fatal(err)
	}
	return volume.Source{ISCSI: volume.ISCSI{Portals: c.Portals, IQN: c.IQN, LUN: int(c.LUN)}}
}

// publish admits the node with a generation.
func (d *disk) publish(generation int64) {
	d.m.t.Helper()
	source := d.admit(generation)
	if err := d.rec.update(d.req.ID, func(r *fileRecord) error {
		// The controller gives a volume to another owner only when it is clean,
		// or an administrator said that it is to be taken as such.
		r.Volume.PossiblyDirty = r.Volume.PossiblyDirty && r.Volume.Fence.Generation == generation
		r.Volume.Fence.Generation, r.Volume.Published = generation, true
		d.req.Publication.Fence = r.Volume.Fence
		return nil
	}); err != nil {
		d.m.t.Fatal(err)
	}
	d.req.Publication.Source = source
}

// enlarge makes the volume larger where it lies.
func (d *disk) enlarge(by int64) {
	d.m.t.Helper()
	var err error
	if d.size += by; d.origin != nil {
		err = d.origin.expand(d.m.t.Context(), d.req.Publication, d.size)
	} else {
		_, err = d.m.svc.ExpandVolume(d.m.t.Context(), string(d.req.ID), d.size)
	}
	mustPass(d.m.t, "expand on the server", err)
}

// expand has the node see what the volume has become.
func (d *disk) expand(ctx context.Context) error {
	size, err := d.n.Expand(ctx, volume.ExpandRequest{ID: d.req.ID, Path: d.device(), Block: true, Size: d.size, Credentials: d.req.Credentials})
	if err == nil && size != d.size {
		err = fmt.Errorf("expanded to %d, want %d", size, d.size)
	}
	return err
}

// removeOrigin ends the admission and deletes the volume where it lies.
func (d *disk) removeOrigin(ctx context.Context) error {
	if d.origin != nil {
		return d.origin.remove(ctx, d.req.Publication.Source.CSI.Handle)
	}
	return errors.Join(d.m.svc.UnexportVolume(ctx, string(d.req.ID), "", ""), d.m.svc.DeleteVolume(ctx, string(d.req.ID)))
}

// remove deletes the volume everywhere; the node has unstaged it.
func (d *disk) remove() {
	d.m.t.Helper()
	ctx := d.m.t.Context()
	rec, err := d.rec.load(d.req.ID)
	if err := errors.Join(
		err, d.removeOrigin(ctx),
		os.Remove(filepath.Join(d.rec.dir, string(d.req.ID))), d.n.deleted(ctx, d.req.ID, rec.Volume.Fence),
	); err != nil {
		d.m.t.Errorf("remove %s: %v", d.req.ID, err)
	}
	if lvs, err := d.n.LVM.LVs(ctx, pool.VolumeGroup(nodeName)); err == nil {
		for _, lv := range lvs {
			if strings.HasPrefix(lv.Name, string(d.req.ID)+".") {
				d.m.t.Errorf("logical volume %s outlived its volume", lv.Name)
			}
		}
	}
}

func (d *disk) stage() {
	d.m.t.Helper()
	if err := d.n.Stage(d.m.t.Context(), d.req); err != nil {
		d.m.t.Fatalf("stage %s: %v", d.req.ID, err)
	}
}

func (d *disk) unstage() {
	d.m.t.Helper()
	if err := unstage(d.m.t.Context(), d.n, d.req); err != nil {
		d.m.t.Fatalf("unstage %s: %v", d.req.ID, err)
	}
}

// unstage repeats like kubelet while a flush goes on.
func unstage(ctx context.Context, n *node, req volume.StageRequest) error {
	for {
		err := n.Unstage(ctx, req.ID, req.StagingPath)
		if !errors.Is(err, volume.ErrBusy) {
			return err
		}
	}
}

// device is the node of the top device.
func (d *disk) device() string {
	d.m.t.Helper()
	name := "nf-" + string(d.req.ID)
	infos, err := d.n.DM.Info(d.m.t.Context(), name)
	if err != nil {
		d.m.t.Fatal(err)
	}
	info, ok := infos[name]
	if !ok {
		d.m.t.Fatalf("no device %s", name)
	}
	return info.DevPath()
}

// cache is the status of the volume's cache; found is false if it has none.
func (d *disk) cache() (st devmapper.CacheStatus, found bool) {
	d.m.t.Helper()
	all, err := d.n.DM.StatusAll(d.m.t.Context())
	if err != nil {
		d.m.t.Fatal(err)
	}
	st, found = all["nf-"+string(d.req.ID)]
	return st, found
}

func (d *disk) wantReport(reason string) {
	d.m.t.Helper()
	rec, err := d.rec.load(d.req.ID)
	if err != nil {
		d.m.t.Fatal(err)
	}
	if rec.Report.Reason != reason {
		d.m.t.Errorf("the record says %q (%s), want %q", rec.Report.Reason, rec.Report.Message, reason)
	}
}
