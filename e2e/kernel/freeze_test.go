//go:build kernel

package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/freeze"
	"github.com/nearflash/nearflash/pkg/volume"
)

// frozenBlock is what a writer appends at a time.
const frozenBlock = 4096

// appender is a pod that appends numbered blocks to a file, and syncs none of them.
type appender struct {
	file    *os.File
	written atomic.Int64
	// pause is the longest time that one write took, in nanoseconds.
	pause, began atomic.Int64
	stop         chan struct{}
	ended        chan error
}

func (d *disk) appends(name string) *appender {
	d.m.t.Helper()
	f, err := os.Create(filepath.Join(d.req.StagingPath, name))
	mustPass(d.m.t, "create", err)
	a := &appender{file: f, stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() { a.ended <- a.run() }()
	return a
}

func (a *appender) run() error {
	b := make([]byte, frozenBlock)
	for {
		select {
		case <-a.stop:
			return a.file.Close()
		case <-time.After(500 * time.Microsecond):
		}
		binary.LittleEndian.PutUint64(b, uint64(a.written.Load()+1))
		began := time.Now()
		a.began.Store(began.UnixNano())
		if _, err := a.file.Write(b); err != nil {
			return errors.Join(err, a.file.Close())
		}
		a.began.Store(0)
		a.pause.Store(max(a.pause.Load(), int64(time.Since(began))))
		a.written.Add(1)
	}
}

// longest is the longest pause so far.
func (a *appender) longest() time.Duration {
	now := time.Duration(0)
	if began := a.began.Load(); began != 0 {
		now = time.Since(time.Unix(0, began))
	}
	return max(time.Duration(a.pause.Load()), now)
}

// goesOn waits until it has written again.
func (a *appender) goesOn(t *testing.T) {
	t.Helper()
	before := a.written.Load()
	soon(t, "the pod writes", func() bool { return a.written.Load() > before })
}

func (a *appender) end(t *testing.T) {
	t.Helper()
	close(a.stop)
	mustPass(t, "the pod", <-a.ended)
}

// asksFreeze asks for a freeze under a hold with a token, or for its end.
func (d *disk) asksFreeze(token string, what volume.FreezeRequest) {
	d.m.t.Helper()
	d.ask(func(v *volume.Volume) { v.Hold = &volume.Hold{Name: "s", Token: token, Freeze: what} })
}

func (d *disk) said(token string) volume.FreezeState {
	rec, err := d.rec.load(d.req.ID)
	if err != nil || rec.Volume.Freeze.Token != token {
		return ""
	}
	return rec.Volume.Freeze.State
}

// longestFreeze is what a pod waits for at most: what a freeze may last, and as long again until a busy
// machine has thawed it and the pod has its turn.
const longestFreeze = 2 * freeze.Limit

// TestKernelFreeze: the kernel's filesystems stop their pods' writes while they are frozen, have
// all of them in what is cut then, and go on: within the limit, whoever is killed.
func TestKernelFreeze(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			m.t = t
			d := m.volume(n, "frozen-"+kind, 320*mib, cached(volume.ModeWritethrough, 32*mib))
			d.req.FSType = kind
			d.stage()
			a := d.appends("before")
			a.goesOn(t)
			d.cutFrozen(a, kind)
			if kind == "ext4" {
				d.thawedByGuard(a)
				d.killFreezes(a)
			}
			a.end(t)
			d.unstage()
			d.remove()
		})
	}
	m.t = t
}

// cutFrozen makes a snapshot of the LUN's own logical volume under a freeze, and looks at what is
// in it without a replay of its journal.
func (d *disk) cutFrozen(a *appender, kind string) {
	t := d.m.t
	t.Helper()
	written, held := int64(0), false
	for tries := 1; !held; tries++ { // a busy machine may take longer for a cut than a freeze lasts
		if written, held = d.cutWhile(a, fmt.Sprintf("cut-%d", tries)); !held {
			d.m.must("lvremove", "--yes", storageVG+"/cut")
			if tries == 5 {
				t.Fatal("no freeze was held until the end of its cut")
			}
		}
	}
	a.goesOn(t)
	t.Logf("%s: longest pause of the pod %s, %d blocks before the freeze", kind, a.longest(), written)
	if p := a.longest(); p > longestFreeze {
		t.Errorf("the pod waited for %s", p)
	}
	d.m.must("lvchange", "--activate", "y", storageVG+"/cut")
	device, dir := "/dev/"+storageVG+"/cut", t.TempDir()
	options := "ro,norecovery,nouuid"
	if kind == "ext4" {
		options = "ro,noload"
		if head := d.m.must("dumpe2fs", "-h", device); strings.Contains(head, "needs_recovery") {
			t.Error("the snapshot's journal would be replayed")
		}
		d.m.must("e2fsck", "-n", "-f", device)
	}
	d.m.must("mount", "--types", kind, "--options", options, device, dir)
	b, err := os.ReadFile(filepath.Join(dir, "before"))
	d.m.must("umount", dir)
	d.m.must("lvremove", "--yes", storageVG+"/cut")
	mustPass(t, "read the snapshot", err)
	if len(b) < int(written)*frozenBlock {
		t.Fatalf("the snapshot has %d bytes, and %d blocks were written before", len(b), written)
	}
	want := make([]byte, 8)
	for i := range written {
		binary.LittleEndian.PutUint64(want, uint64(i+1))
		if !bytes.Equal(b[i*frozenBlock:i*frozenBlock+8], want) {
			t.Fatalf("block %d of the snapshot is not what was written", i)
		}
	}
}

// cutWhile makes the snapshot under a freeze. held is false if the node does not say that the freeze
// lasted until the end.
func (d *disk) cutWhile(a *appender, request string) (written int64, held bool) {
	t := d.m.t
	t.Helper()
	done := make(chan error, 1)
	d.asksFreeze(request, volume.FreezeAsked)
	go func() { done <- d.n.Freeze(t.Context(), d.req.ID) }()
	soon(t, "frozen", func() bool { return d.said(request) != "" })
	time.Sleep(20 * time.Millisecond) // what is under way may have come before
	written = a.written.Load()
	d.m.must("lvcreate", "--snapshot", "--setactivationskip", "n", "--name", "cut", storageVG+"/nf-"+string(d.req.ID))
	now := a.written.Load()
	d.asksFreeze(request, volume.FreezeOver)
	mustPass(t, "freeze", <-done)
	said := d.said(request)
	if held = said == volume.FreezeHeld; held && now > written {
		t.Errorf("the pod wrote %d blocks while its filesystem was frozen", now-written)
	}
	t.Logf("%s: the node says %s", request, said)
	return written, held
}

// thawedByGuard kills the plugin while the filesystem is frozen. Nobody takes its place.
func (d *disk) thawedByGuard(a *appender) {
	t := d.m.t
	t.Helper()
	a.pause.Store(0)
	d.asksFreeze("guard", volume.FreezeAsked)
	if !d.killAt("freeze.reported", order{Freeze: true}) {
		t.Fatal("the plugin did not come to the report of a freeze")
	}
	a.goesOn(t)
	p := a.longest()
	t.Logf("the plugin was killed, and the pod waited for %s", p)
	if p < freeze.Limit/2 || p > longestFreeze {
		t.Errorf("the pod waited for %s: it was not frozen, or not thawed in time", p)
	}
	d.nextThaws(a, "guard")
}

// killFreezes kills the plugin, or the guard, at each step of a freeze.
func (d *disk) killFreezes(a *appender) {
	t := d.m.t
	t.Helper()
	points := []string{
		"freeze.ordered", "freeze.frozen", "freeze.ended", "freeze.thawed",
		"freeze.guard-open", "freeze.guard-freezing", "freeze.guard-frozen", "freeze.guard-thawed",
	}
	for _, point := range killedAt(t, points, "freeze.frozen", "freeze.guard-frozen") {
		a.pause.Store(0)
		d.asksFreeze(point, volume.FreezeAsked)
		over := make(chan struct{})
		go func() { // the controller, which has what it wants at once
			for {
				select {
				case <-over:
					return
				case <-time.After(10 * time.Millisecond):
				}
				if d.said(point) == volume.FreezeFrozen {
					_ = d.rec.update(d.req.ID, func(r *fileRecord) error { r.Volume.Hold.Freeze = volume.FreezeOver; return nil })
					return
				}
			}
		}()
		plugin := !strings.Contains(point, "guard")
		if killed := d.killAt(point, order{Freeze: true}); killed != plugin {
			t.Errorf("%s: the plugin was killed: %t", point, killed)
		}
		close(over)
		if !plugin {
			rec, err := d.rec.load(d.req.ID)
			if err != nil || !strings.Contains(rec.Volume.Freeze.Message, "was killed") {
				t.Errorf("%s: the guard was not killed: %+v, %v", point, rec.Volume.Freeze, err)
			}
		}
		d.nextThaws(a, point)
		if s := d.said(point); s == volume.FreezeFrozen || s == volume.FreezeHeld {
			t.Errorf("%s: the node says %q", point, s)
		}
		if p := a.longest(); p > longestFreeze {
			t.Errorf("%s: the pod waited for %s", point, p)
		}
	}
}

// nextThaws has the next plugin begin, and finds nothing frozen then.
func (d *disk) nextThaws(a *appender, point string) {
	t := d.m.t
	t.Helper()
	d.n.ThawLeft(t.Context())
	a.goesOn(t)
	d.asksFreeze(point, volume.FreezeOver)
	err := d.n.Freeze(t.Context(), d.req.ID) // says what has become of it
	if err != nil {
		t.Errorf("%s: %v", point, err)
	}
	files, err := os.ReadDir(filepath.Join(d.n.dir, "freezes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(files) > 0 {
		t.Errorf("%s: left %v, %v", point, files, err)
	}
}
