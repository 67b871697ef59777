package lvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
)

// The files in testdata are reports of LVM 2.03.31.
func golden(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// client returns a client of two devices, and the directory of its links.
func client(t *testing.T) (*hostexectest.Fake, Client, string) {
	t.Helper()
	run, links := hostexectest.New(t), t.TempDir()
	c := New(run, links)
	c.SetDevices([]string{"/dev/a", "/dev/b"})
	return run, c, links
}

func TestReports(t *testing.T) {
	run, c, links := client(t)
	run.On("lvs").Return(golden(t, "lvs.json"))
	lvs, err := c.LVs(t.Context(), "nearflash-0123456789")
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]LV{}
	for _, lv := range lvs {
		byName[lv.Name] = lv
	}
	data := byName["pvc-a.data"]
	data.UUID = ""
	want := LV{
		VG: "nearflash-0123456789", Name: "pvc-a.data", SizeBytes: 64 << 20, Tags: []string{"nearflash.gen=3", "nearflash.uid=u1"},
		Active: true, Major: 254, Minor: 1, SegType: "striped", SyncPercent: -1, Open: true,
	}
	if diff := cmp.Diff(want, data); diff != "" {
		t.Errorf("logical volume differs (-want +got):\n%s", diff)
	}
	if lv := byName["off"]; lv.Active || lv.Minor != -1 {
		t.Errorf("an inactive volume: %+v", lv)
	}
	if lv := byName["pvc-b.data"]; lv.SegType != "raid1" || lv.SyncPercent != 100 || lv.SyncAction != SyncIdle {
		t.Errorf("a mirror: %+v", lv)
	}
	if want := fmt.Sprintf("--devices %s/dev/a,%[1]s/dev/b", links); !strings.Contains(run.Lines()[0], want) {
		t.Errorf("%q lacks %q: LVM would look at origins", run.Lines()[0], want)
	}

	run.On("vgs").Return(golden(t, "vgs.json")).Once()
	run.On("vgs").Return(golden(t, "vgs-missing.json")).Once()
	whole, err := c.VG(t.Context(), "nearflash-0123456789")
	if err != nil || whole.SizeBytes != 2139095040 || whole.FreeBytes != 1702887424 || whole.ExtentBytes != 4<<20 || whole.MissingPVs != 0 || whole.Partial {
		t.Errorf("whole group: %+v, %v", whole, err)
	}
	part, err := c.VG(t.Context(), "nearflash-0123456789")
	if err != nil || part.MissingPVs != 1 || !part.Partial {
		t.Errorf("group with a missing device: %+v, %v", part, err)
	}

	run.On("pvs").Return(strings.ReplaceAll(golden(t, "pvs.json"), "/dev/", links+"/dev/"))
	pvs, err := c.PVs(t.Context(), []string{"/dev/ubdb", "/dev/ubdc"})
	if err != nil || len(pvs) != 2 || pvs[0].Device != "/dev/ubdb" || pvs[0].VG != "nearflash-0123456789" || pvs[0].Missing {
		t.Errorf("physical volumes: %+v, %v", pvs, err)
	}
}

func TestMissingGroup(t *testing.T) {
	run, c, _ := client(t)
	// With a JSON report LVM's words are in the report, not on stderr.
	run.On("lvs").Do(failWithReport(golden(t, "lvs-nosuch.json")))
	if _, err := c.LVs(t.Context(), "nosuch"); !errors.Is(err, ErrNotFound) {
		t.Errorf("LVs: %v, want ErrNotFound", err)
	}
	if err := c.RemoveLVs(t.Context(), "nosuch", "a"); err != nil {
		t.Errorf("RemoveLVs of a missing group: %v", err)
	}
	run.On("vgs").Return(golden(t, "vgs.json"))
	if _, err := c.VG(t.Context(), "nosuch"); !errors.Is(err, ErrNotFound) {
		t.Errorf("VG: %v, want ErrNotFound", err)
	}
	if _, err := New(run, t.TempDir()).VG(t.Context(), "x"); !errors.Is(err, ErrNoDevices) {
		t.Errorf("without devices: %v, want ErrNoDevices", err)
	}
}

// TestErrorsOfLVM reads LVM's real words.
func TestErrorsOfLVM(t *testing.T) {
	wants := map[string]error{
		"lvcreate --devices /dev/ubdb,/dev/ubdc --yes -Wn -Zn -n pvc-a.data": ErrExists,
		"lvcreate --devices /dev/ubdb,/dev/ubdc --yes -Wn -Zn -n big -L":     ErrNoSpace,
		"lvcreate --devices /dev/ubdb,/dev/ubdc --yes -Wn -Zn -n b -L":       ErrNotFound,
		"lvremove": ErrNotFound,
		"lvchange": ErrNotFound,
	}
	matched := 0
	for part := range strings.SplitSeq(golden(t, "lvm-errors.txt"), "## ") {
		command, rest, _ := strings.Cut(part, "\n")
		text, _, _ := strings.Cut(rest, "rc=")
		for prefix, want := range wants {
			if strings.HasPrefix(command, prefix) {
				matched++
				if err := classify(hostexec.NewExitError(hostexec.Command("x"), 5, []byte(text))); !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", command, err, want)
				}
			}
		}
	}
	if matched != len(wants) {
		t.Errorf("%d of %d cases found in testdata", matched, len(wants))
	}
	busy := hostexec.NewExitError(hostexec.Command("x"), 5, []byte("  Logical volume vg/lv is used by another device.\n"))
	if err := classify(busy); !errors.Is(err, ErrBusy) {
		t.Errorf("open volume: %v, want ErrBusy", err)
	}
}

// TestPlacement: LVM is told where, and a volume grows where it is.
func TestPlacement(t *testing.T) {
	run, c, links := client(t)
	create := fmt.Sprintf("lvcreate --devices %s/dev/a,%[1]s/dev/b --yes --wipesignatures n --zero n --name x --size 4194304b", links)
	run.On(create+" --stripes 2").Fail(5, "  Insufficient suitable allocatable extents for logical volume x\n").Once()
	if err := c.CreateLV(t.Context(), CreateSpec{VG: "vg", Name: "x", SizeBytes: 4 << 20, Stripes: 2}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("stripes without room: %v, want ErrNoSpace", err)
	}
	// LVM has other words for devices that are named.
	run.On(create+" --stripes 2").Fail(5, "  Insufficient free space: 510 extents needed, but only 255 available\n").Once()
	if err := c.CreateLV(t.Context(), CreateSpec{VG: "vg", Name: "x", SizeBytes: 4 << 20, Stripes: 2}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("no room on the devices: %v, want ErrNoSpace", err)
	}
	run.On(fmt.Sprintf("%s vg %s/dev/b --config", create, links)).Once()
	if err := c.CreateLV(t.Context(), CreateSpec{VG: "vg", Name: "x", SizeBytes: 4 << 20, Stripes: 1, Devices: []string{"/dev/b"}}); err != nil {
		t.Error(err)
	}
	run.On("lvs").Return(golden(t, "lvs.json"))
	run.On(fmt.Sprintf("lvextend --devices %s/dev/a,%[1]s/dev/b --alloc cling --size 134217728b", links)).Once()
	if err := c.ExtendLV(t.Context(), "nearflash-0123456789", "pvc-a.data", 128<<20); err != nil {
		t.Error(err)
	}
}

// No command leaves a copy of a group's metadata in the container, and none looks for
// devices below /dev, where there are several names for each volume.
func TestSettingsOfAll(t *testing.T) {
	run, c, links := client(t)
	for _, tool := range []string{"vgcreate", "vgextend", "lvcreate", "lvchange", "lvremove"} {
		run.On(tool)
	}
	run.On("lvs").Return(golden(t, "lvs.json"))
	ctx := t.Context()
	lvs, err := c.LVs(ctx, "vg")
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"create": c.CreateVG(ctx, "vg", []string{"/dev/a"}), "extend": c.ExtendVG(ctx, "vg", []string{"/dev/b"}),
		"allocate": c.CreateLV(ctx, CreateSpec{VG: "vg", Name: "x", SizeBytes: 4 << 20}), "activate": c.Activate(ctx, "vg", "x"),
		"tag": c.ChangeTags(ctx, "vg", []string{"a"}, nil, "x"), "remove": c.RemoveLVs(ctx, "vg", lvs[0].Name),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, line := range run.Lines() {
		if want := fmt.Sprintf("backup{backup=0 archive=0} devices{scan=[%q] obtain_device_list_from_udev=0}", links); !strings.HasSuffix(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	for tool, want := range map[string]string{"vgcreate": " vg " + links + "/dev/a ", "vgextend": " vg " + links + "/dev/b "} {
		if !slices.ContainsFunc(run.Lines(), func(line string) bool { return strings.HasPrefix(line, tool) && strings.Contains(line, want) }) {
			t.Errorf("no %s of%s in %q", tool, want, run.Lines())
		}
	}
	if len(run.Lines()) != 8 {
		t.Errorf("%d commands, want 8: %q", len(run.Lines()), run.Lines())
	}
}

// What is at the place of a link is not taken for the device.
func TestLinkElsewhere(t *testing.T) {
	_, c, links := client(t)
	if err := os.Mkdir(filepath.Join(links, "dev"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/z", filepath.Join(links, "dev", "b")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.LVs(t.Context(), "vg"); err == nil || !strings.Contains(err.Error(), `leads to "/dev/z"`) {
		t.Errorf("a link to another device: %v", err)
	}
}

func TestSignatures(t *testing.T) {
	got, err := parseSignatures([]byte(golden(t, "wipefs-pv.json")))
	if err != nil || len(got) != 1 || got[0] != "LVM2_member" {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := parseSignatures(nil); err != nil || len(got) != 0 {
		t.Errorf("blank device: %v, %v", got, err)
	}
}

func FuzzReport(f *testing.F) {
	for _, name := range []string{"lvs.json", "vgs-missing.json", "pvs.json", "lvs-empty.json"} {
		f.Add([]byte(golden(f, name)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseReport(b)
		if err != nil {
			if !errors.Is(err, ErrParse) {
				t.Errorf("error %v does not wrap ErrParse", err)
			}
			return
		}
		for _, read := range []func() error{
			func() error { _, err := r.lvs(); return err },
			func() error { _, err := r.vgs(); return err },
			func() error { _, err := r.pvs(); return err },
		} {
			if err := read(); err != nil && !errors.Is(err, ErrParse) {
				t.Errorf("error %v does not wrap ErrParse", err)
			}
		}
	})
}

func failWithReport(report string) hostexectest.Handler {
	return func(_ context.Context, c hostexectest.Call) (string, error) {
		if !json.Valid([]byte(report)) {
			panic("testdata is not JSON")
		}
		return report, hostexec.NewExitError(hostexec.Cmd{Name: c.Name, Args: c.Args}, 5, nil)
	}
}
