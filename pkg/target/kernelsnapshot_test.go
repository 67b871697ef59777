//go:build kernel

package target_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/target/lvol/lvoltest"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
)

const sector = 4096

// device is a logical volume's path below /dev.
func device(lv string) string { return kernelVG + "/" + lv }

func (r *rig) manager() *lvol.Manager {
	r.t.Helper()
	m, err := lvol.Open(r.t.Context(), lvol.Config{VolumeGroup: kernelVG, ThinPool: "pool", MaxOvercommit: 10}, r.run, lvol.NewBlockDevice())
	must(r.t, err)
	return m
}

func (r *rig) writeText(lv, text string) error {
	b := aligned(r.t, sector)
	copy(b, text)
	f, err := openDirect(device(lv), os.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	return errors.Join(err, f.Close())
}

func (r *rig) readText(lv string) (string, error) {
	b, err := r.read(device(lv), sector, 0)
	if err != nil {
		return "", err
	}
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text), nil
}

// TestKernelSnapshots holds the real LVM to what the one in memory does.
func TestKernelSnapshots(t *testing.T) {
	r := newRig(t)
	lvoltest.SnapshotConformance(t, lvoltest.Rig{Runner: r.run, Manager: r.manager(), VG: kernelVG, Write: r.writeText, Read: r.readText})
}

// writers write to parts of a disk at once, each block once, one after the other.
type writers struct {
	stop    atomic.Bool
	all     sync.WaitGroup
	clock   atomic.Int64
	perPart int
	// began and ended are when each write of a part was begun and acknowledged, by clock; 0 is
	// never.
	began, ended [][]atomic.Int64
}

const parts = 4

// writeOn begins to write; the file is closed by end.
func (r *rig) writeOn(disk string, size int64) (w *writers, end func()) {
	r.t.Helper()
	w = &writers{perPart: int(size / sector / parts)}
	f, err := openDirect(disk, os.O_WRONLY)
	must(r.t, err)
	for part := range parts {
		w.began = append(w.began, make([]atomic.Int64, w.perPart))
		w.ended = append(w.ended, make([]atomic.Int64, w.perPart))
		b := aligned(r.t, sector)
		w.all.Go(func() {
			for i := 0; i < w.perPart && !w.stop.Load(); i++ {
				fillBlock(b, part, i)
				w.began[part][i].Store(w.clock.Add(1))
				if _, err := f.WriteAt(b, w.at(part, i)); err != nil {
					r.t.Errorf("write %d of part %d: %v", i, part, err)
					return
				}
				w.ended[part][i].Store(w.clock.Add(1))
				time.Sleep(time.Millisecond) // there are writes to come at the last snapshot
			}
		})
	}
	return w, func() {
		w.stop.Store(true)
		w.all.Wait()
		must(r.t, f.Close())
	}
}

// await waits for so many more moments.
func (w *writers) await(t *testing.T, moments int64) {
	t.Helper()
	for end := w.clock.Load() + moments; w.clock.Load() < end; time.Sleep(time.Millisecond) {
		if w.clock.Load() >= 2*parts*int64(w.perPart) {
			t.Fatal("everything is written: the machine is too fast for this test")
		}
	}
}

func (w *writers) at(part, i int) int64 { return int64(part*w.perPart+i) * sector }

func fillBlock(b []byte, part, i int) {
	for at := 0; at < len(b); at += 16 {
		binary.LittleEndian.PutUint64(b[at:], uint64(part)<<32|uint64(i)+1)
		binary.LittleEndian.PutUint64(b[at+8:], uint64(at))
	}
}

// judge reads a copy that was made between two moments. It has every write that was
// acknowledged before the first, none that was begun after the second, and none without those
// that were acknowledged before it began.
func (w *writers) judge(r *rig, what, lv string, from, to int64) {
	r.t.Helper()
	want, zero := make([]byte, sector), make([]byte, sector)
	lastBegan, firstMissing := int64(0), int64(1)<<62
	has := 0
	r.blocks(lv, int64(parts*w.perPart)*sector, func(at int64, b []byte) {
		part, i := int(at/sector)/w.perPart, int(at/sector)%w.perPart
		fillBlock(want, part, i)
		began, ended := w.began[part][i].Load(), w.ended[part][i].Load()
		switch {
		case bytes.Equal(b, want):
			has++
			if began == 0 || began > to {
				r.t.Fatalf("%s: has write %d of part %d, begun at %d, after %d", what, i, part, began, to)
			}
			lastBegan = max(lastBegan, began)
		case !bytes.Equal(b, zero):
			r.t.Fatalf("%s: block %d of part %d is neither old nor new", what, i, part)
		case ended != 0 && ended < from:
			r.t.Fatalf("%s: lacks write %d of part %d, acknowledged at %d, before %d", what, i, part, ended, from)
		case ended != 0:
			firstMissing = min(firstMissing, ended)
		}
	})
	if firstMissing < lastBegan {
		r.t.Errorf("%s: has a write that began at %d, and lacks one that was acknowledged at %d", what, lastBegan, firstMissing)
	}
	r.t.Logf("%s: %d writes, made between %d and %d", what, has, from, to)
}

// blocks reads a device block by block, past the page cache.
func (r *rig) blocks(lv string, size int64, each func(at int64, b []byte)) {
	r.t.Helper()
	f, err := openDirect(device(lv), os.O_RDONLY)
	must(r.t, err)
	defer func() { _ = f.Close() }()
	b := aligned(r.t, mib)
	for at := int64(0); at < size; at += mib {
		_, err := f.ReadAt(b, at)
		must(r.t, err)
		for i := int64(0); i < mib; i += sector {
			each(at+i, b[i:i+sector])
		}
	}
}

func (r *rig) sum(lv string, size int64) (out [sha256.Size]byte) {
	r.t.Helper()
	h := sha256.New()
	r.blocks(lv, size, func(_ int64, b []byte) { _, _ = h.Write(b) })
	h.Sum(out[:0])
	return out
}

// TestKernelSnapshotOfWritten: a snapshot of a LUN that an initiator writes to has the writes of
// one moment, in their order, and does not change; nor does it when its volume goes.
func TestKernelSnapshotOfWritten(t *testing.T) {
	r := newRig(t)
	svc := r.start()
	const size = 64 * mib
	_, err := svc.CreateVolume(t.Context(), "v1", size, target.Thin)
	must(t, err)
	c := r.export(svc, "v1", 1)
	w, end := r.writeOn(r.mustLogin(c), size)
	type cut struct{ from, to int64 }
	var cuts []cut
	for i := range 4 {
		w.await(t, 200)
		from := w.clock.Load()
		mustCut(t, svc, fmt.Sprintf("s%d", i), "v1")
		cuts = append(cuts, cut{from, w.clock.Add(1)})
	}
	end()
	var sums [][sha256.Size]byte
	for i, at := range cuts {
		name := fmt.Sprintf("w%d", i)
		_, err := svc.CreateVolumeFromSnapshot(t.Context(), name, size+8*mib, "", fmt.Sprintf("s%d", i))
		must(t, err)
		w.judge(r, name, "nf-"+name, at.from, at.to)
		sums = append(sums, r.sum("nf-"+name, size+8*mib))
	}
	if sums[0] == sums[3] {
		t.Error("nothing was written between the first and the last snapshot")
	}
	// What is written to the volume, and to what was made of a snapshot, changes no snapshot.
	disk, other := r.mustFind(c), r.random(mib)
	for at := int64(0); at < size; at += 4 * mib {
		r.write(disk, other, at)
		r.write(device("nf-w0"), other, at)
	}
	r.logout(c)
	must(t, errors.Join(svc.UnexportVolume(t.Context(), "v1", "", ""), svc.DeleteVolume(t.Context(), "v1")))
	for i := range cuts {
		name := fmt.Sprintf("x%d", i)
		_, err := svc.CreateVolumeFromSnapshot(t.Context(), name, size+8*mib, "", fmt.Sprintf("s%d", i))
		must(t, err)
		if r.sum("nf-"+name, size+8*mib) != sums[i] {
			t.Errorf("snapshot %d has changed", i)
		}
	}
	r.checkSnapshotReboot(svc)
}

// checkSnapshotReboot: behind a reboot a volume that was made of a snapshot is exported again,
// and no snapshot is active.
func (r *rig) checkSnapshotReboot(svc *target.Service) {
	r.t.Helper()
	c, err := svc.ExportVolume(r.t.Context(), "x1", r.node, account("a"), 1)
	must(r.t, err)
	disk := r.mustLogin(c)
	data := r.random(mib)
	r.write(disk, data, 65*mib)
	r.logout(c)
	r.stop(svc)
	r.clearLIO()
	r.must("vgchange", "--activate", "n", kernelVG)
	r.must("vgchange", "--activate", "y", kernelVG)
	for i := range 4 {
		if _, err := os.Stat(fmt.Sprintf("/dev/%s/nfsnap-s%d", kernelVG, i)); !os.IsNotExist(err) {
			r.t.Errorf("snapshot %d is active: %v", i, err)
		}
	}
	svc = r.start()
	defer r.stop(svc)
	if disk = r.mustLogin(c); !r.holds(disk, data, 65*mib) {
		r.t.Error("data is gone after the reboot")
	}
	r.logout(c)
}

// cutCommand is what the server runs for a snapshot of v1.
func cutCommand(name string) *exec.Cmd {
	return exec.Command("lvcreate", "--yes", "--snapshot", "--setactivationskip", "y", "--permission", "r", "--name", "nfsnap-"+name,
		"--addtag", "nearflash.snapshot="+name, "--addtag", "nearflash.of=v1", "--addtag", "nearflash.hold=h", "--addtag", "nearflash.cutting",
		kernelVG+"/nf-v1")
}

// TestKernelSnapshotKilled kills lvcreate itself at many moments. What it leaves is never
// reported as done: the next call makes the snapshot of what is there then.
func TestKernelSnapshotKilled(t *testing.T) {
	r := newRig(t)
	svc := r.start()
	defer r.stop(svc)
	_, err := svc.CreateVolume(t.Context(), "v1", 16*mib, target.Thin)
	must(t, err)
	began := time.Now()
	must(t, cutCommand("whole").Run())
	whole := time.Since(began)
	left, late := 0, 0
	const rounds = 20
	for i := range rounds {
		must(t, r.writeText("nf-v1", "before"))
		name := fmt.Sprintf("s%d", i)
		killed := cutCommand(name)
		must(t, killed.Start())
		time.Sleep(whole * time.Duration(i) / rounds)
		_ = killed.Process.Signal(unix.SIGKILL)
		_ = killed.Wait() // "killed" is what is wanted
		// A volume that it has left suspended is gone on with by the next command of LVM.
		r.must("lvchange", "--refresh", kernelVG+"/nf-v1")
		must(t, r.writeText("nf-v1", "after"))
		c, err := svc.GetSnapshot(t.Context(), name)
		switch {
		case errors.Is(err, target.ErrNotFound):
		case err != nil || c.Done:
			t.Errorf("round %d: %+v, %v", i, c, err)
		default:
			left++
			if left%2 == 0 { // what would come of it if it were taken for done
				r.must("lvchange", "--deltag", "nearflash.cutting", kernelVG+"/nfsnap-"+name)
				if r.contentOf(svc, name) == "after" {
					late++
				}
				must(t, svc.DeleteSnapshot(t.Context(), name, ""))
			}
		}
		_, err = svc.CreateSnapshot(t.Context(), target.SnapshotRequest{Name: name, Volume: "v1", Hold: "h"})
		must(t, err)
		if got := r.contentOf(svc, name); got != "after" {
			t.Errorf("round %d: the snapshot has %q", i, got)
		}
		must(t, svc.DeleteSnapshot(t.Context(), name, ""))
	}
	t.Logf("of %d commands that were killed within %v %d left a snapshot; %d of the %d that were looked into had a later content", rounds, whole, left, late, left/2)
	if left == 0 || left == rounds {
		t.Errorf("%d of %d commands left a snapshot: the kills are not in their middle", left, rounds)
	}
}

// contentOf is the text of a volume that is made of a snapshot.
func (r *rig) contentOf(svc *target.Service, snapshot string) string {
	r.t.Helper()
	must(r.t, svc.AcceptSnapshot(r.t.Context(), snapshot, "h"))
	_, err := svc.CreateVolumeFromSnapshot(r.t.Context(), "w", 24*mib, "", snapshot)
	must(r.t, err)
	text, err := r.readText("nf-w")
	must(r.t, errors.Join(err, svc.DeleteVolume(r.t.Context(), "w")))
	return text
}

// TestKernelSnapshotProcess: the server is killed in the middle of snapshots and of volumes that
// begin as one, and the caller's retries end right.
func TestKernelSnapshotProcess(t *testing.T) {
	p := newProcess(t)
	ctx := t.Context()
	_, err := p.client.CreateVolume(ctx, "v1", 16*mib, targetclient.ServerDefault)
	must(t, err)
	for i := range 6 {
		text, name := fmt.Sprintf("round %d", i), fmt.Sprintf("s%d", i)
		must(t, p.writeText("nf-v1", text))
		for step, call := range []func() error{
			func() error {
				_, err := p.client.CreateSnapshot(ctx, targetclient.SnapshotRequest{Name: name, Volume: "v1", Hold: "h"})
				return err
			},
			func() error { return p.client.AcceptSnapshot(ctx, name, "h") },
			func() error {
				_, err := p.client.CreateVolumeFromSnapshot(ctx, "w", 24*mib, targetclient.ServerDefault, name)
				return err
			},
		} {
			answered := make(chan error, 1)
			go func() { answered <- call() }()
			time.Sleep(time.Duration(i*40) * time.Millisecond)
			p.kill()
			<-answered
			p.start()
			p.retry(fmt.Sprintf("round %d, call %d", i, step), func(context.Context) error { return call() })
		}
		if got, err := p.readText("nf-w"); err != nil || got != text {
			t.Errorf("round %d: the volume holds %q, %v", i, got, err)
		}
		v, err := p.client.GetVolume(ctx, "w")
		if err != nil || v.SizeBytes != 24*mib || !v.Ready {
			t.Errorf("round %d: %+v, %v", i, v, err)
		}
		must(t, errors.Join(p.client.DeleteVolume(ctx, "w"), p.client.DeleteSnapshot(ctx, name, "")))
	}
	if all, _, err := p.client.ListSnapshots(ctx, 0, ""); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
	res, err := p.run.Run(ctx, hostexec.Query("lvs", "--noheadings", "--options", "lv_name", kernelVG))
	if must(t, err); bytes.Contains(res.Stdout, []byte("nfsnap-")) || bytes.Contains(res.Stdout, []byte("nf-w")) {
		t.Errorf("left: %s", res.Stdout)
	}
}
