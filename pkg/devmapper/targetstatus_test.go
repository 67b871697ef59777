package devmapper

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
)

func TestCloneStatusGolden(t *testing.T) {
	fresh := CloneStatus{
		Sectors: 65640, MetadataBlockSectors: 8, MetadataUsed: 6, MetadataTotal: 1024, RegionSectors: 64, Hydrated: 512, Regions: 1026,
		Features: []string{"no_hydration", "no_discard_passdown"}, CoreArgs: map[string]string{"hydration_threshold": "1", "hydration_batch_size": "4"},
	}
	done := fresh
	done.Hydrated, done.Features = 1026, []string{"no_discard_passdown"}
	done.CoreArgs = map[string]string{"hydration_threshold": "1", "hydration_batch_size": "1"}
	all, err := parseCloneStatusAll(golden(t, "status-clone-all.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]CloneStatus{"nf-pvc-a.data": fresh, "nf-pvc-b.data": done}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("status differs (-want +got):\n%s", diff)
	}
	if fresh.Complete() || fresh.HydrationEnabled() || fresh.HydratedBytes() != 512*64*512 {
		t.Errorf("%+v", fresh)
	}
	// The last region is shorter.
	if !done.Complete() || !done.HydrationEnabled() || done.HydratedBytes() != 65640*512 {
		t.Errorf("%+v", done)
	}
	if all, err := parseCloneStatusAll(golden(t, "status-none.txt")); err != nil || len(all) != 0 {
		t.Errorf("no devices: %v, %v", all, err)
	}
	// One that cannot be read must not hide the other.
	all, err = parseCloneStatusAll("x: 0 8 clone what is this\n" + golden(t, "status-clone-all.txt"))
	if err != nil || len(all) != 3 || !all["x"].Fail || all["x"].Unparsed == "" || all["x"].Complete() {
		t.Errorf("got %+v, %v", all, err)
	}
}

func TestCloneStatus(t *testing.T) {
	const base = "8 11/1024 64 512/1026 3 1 no_hydration 4 hydration_threshold 1 hydration_batch_size 1 "
	cases := map[string]struct {
		params           string
		wantFail, wantRO bool
		wantErr          bool
	}{
		"read-write":           {params: base + "rw"},
		"read only":            {params: base + "ro", wantRO: true},
		"newer kernel":         {params: base + "rw something new"},
		"Fail":                 {params: "Fail", wantFail: true},
		"Error":                {params: "Error", wantFail: true},
		"failed meanwhile":     {params: base + "Fail", wantFail: true},
		"unknown mode":         {params: base + "xx", wantErr: true},
		"cut off":              {params: base, wantErr: true},
		"nothing":              {params: "", wantErr: true},
		"more than all copied": {params: strings.Replace(base, "512/1026", "1027/1026", 1) + "rw", wantErr: true},
		"odd list":             {params: strings.Replace(base, "4 hydration", "3 hydration", 1) + "rw", wantErr: true},
		"word for number":      {params: strings.Replace(base, "1026 3", "1026 x", 1) + "rw", wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseCloneStatus(tc.params)
			if (err != nil) != tc.wantErr || tc.wantErr && !errors.Is(err, ErrParse) {
				t.Fatalf("error = %v, want one: %t", err, tc.wantErr)
			}
			if got.Fail != tc.wantFail || got.ReadOnly != tc.wantRO {
				t.Errorf("got %+v", got)
			}
			if err == nil && !got.Fail && (got.Hydrating != 3 || got.HydrationEnabled()) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestMultipathStatus(t *testing.T) {
	cases := map[string]struct {
		status  string
		want    MultipathStatus
		wantErr error
	}{
		"path": {status: golden(t, "status-multipath-active.txt"),
			want: MultipathStatus{Paths: []PathStatus{{Device: "254:6", Active: true}}}},
		"no path": {status: golden(t, "status-multipath-failed.txt"),
			want: MultipathStatus{Paths: []PathStatus{{Device: "254:6", Failures: 1}}}},
		"two paths": {status: golden(t, "status-multipath-two.txt"),
			want: MultipathStatus{Paths: []PathStatus{{Device: "254:4", Failures: 1}, {Device: "254:5", Active: true}}}},
		// With a selector that has something to say, two groups, and a handler at work.
		"other tables": {status: "0 8 multipath 2 1 3 0 2 1 A 0 1 2 8:0 A 0 1 2 D 0 1 0 8:16 F 9 ",
			want: MultipathStatus{Queueing: true, Paths: []PathStatus{{Device: "8:0", Active: true}, {Device: "8:16", Failures: 9}}}},
		"another target": {status: "0 8 linear", wantErr: ErrParse},
		"two targets":    {status: "0 8 multipath 2 0 0 0 0 0\n8 8 multipath 2 0 0 0 0 0", wantErr: ErrParse},
		"cut off":        {status: "0 8 multipath 2 0 0 0 1 1 A 0 2 0 8:0 A 0", wantErr: ErrParse},
		"no features":    {status: "0 8 multipath 0 0 0 0", wantErr: ErrParse},
		"many groups":    {status: "0 8 multipath 2 0 0 0 18446744073709551615 1", wantErr: ErrParse},
		"many paths":     {status: "0 8 multipath 2 0 0 0 1 1 A 0 18446744073709551615 0 8:0 A 0", wantErr: ErrParse},
		"odd path state": {status: "0 8 multipath 2 0 0 0 1 1 A 0 1 0 8:0 X 0", wantErr: ErrParse},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			k := &kernel{statuses: map[string]string{"m": tc.status}}
			d := &dmsetup{control: func() (kernelControl, error) { return k, nil }}
			got, err := d.MultipathStatus(t.Context(), "m")
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("got %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("status differs (-want +got):\n%s", diff)
			}
			if got.HasPath() == (name == "no path") && err == nil {
				t.Errorf("HasPath() = %t", got.HasPath())
			}
		})
	}
	if _, err := withDevices(nil).MultipathStatus(t.Context(), "m"); !errors.Is(err, ErrNotExist) {
		t.Errorf("a missing device: %v", err)
	}
}

func TestCloneStatusAll(t *testing.T) {
	run := hostexectest.New(t)
	run.On("dmsetup status --noflush --target clone --select segments=1").Return(golden(t, "status-clone-all.txt"))
	all, err := New(run).CloneStatusAll(t.Context())
	if err != nil || len(all) != 2 {
		t.Errorf("got %v, %v", all, err)
	}
}

// Without --noflush the kernel commits.
func TestCommitAll(t *testing.T) {
	run := hostexectest.New(t)
	run.On("dmsetup status --target cache --select segments=1").Return("")
	if err := New(run).CommitAll(t.Context()); err != nil {
		t.Error(err)
	}
}

// The tables of a hydration, as the kernel prints them.
func TestHydrationTablesGolden(t *testing.T) {
	linear := func(off uint64) Target { return LinearTarget{Device: "254:0", Offset: off} }
	cases := map[string]Table{
		"table-zero.txt": {
			{Start: 0, Length: 64, Target: ZeroTarget{}},
			{Start: 64, Length: 128, Target: linear(640)},
			{Start: 192, Length: 65448, Target: ZeroTarget{}},
		},
		"table-clone.txt": {{Length: 65640, Target: CloneTarget{
			Metadata: "254:2", Destination: "254:4", Source: "254:7", RegionSectors: 64, NoHydration: true, NoDiscardPassdown: true, HydrationBatch: 4,
		}}},
	}
	for name, want := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseTable(golden(t, name))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("table differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTargetsRoundTrip(t *testing.T) {
	clone := CloneTarget{Metadata: "1:1", Destination: "1:2", Source: "1:3", RegionSectors: 8}
	var targets []Target
	for i := range 16 {
		c := clone
		c.NoHydration, c.NoDiscardPassdown = i&1 != 0, i&2 != 0
		c.HydrationThreshold, c.HydrationBatch = uint64(i&4), uint64(i&8)
		targets = append(targets, c)
	}
	for _, paths := range [][]string{nil, {"1:1"}, {"1:1", "1:2", "259:12"}} {
		for i := range 4 {
			targets = append(targets, MultipathTarget{QueueIfNoPath: i&1 != 0, Bio: i&2 != 0, Paths: paths})
		}
	}
	targets = append(targets, ZeroTarget{}, ErrorTarget{}, LinearTarget{Device: "1:1", Offset: 9}, DelayTarget{Device: "1:1", Offset: 9, Milliseconds: 3})
	for _, target := range targets {
		want := Table{{Start: 0, Length: 8, Target: target}}
		got, err := ParseTable(want.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: table differs (-want +got):\n%s", want, diff)
		}
	}
}

func TestCloneTargetValidate(t *testing.T) {
	good := CloneTarget{Metadata: "1:1", Destination: "1:2", Source: "1:3", RegionSectors: 64}
	small, large, odd, none := good, good, good, good
	small.RegionSectors, large.RegionSectors, odd.RegionSectors, none.Source = 4, 1<<22, 96, ""
	for name, tc := range map[string]struct {
		target CloneTarget
		want   error
	}{"good": {good, nil}, "small": {small, ErrInvalid}, "large": {large, ErrInvalid}, "odd": {odd, ErrInvalid}, "no source": {none, ErrInvalid}} {
		if err := (Table{{Length: 8, Target: tc.target}}).validate(); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

func FuzzParseCloneStatus(f *testing.F) {
	f.Add("8 11/1024 64 512/1026 3 1 no_hydration 4 hydration_threshold 1 hydration_batch_size 1 rw")
	f.Add("Fail")
	f.Fuzz(func(t *testing.T, s string) {
		st, err := ParseCloneStatus(s)
		if err != nil && !errors.Is(err, ErrParse) {
			t.Errorf("error %v does not wrap ErrParse", err)
		}
		if err == nil && !st.Fail && st.Hydrated > st.Regions {
			t.Errorf("%+v", st)
		}
	})
}

func FuzzParseMultipathStatus(f *testing.F) {
	f.Add("2 0 0 0 1 1 A 0 1 0 254:7 A 0 ")
	f.Add("2 1 3 0 2 1 A 0 1 2 8:0 A 0 1 2 D 0 1 0 8:16 F 9 ")
	f.Fuzz(func(t *testing.T, s string) {
		st, err := ParseMultipathStatus(s)
		if err != nil && !errors.Is(err, ErrParse) {
			t.Errorf("error %v does not wrap ErrParse", err)
		}
		if len(st.Paths) > len(s) {
			t.Errorf("%d paths in %d bytes", len(st.Paths), len(s))
		}
	})
}

func TestStatus(t *testing.T) {
	all, err := parseStatusAll("nf-a: " + golden(t, "status-writeback.txt"))
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	cases := map[string]struct {
		status string
		want   CacheStatus
		found  bool
	}{
		"cache":            {golden(t, "status-writeback.txt"), all["nf-a"], true},
		"unknown words":    {"0 8 cache what is this\n", CacheStatus{Fail: true, Unparsed: "what is this", OriginSectors: 8}, true},
		"another target":   {status: "0 8 linear \n"},
		"no live table":    {status: "\n"},
		"several segments": {status: "0 8 linear \n8 8 linear \n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run := hostexectest.New(t)
			run.On("dmsetup status --noflush nf-a").Return(tc.status)
			got, found, err := New(run).Status(t.Context(), "nf-a")
			if err != nil || found != tc.found {
				t.Fatalf("found %t, %v", found, err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	run := hostexectest.New(t)
	run.On("dmsetup status --noflush nf-a").Fail(1, find(t, "table nosuch"))
	if _, _, err := withDevices(run).Status(t.Context(), "nf-a"); !errors.Is(err, ErrNotExist) {
		t.Errorf("a missing device: %v", err)
	}
}

func TestParseIntegrityStatus(t *testing.T) {
	for text, want := range map[string]IntegrityStatus{
		"0 65536 -":                {ProvidedSectors: 65536, Recalculated: 65536},
		"3 65536 16384":            {Mismatches: 3, ProvidedSectors: 65536, Recalculated: 16384},
		"1 65536 65536 x":          {Mismatches: 1, ProvidedSectors: 65536, Recalculated: 65536},
		"18446744073709551615 1 0": {Mismatches: 1<<64 - 1, ProvidedSectors: 1},
	} {
		if got, err := ParseIntegrityStatus(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "0 1", "- 1 2", "0 1 x", "-1 1 -"} {
		if got, err := ParseIntegrityStatus(text); !errors.Is(err, ErrParse) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// TestIntegrityTarget: what the kernel prints of a table is the table.
func TestIntegrityTarget(t *testing.T) {
	want := IntegrityTarget{Device: "253:4", JournalSectors: 1408}
	text := "0 16384 " + want.Type() + " " + want.Params() + "\n"
	got, err := ParseTable(text)
	if err != nil || len(got) != 1 || got[0].Target != Target(want) || got.String() != text {
		t.Errorf("%v, %v; want %q", got, err, text)
	}
	other := "0 16384 integrity 253:4 0 4 D 1 internal_hash:sha256\n"
	if got, err := ParseTable(other); err != nil || got.String() != other {
		t.Errorf("%v, %v; want %q as it is", got, err, other)
	}
}
