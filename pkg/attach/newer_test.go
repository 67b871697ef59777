package attach

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// What these do not have is not called for a volume that is left alone: the call of a
// nil interface ends the test.
type (
	fewLVs struct {
		lvm.Client
		lvs     []lvm.LV
		removed []string
	}
	noDevices  struct{ devmapper.Client }
	noMounts   struct{ Filesystem }
	readyPool  struct{}
	cleanOwner struct {
		volume.Records
		fence volume.Fence
	}
)

func (l *fewLVs) LVs(context.Context, string) ([]lvm.LV, error) { return l.lvs, nil }
func (l *fewLVs) RemoveLVs(_ context.Context, _ string, names ...string) error {
	l.removed = append(l.removed, names...)
	return nil
}

func (noMounts) Unmount(context.Context, string) error { return nil }
func (noMounts) Release(context.Context, string) error { return nil }

func (noDevices) Await(context.Context, ...string) error { return nil }

func (noDevices) Info(context.Context, string) (map[string]devmapper.Info, error) {
	return nil, nil
}

func (readyPool) Deletions(context.Context) ([]volume.Deletion, error) { return nil, nil }

func (readyPool) View() pool.View { return pool.View{Ready: true, VG: "vg"} }

func (c cleanOwner) Get(_ context.Context, id volume.ID) (volume.Volume, error) {
	return volume.Volume{ID: id, Fence: c.fence, Published: true, Spec: volume.Spec{Mode: volume.ModeWritethrough}}, nil
}

// TestEntryOfANewerVersion: after a downgrade a node leaves alone what the newer
// plugin wrote and it cannot read: no request is carried out on the volume, and its
// cache is no orphan. The volumes beside it are repaired all the same.
func TestEntryOfANewerVersion(t *testing.T) {
	const id = volume.ID("pvc-1")
	for name, text := range map[string]string{
		"format":     `{"version":11,"key":"pvc-1","record":{"id":"pvc-1","state":"Staged","mode":"writeback","activated":true}}`,
		"state":      `{"version":1,"key":"pvc-1","record":{"id":"pvc-1","state":"Rebalancing","mode":"writeback","activated":true}}`,
		"cache mode": `{"version":1,"key":"pvc-1","record":{"id":"pvc-1","state":"Staged","mode":"writeback-mirrored","activated":true}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "pvc-1.json")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			entries, err := journal.Open[state.Entry](dir)
			if err != nil {
				t.Fatal(err)
			}
			fence := volume.Fence{UID: "u", Generation: 3, Node: "a"}
			tags := layout.Tags(fence, volume.ModeWritethrough)
			ssd := &fewLVs{lvs: []lvm.LV{
				{Name: "pvc-1.data", Tags: tags}, {Name: "pvc-1.meta", Tags: tags},
				{Name: "orphan.data", Tags: tags}, {Name: "orphan.meta", Tags: tags},
			}}
			a := New(Config{Node: "a", Boot: "b"}, Deps{
				DM: noDevices{}, FS: noMounts{}, LVM: ssd, Journal: entries, Records: cleanOwner{fence: fence}, Pool: readyPool{}, Locks: &keylock.Set{},
			})
			for doing, err := range map[string]error{
				"stage":   a.Stage(t.Context(), volume.StageRequest{ID: id, Publication: volume.Publication{Fence: fence}}),
				"unstage": a.Unstage(t.Context(), id, filepath.Join(dir, "staging")),
				"repair":  a.Repair(t.Context()),
			} {
				if !errors.Is(err, journal.ErrNewer) || !strings.Contains(err.Error(), "pvc-1") {
					t.Errorf("%s: %v, want ErrNewer with the volume's name", doing, err)
				}
			}
			if got := strings.Join(ssd.removed, " "); got != "orphan.meta orphan.fill orphan.data" {
				t.Errorf("removed from the SSD: %q, want what has no entry alone", got)
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != text {
				t.Errorf("the entry is now %q, %v", b, err)
			}
		})
	}
}
