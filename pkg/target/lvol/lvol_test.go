package lvol_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/target/lvol/lvoltest"
)

const mib = 1 << 20

func config() lvol.Config {
	return lvol.Config{VolumeGroup: lvoltest.VG, ThinPool: lvoltest.Pool, MaxOvercommit: 2}
}

func open(t *testing.T, l *lvoltest.LVM) *lvol.Manager {
	t.Helper()
	m, err := lvol.Open(t.Context(), config(), l, l)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestCreateExpandDelete(t *testing.T) {
	for _, thin := range []bool{true, false} {
		name := map[bool]string{true: "thin", false: "thick"}[thin]
		t.Run(name, func(t *testing.T) {
			l := lvoltest.New(64)
			m := open(t, l)
			v, err := m.Create(t.Context(), "v1", 9*mib, thin)
			if err != nil {
				t.Fatal(err)
			}
			if v.SizeBytes != 12*mib || v.State != lvol.Ready || v.Thin != thin || v.Path != "/dev/vg0/nf-v1" {
				t.Errorf("got %+v", v)
			}
			if v, err = m.Expand(t.Context(), v, 30*mib); err != nil || v.SizeBytes != 32*mib {
				t.Errorf("expand: %+v, %v", v, err)
			}
			if v, err = m.Expand(t.Context(), v, 10*mib); err != nil || v.SizeBytes != 32*mib {
				t.Errorf("expand to less: %+v, %v", v, err)
			}
			if leaks := l.Leaks(); leaks != nil {
				t.Errorf("old data is visible in %v", leaks)
			}
			if err := m.Delete(t.Context(), v); err != nil {
				t.Fatal(err)
			}
			if err := m.Delete(t.Context(), v); err != nil {
				t.Errorf("second delete: %v", err)
			}
			if left := l.Names(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if _, err := m.Get(t.Context(), "v1"); !errors.Is(err, lvol.ErrNotFound) {
				t.Errorf("get: %v", err)
			}
		})
	}
}

// TestExpandInPieces: what a thick volume is given need not be in one piece.
func TestExpandInPieces(t *testing.T) {
	l := lvoltest.New(10)
	m := open(t, l)
	var vols []lvol.Volume
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		v, err := m.Create(t.Context(), name, 8*mib, false)
		if err != nil {
			t.Fatal(err)
		}
		vols = append(vols, v)
	}
	for _, v := range []lvol.Volume{vols[1], vols[3]} {
		if err := m.Delete(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	v, err := m.Expand(t.Context(), vols[0], 24*mib)
	if err != nil || v.SizeBytes != 24*mib {
		t.Fatalf("expand: %+v, %v", v, err)
	}
	if leaks := l.Leaks(); leaks != nil {
		t.Errorf("old data is visible in %v", leaks)
	}
	if all, err := m.List(t.Context()); err != nil || len(all) != 3 {
		t.Errorf("%d volumes are listed, want 3: %v", len(all), err)
	}
}

func TestErrors(t *testing.T) {
	l := lvoltest.New(8)
	l.AddForeign("nf-alien")
	m := open(t, l)
	v, err := m.Create(t.Context(), "v1", 4*mib, false)
	if err != nil {
		t.Fatal(err)
	}
	l.Busy["nf-v1"] = true
	long := strings.Repeat("a-", 61)
	cases := map[string]struct {
		run  func() error
		want error
	}{
		"thick without room": {func() error { _, err := m.Create(t.Context(), "v2", 1<<30, false); return err }, lvol.ErrNoSpace},
		"thin beyond limit":  {func() error { _, err := m.Create(t.Context(), "v2", 3<<30, true); return err }, lvol.ErrNoSpace},
		"expand beyond room": {func() error { _, err := m.Expand(t.Context(), v, 1<<30); return err }, lvol.ErrNoSpace},
		"name taken":         {func() error { _, err := m.Create(t.Context(), "v1", 4*mib, false); return err }, lvol.ErrExists},
		"foreign name":       {func() error { _, err := m.Get(t.Context(), "alien"); return err }, lvol.ErrForeign},
		"name too long":      {func() error { _, err := m.Create(t.Context(), long, 4*mib, true); return err }, lvol.ErrNameTooLong},
		"in use":             {func() error { return m.Delete(t.Context(), v) }, lvol.ErrBusy},
		"not there":          {func() error { _, err := m.Get(t.Context(), "none"); return err }, lvol.ErrNotFound},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := tc.run(); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestOpenRefusesAPoolThatDoesNotZero(t *testing.T) {
	l := lvoltest.New(1)
	l.PoolZero = ""
	_, err := lvol.Open(t.Context(), config(), l, l)
	if err == nil || !strings.Contains(err.Error(), "lvchange --zero y vg0/pool") {
		t.Errorf("got %v, want the remedy", err)
	}
}

func TestGenerationNeverFalls(t *testing.T) {
	l := lvoltest.New(8)
	m := open(t, l)
	v, err := m.Create(t.Context(), "v1", 4*mib, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []int64{3, 2, 7, 7, 1} {
		if v, err = m.SetGeneration(t.Context(), v, g); err != nil {
			t.Fatal(err)
		}
	}
	if v, err = m.Get(t.Context(), "v1"); err != nil || v.Generation != 7 {
		t.Errorf("got %+v, %v, want generation 7", v, err)
	}
}

func TestSerialIsOfTheVolumeNotTheName(t *testing.T) {
	l := lvoltest.New(8)
	m := open(t, l)
	first, err := m.Create(t.Context(), "v1", 4*mib, true)
	if err != nil {
		t.Fatal(err)
	}
	grown, err := m.Expand(t.Context(), first, 8*mib)
	if err != nil || grown.Serial() != first.Serial() {
		t.Errorf("serial changed by growing: %v", err)
	}
	if err := m.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	second, err := m.Create(t.Context(), "v1", 4*mib, true)
	if err != nil {
		t.Fatal(err)
	}
	if first.Serial() == second.Serial() || len(second.Serial()) != 32 {
		t.Errorf("serials %s and %s", first.Serial(), second.Serial())
	}
}

// TestCrashAnywhere ends the work before each single step of a life of a volume,
// cleans up as a start does, and looks whether anybody could read old data at any
// time, and whether what is not finished is gone.
func TestCrashAnywhere(t *testing.T) {
	crash := errors.New("crash")
	for stop := 0; ; stop++ {
		l := lvoltest.New(16)
		m := open(t, l)
		left := stop
		l.Step = func(change string) error {
			if leaks := l.Leaks(); leaks != nil {
				t.Errorf("before %q: old data visible in %v", change, leaks)
			}
			if left == 0 {
				return crash
			}
			left--
			return nil
		}
		err := life(t, m)
		if err != nil && !errors.Is(err, crash) {
			t.Fatal(err)
		}
		l.Step = nil
		l.Reboot()
		names, cerr := m.Unfinished(t.Context())
		for _, name := range names {
			cerr = errors.Join(cerr, m.CleanUp(t.Context(), name))
		}
		if cerr != nil {
			t.Errorf("stopped at %d: clean up: %v", stop, cerr)
		}
		if names, cerr = m.Unfinished(t.Context()); len(names) > 0 || cerr != nil {
			t.Errorf("stopped at %d: unfinished after the clean up: %v, %v", stop, names, cerr)
		}
		if leaks := l.Leaks(); leaks != nil {
			t.Errorf("stopped at %d: old data visible in %v", stop, leaks)
		}
		if slices.ContainsFunc(l.Names(), func(n string) bool { return strings.HasPrefix(n, "nfgrow-") }) {
			t.Errorf("stopped at %d: left behind %v", stop, l.Names())
		}
		if err == nil {
			if stop < 10 {
				t.Errorf("only %d steps: the test did not see them", stop)
			}
			return
		}
	}
}

func life(t *testing.T, m *lvol.Manager) error {
	t.Helper()
	v, err := m.Create(t.Context(), "a", 8*mib, false)
	if err != nil {
		return err
	}
	if v, err = m.Expand(t.Context(), v, 20*mib); err != nil {
		return err
	}
	if err := m.Delete(t.Context(), v); err != nil {
		return err
	}
	if v, err = m.Create(t.Context(), "a", 24*mib, false); err != nil {
		return err
	}
	_, err = m.Expand(t.Context(), v, 48*mib)
	return err
}

func TestCapacity(t *testing.T) {
	l := lvoltest.New(16)
	m := open(t, l)
	if _, err := m.Create(t.Context(), "a", 512*mib, true); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), "b", 16*mib, false); err != nil {
		t.Fatal(err)
	}
	l.PoolPercent = 25
	thin, err := m.Capacity(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	want := lvol.Capacity{AvailableBytes: 1536 * mib, MaximumBytes: 1536 * mib, TotalBytes: 1024 * mib, UsedBytes: 256 * mib, MetadataPercent: 10}
	if diff := cmp.Diff(want, thin); diff != "" {
		t.Errorf("thin (-want +got):\n%s", diff)
	}
	thick, err := m.Capacity(t.Context(), false)
	if err != nil || thick.AvailableBytes != 48*mib {
		t.Errorf("thick: %+v, %v", thick, err)
	}
	l.PoolPercent = 96
	if thin, err = m.Capacity(t.Context(), true); err != nil || thin.AvailableBytes != 0 {
		t.Errorf("nearly full pool: %+v, %v", thin, err)
	}
	if problems, err := m.Problems(t.Context()); err != nil || len(problems) != 1 {
		t.Errorf("problems %q, %v", problems, err)
	}
}

// The words are those of LVM 2.03.31.
func TestRealMessages(t *testing.T) {
	cases := map[string]struct {
		stderr string
		want   error
	}{
		"lvcreate": {"  Volume group \"vg0\" has insufficient free space (103 extents): 2560 required.\n", lvol.ErrNoSpace},
		"lvextend": {"  Insufficient free space: 2535 extents needed, but only 103 available\n", lvol.ErrNoSpace},
		"taken":    {"  Rounding up size to full physical extent 12.00 MiB\n  Logical Volume \"thick\" already exists in volume group \"vg0\"\n", lvol.ErrExists},
		"missing":  {"  Failed to find logical volume \"vg0/none\"\n", lvol.ErrNotFound},
		"open":     {"  Logical volume vg0/nf-a in use.\n", lvol.ErrBusy},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := hostexectest.New(t)
			f.On("vgs").Fail(5, tc.stderr)
			_, err := lvol.Open(t.Context(), lvol.Config{VolumeGroup: "vg0"}, f, nil)
			var exit *hostexec.ExitError
			if !errors.Is(err, tc.want) || !errors.As(err, &exit) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// The report is one of LVM 2.03.31, shortened to the columns asked for.
func TestParseRealReport(t *testing.T) {
	f := hostexectest.New(t)
	f.On("vgs --devices /dev/ubdd --reportformat json --units b --nosuffix --options vg_uuid,vg_size,vg_free,vg_extent_size vg0").Return(`
  {
      "report": [
          {
              "vg": [
                  {"vg_uuid":"5Aai1v-WAS8-FOai-ZyvX-vPC2-vn32-QBM5Um", "vg_size":"1069547520", "vg_free":"536870912", "vg_extent_size":"4194304"}
              ]
          }
      ]
      ,
      "log": [
      ]
  }
`)
	f.On("lvs").Return(`
  {
      "report": [
          {
              "lv": [
                  {"vg_uuid":"5Aai1v", "lv_name":"pool", "lv_uuid":"xo57CE", "lv_size":"524288000", "lv_tags":"", "lv_active":"active", "lv_path":"", "segtype":"thin-pool", "pool_lv":"", "data_percent":"0.00", "metadata_percent":"11.72", "zero":"zero"},
                  {"vg_uuid":"5Aai1v", "lv_name":"nf-v1", "lv_uuid":"CBG3q1", "lv_size":"2147483648", "lv_tags":"nearflash.gen=2,nearflash.volume=v1", "lv_active":"active", "lv_path":"/dev/vg0/nf-v1", "segtype":"thin", "pool_lv":"pool", "data_percent":"25.00", "metadata_percent":"", "zero":"zero"},
                  {"vg_uuid":"5Aai1v", "lv_name":"nf-v2", "lv_uuid":"CBG3q2", "lv_size":"104857600", "lv_tags":"nearflash.unzeroed,nearflash.volume=v2", "lv_active":"", "lv_path":"/dev/vg0/nf-v2", "segtype":"linear", "pool_lv":"", "data_percent":"", "metadata_percent":"", "zero":"unknown"}
              ]
          }
      ]
      ,
      "log": [
      ]
  }
`)
	m, err := lvol.Open(t.Context(), lvol.Config{VolumeGroup: "vg0", Devices: []string{"/dev/ubdd"}}, f, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []lvol.Volume{
		{Name: "v1", LV: "nf-v1", UUID: "CBG3q1", VGUUID: "5Aai1v", Path: "/dev/vg0/nf-v1", SizeBytes: 2 << 30, Thin: true, Active: true, Generation: 2, UsedBytes: 512 * mib},
		{Name: "v2", LV: "nf-v2", UUID: "CBG3q2", VGUUID: "5Aai1v", Path: "/dev/vg0/nf-v2", SizeBytes: 100 * mib, State: lvol.Unzeroed, UsedBytes: 100 * mib},
	}
	ignore := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".generations" }, cmp.Ignore())
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSnapshots(t *testing.T) {
	l := lvoltest.New(64)
	lvoltest.SnapshotConformance(t, lvoltest.Rig{Runner: l, Manager: open(t, l), VG: lvoltest.VG, Write: l.Write, Read: l.Read})
}

// TestSnapshotCountsAsPromised: snapshots and the volumes made of them are refused where a volume of
// their size would be.
func TestSnapshotCountsAsPromised(t *testing.T) {
	l := lvoltest.New(16)
	m := open(t, l) // with a pool of 1024 MiB, which may be promised twice
	v, err := m.Create(t.Context(), "v", 800*mib, true)
	if err != nil {
		t.Fatal(err)
	}
	cut := func(v lvol.Volume, name string) (lvol.Snapshot, error) {
		return m.Cut(t.Context(), v, lvol.SnapshotSpec{Name: name, Created: time.Unix(1, 0)})
	}
	s, err := cut(v, "first")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cut(v, "second"); !errors.Is(err, lvol.ErrNoSpace) {
		t.Errorf("a snapshot of more than is left: %v", err)
	}
	if _, err := m.CreateFrom(t.Context(), "w", v.SizeBytes, s); !errors.Is(err, lvol.ErrNoSpace) {
		t.Errorf("a volume of more than is left: %v", err)
	}
	small, err := m.Create(t.Context(), "small", 8*mib, true)
	if err != nil {
		t.Fatal(err)
	}
	l.PoolPercent = 95
	if _, err := cut(small, "late"); !errors.Is(err, lvol.ErrNoSpace) {
		t.Errorf("a snapshot in a pool that is nearly full: %v", err)
	}
}
