package devmapper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
)

// refusals are dmsetup's real words by the command that met them.
func refusals(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for part := range strings.SplitSeq(golden(t, "errors.txt"), "## ") {
		command, rest, _ := strings.Cut(part, "\n")
		text, _, _ := strings.Cut(rest, "rc=")
		all[command] = text
	}
	return all
}

func find(t *testing.T, prefix string) string {
	t.Helper()
	for command, text := range refusals(t) {
		if strings.HasPrefix(command, prefix) && text != "" {
			return text
		}
	}
	t.Fatalf("no refusal of %q in testdata/errors.txt", prefix)
	return ""
}

func TestErrorsOfDmsetup(t *testing.T) {
	table := LinearTable(8, "254:7")
	cases := map[string]struct {
		command, refusal string
		devices          []string
		do               func(Client) error
		want             error
	}{
		"name taken": {command: "dmsetup create", refusal: "create x1 --uuid U2", devices: []string{"x1"}, want: ErrExist,
			do: func(c Client) error { _, err := c.Create(t.Context(), "x1", "U2", table); return err }},
		"uuid taken": {command: "dmsetup create", refusal: "create x2 --uuid U1", want: ErrExist,
			do: func(c Client) error { _, err := c.Create(t.Context(), "x2", "U1", table); return err }},
		"no such target": {command: "dmsetup create", refusal: "create x3 --uuid U3", want: ErrUnsupported,
			do: func(c Client) error {
				_, err := c.Create(t.Context(), "x3", "U3", Table{{Length: 8, Target: RawTarget{Name: "nosuch"}}})
				return err
			}},
		"load of a missing device": {command: "dmsetup load", refusal: "load nosuch", want: ErrNotExist,
			do: func(c Client) error { return c.Load(t.Context(), "nosuch", table) }},
		"bad message": {command: "dmsetup message", refusal: "message x1", devices: []string{"x1"}, want: ErrInvalid,
			do: func(c Client) error { return c.Message(t.Context(), "x1", 0, "hello") }},
		"missing table": {command: "dmsetup table", refusal: "table nosuch", want: ErrNotExist,
			do: func(c Client) error { _, err := c.Table(t.Context(), "nosuch"); return err }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run := hostexectest.New(t)
			run.On(tc.command).Fail(1, find(t, tc.refusal))
			run.On("dmsetup targets").Return(golden(t, "targets.txt"))
			if err := tc.do(withDevices(run, tc.devices...)); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestRemove(t *testing.T) {
	run := hostexectest.New(t)
	run.On("dmsetup remove x").Fail(1, find(t, "remove open")).Once()
	run.On("dmsetup remove x").Once()
	if err := withDevices(run, "x").Remove(t.Context(), "x"); err != nil {
		t.Errorf("a device that is open for a moment: %v", err)
	}
	run = hostexectest.New(t)
	if err := withDevices(run).Remove(t.Context(), "x"); err != nil {
		t.Errorf("a missing device: %v", err)
	}
}

func TestAutoChunk(t *testing.T) {
	const gib = int64(1) << 30
	cases := map[string]struct {
		cache     int64
		wantBytes uint64
	}{
		"small":        {10 * gib, 128 << 10},
		"96 GiB":       {96 * gib, 128 << 10},
		"above 96 GiB": {96*gib + 1, 256 << 10},
		"large":        {300 * gib, 512 << 10},
		// 1 TiB in 512 KiB blocks would be two million blocks.
		"a million blocks": {1024 * gib, 1114112},
		"the largest":      {1 << 60, 1 << 30},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			sectors := AutoChunkSectors(tc.cache)
			if sectors*SectorSize != tc.wantBytes {
				t.Errorf("AutoChunkSectors(%d) = %d bytes, want %d", tc.cache, sectors*SectorSize, tc.wantBytes)
			}
			if MigrationThreshold(sectors) < sectors {
				t.Errorf("a migration threshold of %d lets no block of %d sectors move", MigrationThreshold(sectors), sectors)
			}
		})
	}
}

func TestCreateRefusesBadGeometry(t *testing.T) {
	run := hostexectest.New(t) // no command may run
	c := CacheTarget{Metadata: "1:1", Data: "1:2", Origin: "1:3", ChunkSectors: 63, Mode: Writeback, Policy: PolicySMQ}
	for _, table := range []Table{nil, {{Length: 8, Target: c}}} {
		if _, err := New(run).Create(t.Context(), "x", "u", table); !errors.Is(err, ErrInvalid) {
			t.Errorf("table %q: %v, want ErrInvalid", table, err)
		}
	}
}

// TestMessageAtOnce: what stops a copy does not wait for a process to start.
func TestMessageAtOnce(t *testing.T) {
	k := &kernel{fail: map[string]error{
		"nf-gone disable_hydration": fmt.Errorf("%w: gone", ErrNotExist), "nf-gone": fmt.Errorf("%w: gone", ErrNotExist),
		"nf-new disable_hydration": fmt.Errorf("%w: no table", ErrNotExist),
	}}
	// A process would fail the test, as the runner knows none.
	d := &dmsetup{run: hostexectest.New(t), control: func() (kernelControl, error) { return k, nil }}
	for _, words := range [][]string{{"enable_hydration"}, {"disable_hydration"}, {"reinstate_path", "253:7"}, {"fail_if_no_path"}, {"queue_if_no_path"}} {
		if err := d.Message(t.Context(), "nf-a", 0, words...); err != nil {
			t.Errorf("%v: %v", words, err)
		}
	}
	want := []string{"nf-a enable_hydration", "nf-a disable_hydration", "nf-a reinstate_path 253:7", "nf-a fail_if_no_path", "nf-a queue_if_no_path"}
	if !slices.Equal(k.asked, want) {
		t.Errorf("sent %q, want %q", k.asked, want)
	}
	if err := d.Message(t.Context(), "nf-gone", 0, "disable_hydration"); !errors.Is(err, ErrNotExist) {
		t.Errorf("a device that is gone: %v", err)
	}
	if err := d.Message(t.Context(), "nf-new", 0, "disable_hydration"); !errors.Is(err, ErrInvalid) || errors.Is(err, ErrNotExist) {
		t.Errorf("a device without a table: %v", err)
	}
}

// TestChangesAreChanges: a command that changes a device is never killed, and keeps the
// next one for the device waiting; one that looks is neither.
func TestChangesAreChanges(t *testing.T) {
	run := hostexectest.New(t)
	run.On("dmsetup")
	c := &dmsetup{run: run, control: func() (kernelControl, error) { return &kernel{order: []string{"d"}}, nil }}
	table := LinearTable(8, "254:7")
	for _, do := range []func() error{
		func() error { _, err := c.Create(t.Context(), "d", "U", table); return err },
		func() error { _, err := c.CreateReadOnly(t.Context(), "d", "U", table); return err },
		func() error { return c.Load(t.Context(), "d", table) },
		func() error { return c.LoadReadOnly(t.Context(), "d", table) },
		func() error { return c.Resume(t.Context(), "d") },
		func() error { return c.ResumeUnfrozen(t.Context(), "d") },
		func() error { return c.Clear(t.Context(), "d") },
		func() error { return c.Remove(t.Context(), "d") },
		func() error { return c.Message(t.Context(), "d", 0, "migration_threshold", "0") },
	} {
		run.Forget()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		calls := run.Calls()
		if len(calls) == 0 || !calls[0].Changes || calls[0].ReadOnly || calls[0].Device != "d" {
			t.Errorf("%+v", calls)
		}
	}
	run.Forget()
	if _, err := c.StatusAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if calls := run.Calls(); len(calls) != 1 || calls[0].Changes || !calls[0].ReadOnly {
		t.Errorf("%+v", calls)
	}
}
