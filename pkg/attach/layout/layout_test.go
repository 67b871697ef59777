package layout

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestScan(t *testing.T) {
	tags := []string{"nearflash.uid=u", "nearflash.gen=3", "nearflash.node=a", "nearflash.mode=writeback", "nearflash.origin=100"}
	lvs := []lvm.LV{
		{Name: "two.data", Tags: tags}, {Name: "two.meta", Tags: append([]string{"nearflash.rescued=now"}, tags...)},
		{Name: "one.data", Tags: tags}, {Name: "three.meta", Tags: tags}, {Name: "three.data"}, {Name: "root"}, {Name: "x.y"},
		{Name: "four.data", Tags: tags}, {Name: "four.meta", Tags: tags}, {Name: "four.fill", Tags: tags},
	}
	want := map[volume.ID]struct {
		whole, hydrating bool
		rescued          string
	}{"one": {}, "two": {whole: true, rescued: "now"}, "three": {}, "four": {whole: true, hydrating: true}}
	got := Scan(lvs)
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for _, c := range got {
		w := want[c.ID]
		if c.Whole() != w.whole || c.Hydrating() != w.hydrating || c.Rescued != w.rescued {
			t.Errorf("%s: %+v, want %+v", c.ID, c, w)
		}
		if c.Whole() && (c.OriginBytes != 100 || c.Mode != volume.ModeWriteback || c.Fence != volume.Fence{UID: "u", Generation: 3, Node: "a"}) {
			t.Errorf("%s: %+v", c.ID, c)
		}
	}
}

// No device of a volume has a name that another volume's may have.
func TestDevices(t *testing.T) {
	for _, p := range lower {
		if _, err := volume.ParseID(strings.TrimPrefix(Device("db", p), DevicePrefix)); err == nil {
			t.Errorf("%s may be the top of another volume", Device("db", p))
		}
	}
	if !IsData(Device("db", Data)) || IsData(Device("db", Origin)) || IsData(Device("db-data", Top)) {
		t.Error("the data device alone is one")
	}
}

func TestActivationTags(t *testing.T) {
	now := volume.Activation{ID: "b", Count: 2}
	tags := append(Tags(volume.Fence{UID: "u", Generation: 3, Node: "a"}, volume.ModeWriteback), ActivationTags(now)...)
	left := []string{"nearflash.activation=a", "nearflash.count=1", "nearflash.count=2"}
	c := Find([]lvm.LV{{Name: "v.data", Tags: append(left, tags...)}, {Name: "v.meta", Tags: tags}}, "v")
	if want := (volume.Activation{ID: "b", Generation: 3, Count: 2}); c.Activation != want {
		t.Errorf("activation %+v, want %+v: of several counts the highest holds", c.Activation, want)
	}
	if diff := cmp.Diff([]string{"nearflash.activation=a", "nearflash.count=1"}, c.OtherActivations(now)); diff != "" {
		t.Errorf("tags to be taken away: %s", diff)
	}
}

// What volumes of a version before called each other's names, the UUID tells apart.
func TestRenames(t *testing.T) {
	info := func(uid string, p Part) devmapper.Info {
		return devmapper.Info{UUID: UUID(volume.Fence{UID: uid}, p)}
	}
	infos := map[string]devmapper.Info{
		"nf-db":             info("1", Top),
		"nf-db-data":        info("2", Top), // of the volume db-data
		"nf-db-data-data":   info("2", Data),
		"nf-db-data-origin": info("2", Origin),
		"nf-db.origin":      info("1", Origin),
		"nf-db-lent":        info("1", Exported),
		"nf-y.lent":         info("4", Exported),
		"nf-z.lent":         info("5", Top),
		"nf-x-path":         info("3-data", Path), // a record's UID may be anything
		"nf-alien-data":     {UUID: "LVM-data"},
		"nf-alien-origin":   {},
	}
	want := map[volume.ID][]Rename{
		"db-data": {{Data, "nf-db-data-data", "nf-db-data.data"}, {Origin, "nf-db-data-origin", "nf-db-data.origin"}},
		"db":      {{Exported, "nf-db-lent", "nf-db.exported"}},
		"y":       {{Exported, "nf-y.lent", "nf-y.exported"}},
		"x":       {{Path, "nf-x-path", "nf-x.path"}},
	}
	got := Renames(infos)
	for _, list := range got {
		slices.SortFunc(list, func(x, y Rename) int { return strings.Compare(x.From, y.From) })
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	infos = map[string]devmapper.Info{}
	for _, name := range Devices("db") {
		infos[name] = info("1", Top)
	}
	if got := Renames(infos); len(got) > 0 {
		t.Errorf("devices with their names are renamed: %v", got)
	}
}
