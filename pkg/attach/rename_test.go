package attach_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

// earlier makes of an attached volume what a version left whose journal had format 2, and that
// joined names by a dash.
func (h *host) earlier() {
	h.w.t.Helper()
	dm := h.kernel.Client(nil)
	for _, now := range layout.Devices(volumeID)[1:] {
		was := strings.Replace(now, ".exported", ".lent", 1)
		was = strings.Replace(was, ".", "-", 1)
		err := dm.Rename(h.w.ctx, now, was)
		if !errors.Is(err, devmapper.ErrNotExist) {
			h.w.must("rename", err)
		}
	}
	text, err := os.ReadFile(h.gate.journal)
	h.w.must("journal", err)
	h.w.must("journal", os.WriteFile(h.gate.journal, bytes.Replace(text, []byte(`"version":6`), []byte(`"version":2`), 1), 0o600))
}

// devices are the names of the volume's devices, sorted.
func (h *host) devices() []string {
	h.w.t.Helper()
	infos, err := h.kernel.Client(nil).Info(h.w.ctx, layout.DevicePrefix)
	h.w.must("devices", err)
	var names []string
	for name := range infos {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// upgraded is a life in which the plugin of an earlier version is replaced below the pod.
func (l *life) upgraded(n int) {
	l.t.Helper()
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	l.a.podWrites(1, 0, 1, 2)
	want := l.a.devices()
	l.a.earlier()
	l.a.start()
	l.next = []disaster{{steps: n}}
	l.arm()
	l.persist(l.a, "adopt the names", func(p *plugin) error {
		p.AdoptNames(l.ctx)
		return p.Stage(l.ctx, req)
	})
	if got := l.a.devices(); !slices.Equal(got, want) {
		l.t.Fatalf("devices %v, want %v (ended: %q)", got, want, l.ended)
	}
	text, err := os.ReadFile(l.a.gate.journal)
	l.must("journal", err)
	if !strings.Contains(string(text), `"version":6`) {
		l.t.Fatalf("a plugin of before would read the journal: %s", text)
	}
	l.a.podReads()
	l.a.podWrites(2, 1, 3)
	l.leave(l.a)
}

// TestUpgrade: devices of an earlier version get their names of now below a pod, whatever
// step the plugin is ended at (states.md, Names on the host).
func TestUpgrade(t *testing.T) {
	for _, mode := range cacheModes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n++ {
				l := newLife(t, mode)
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					l.t = t
					l.upgraded(n)
				})
				if len(l.ended) == 0 || t.Failed() {
					if n < 3 {
						t.Error("it was ended nowhere")
					}
					return
				}
			}
		})
	}
}

// A plugin of before must refuse the entry as soon as one device has its name of now.
func TestUpgradeRaisesFormatFirst(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	l.must("stage", l.a.Stage(l.ctx, l.publish(l.a.name)))
	l.a.earlier()
	l.a.start()
	l.a.UseDM(refusing{l.a.DM})
	l.a.AdoptNames(l.ctx)
	text, err := os.ReadFile(l.a.gate.journal)
	l.must("journal", err)
	if !strings.Contains(string(text), `"version":6`) {
		t.Errorf("the first rename is before the journal's format: %s", text)
	}
	if err := l.a.Unstage(l.ctx, volumeID, staging); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("unstage with devices that have their earlier names: %v, want ErrUnavailable", err)
	}
}

var errRefused = errors.New("refused")

type refusing struct{ devmapper.Client }

func (refusing) Rename(context.Context, string, string) error { return errRefused }

// What a command of the plugin of before may still make under an earlier name is waited for,
// and nothing is done to the volume meanwhile.
func TestUpgradeAwaitsCommands(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	want := l.a.devices()
	l.a.start()
	dm := &running{Client: l.a.DM, name: layout.EarlierDevices(volumeID)[0]}
	l.a.UseDM(dm)
	l.a.AdoptNames(l.ctx)
	if err := l.a.Stage(l.ctx, req); !errors.Is(err, volume.ErrUnavailable) || !errors.Is(err, hostexec.ErrRuns) {
		t.Errorf("stage while a command works on %s: %v, want ErrUnavailable", dm.name, err)
	}
	l.a.earlier() // what the command makes
	dm.name = ""
	l.must("stage", l.a.Stage(l.ctx, req))
	if got := l.a.devices(); !slices.Equal(got, want) {
		t.Errorf("devices %v, want %v", got, want)
	}
	l.leave(l.a)
}

// Devices of an earlier version that no entry speaks of do not stand in the way of the next
// stage.
func TestUpgradeWithoutJournal(t *testing.T) {
	for _, mode := range cacheModes {
		l := newLife(t, mode)
		req := l.publish(l.a.name)
		l.must("stage", l.a.Stage(l.ctx, req))
		l.a.podWrites(1, 0, 1)
		l.a.earlier()
		l.must("unmount", l.a.FS.Unmount(l.ctx, staging))
		l.must("lose the journal", os.Remove(l.a.gate.journal))
		l.a.start()
		l.a.AdoptNames(l.ctx)
		l.persist(l.a, "stage", func(p *plugin) error { return p.Stage(l.ctx, req) })
		l.a.podReads()
		l.leave(l.a)
	}
}

// A volume is not held up by what is wrong with another one, not even one whose device has
// the name of its own.
func TestUpgradeOfAnother(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	dm := l.a.kernel.Client(nil)
	name := layout.Device(volumeID, layout.Top)
	_, err := dm.Create(l.ctx, name, layout.UUID(volume.Fence{UID: "other"}, layout.Data), devmapper.LinearTable(8, "259:0"))
	l.must("create", err)
	l.a.AdoptNames(l.ctx)
	l.a.UseDM(&running{Client: l.a.DM, name: "nf-another-data"})
	req := l.publish(l.a.name)
	if err := l.a.Repair(l.ctx); err != nil {
		t.Errorf("repair: %v", err)
	}
	if info, err := dm.Info(l.ctx, name); err != nil || info[name].HasLive != true {
		t.Errorf("the other volume's device: %+v, %v", info, err)
	}
	l.must("the other volume leaves", dm.Remove(l.ctx, name))
	l.must("stage", l.a.Stage(l.ctx, req))
	l.leave(l.a)
}

// running is a host on which a command still works on a device.
type running struct {
	devmapper.Client
	name string
}

func (r *running) Await(ctx context.Context, names ...string) error {
	if slices.Contains(names, r.name) {
		return hostexec.ErrRuns
	}
	return r.Client.Await(ctx, names...)
}
