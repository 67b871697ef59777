//go:build kernel

package kernel

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelHotSet: a node without any retained cache fills its cache from the origin.
func TestKernelHotSet(t *testing.T) {
	v, data := newMachine(t).hotSet("hot", cached(volume.ModeWritethrough, 64*mib))
	v.stage()
	check(t, v.device(), data, 0)
	v.wantHydrated()
	v.leaveHot(data, 16*mib)
}

// TestKernelHotSetStream is TestKernelHotSet by the steps of a stream, as where there is no dm-clone:
// what is written meanwhile stays, and an end of the plugin in the middle costs the copy alone.
func TestKernelHotSetStream(t *testing.T) {
	v, data := newMachine(t).hotSet("hot", streaming(cached(volume.ModeWriteback, 64*mib)))
	v.stage()
	if e, err := v.b.Journal.Load(string(v.req.ID)); err != nil || !e.Streams() || e.Hydration.Stream.Source != nil || e.Mode != volume.ModeWritethrough {
		t.Fatalf("no stream from the origin: %+v, %v", e, err)
	}
	check(t, v.device(), data, 0)
	late := pattern(6, 4*mib)
	written := make(chan error, 1)
	go func() { written <- writePaced(v.device(), late, 12*mib) }() // while the origin is read
	if !v.killAt("stream.swapped", order{Lessor: v.a.dir, Hydration: true}) {
		t.Error("the plugin was not killed between the steps of the stream")
	}
	mustPass(t, "write", <-written)
	copy(data[12*mib:], late)
	v.endStream(data)
	v.leaveHot(data, 12*mib)
}

// endStream has the next process of the node go on with a stream to its end, after which the volume is
// in the mode that its class asks for.
func (v *movers) endStream(data []byte) {
	t := v.m.t
	t.Helper()
	mustPass(t, "repair", v.b.Repair(t.Context()))
	check(t, v.device(), data, 0)
	v.wantStreamed()
	_, err := v.b.Change(t.Context())
	mustPass(t, "change", err)
	if e, err := v.b.Journal.Load(string(v.req.ID)); err != nil || e.Mode != volume.ModeWriteback {
		t.Errorf("after the stream: %+v, %v", e, err)
	}
}

// writePaced writes piece by piece, with pauses, as a pod that does other things too.
func writePaced(path string, data []byte, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	const piece = 64 << 10
	for i := 0; i < len(data); i += piece {
		if _, err := f.WriteAt(data[i:i+piece], at+int64(i)); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return f.Sync()
}

// hotSet is a volume that has come to a node, and has nothing there but its hot set.
func (m *machine) hotSet(name string, spec volume.Spec) (v *movers, data []byte) {
	t := m.t
	t.Helper()
	v = newMovers(t, m, name, spec)
	sets := &hotSets{}
	v.a.HotSet().Store, v.b.HotSet().Store = sets, sets
	v.stage()
	data = v.warmUp(5)
	// While it is attached, and the kernel has written no hints yet.
	v.a.Now = func() time.Time { return time.Now().Add(time.Hour) }
	v.a.HotSet().Pass(t.Context())
	if len(sets.set.Blocks) == 0 {
		t.Error("no hot set of the attached volume was stored")
	}
	v.a.Now, sets.set = time.Now, volume.HotSet{}
	v.unstage()
	later := func() time.Time { return time.Now().Add(time.Minute) }
	v.a.Now = later
	v.a.HotSet().Pass(t.Context())
	if len(sets.set.Blocks) == 0 {
		t.Fatal("no hot set was stored")
	}
	v.publishTo(v.b, otherName)
	mustPass(t, "record", v.rec.update(v.req.ID, func(r *fileRecord) error { r.Volume.WarmSource = nil; return nil }))
	return v, data
}

// leaveHot wants the first bytes, which the hot set named, to be cached, and takes the volume away.
func (v *movers) leaveHot(data []byte, cached int64) {
	t := v.m.t
	t.Helper()
	if rate := v.hitRate(1000, cached); rate < 0.95 {
		t.Errorf("hit rate after the hydration from the origin: %.3f", rate)
	}
	check(t, v.device(), data, 0)
	v.unstage()
	v.remove()
	mustPass(t, "repair", v.a.Repair(t.Context()))
}

type hotSets struct{ set volume.HotSet }

func (h *hotSets) Load(context.Context, volume.ID, string) (volume.HotSet, error) {
	if len(h.set.Blocks) == 0 {
		return h.set, volume.ErrNotFound
	}
	return h.set, nil
}

func (h *hotSets) Store(_ context.Context, _ volume.ID, _ string, s volume.HotSet) error {
	h.set = s
	return nil
}
