package smart

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
)

func golden(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRead(t *testing.T) {
	cases := map[string]struct {
		output string
		exit   int
		want   Health
	}{
		"nvme.json":          {want: Health{Verdict: Passed, WearPercent: ptr.To(int32(3))}},
		"nvme-failing.json":  {exit: 8, want: Health{Verdict: Failing, WearPercent: ptr.To(int32(97))}},
		"nvme-worn.json":     {want: Health{Verdict: Failing, WearPercent: ptr.To(int32(112))}},
		"sata.json":          {exit: 64, want: Health{Verdict: Passed, WearPercent: ptr.To(int32(10))}},
		"sata-failing.json":  {exit: 8 | 16, want: Health{Verdict: Failing, WearPercent: ptr.To(int32(99))}},
		"sas.json":           {want: Health{Verdict: Passed, WearPercent: ptr.To(int32(4))}},
		"virtual.json":       {exit: 4},
		"not-supported.json": {exit: 1},
		"not-opened.json":    {exit: 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run := hostexectest.New(t)
			run.On("smartctl --json --all /dev/no-such-disk").Do(func(_ context.Context, c hostexectest.Call) (string, error) {
				if tc.exit == 0 {
					return golden(t, name), nil
				}
				return golden(t, name), hostexec.NewExitError(hostexec.Cmd{Name: c.Name, Args: c.Args}, tc.exit, nil)
			}).Once()
			got, err := Read(t.Context(), run, "/dev/no-such-disk")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("health (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadErrors(t *testing.T) {
	cases := map[string]struct {
		stdout  string
		err     error
		wantErr bool
	}{
		"not installed": {err: hostexec.ErrNotInstalled},
		"killed":        {err: hostexec.NewExitError(hostexec.Command("smartctl"), -1, nil)},
		"no output":     {},
		"no JSON":       {stdout: "smartctl 6.6", wantErr: true},
		"cut off":       {stdout: `{"smart_status": {"pas`, wantErr: true},
		"timeout":       {err: context.DeadlineExceeded, wantErr: true},
		"a word":        {stdout: `{"nvme_smart_health_information_log": {"percentage_used": "many"}}`, wantErr: true},
		"negative":      {stdout: `{"nvme_smart_health_information_log": {"percentage_used": -1}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run := hostexectest.New(t)
			run.On("smartctl").Do(func(context.Context, hostexectest.Call) (string, error) { return tc.stdout, tc.err })
			got, err := Read(t.Context(), run, "/dev/no-such-disk")
			if (err != nil) != tc.wantErr || tc.err != nil && tc.wantErr && !errors.Is(err, tc.err) {
				t.Errorf("error %v, want one: %t", err, tc.wantErr)
			}
			if got != (Health{}) {
				t.Errorf("health %+v", got)
			}
		})
	}
}

// TestDisk: a partition is asked for as the disk that it is on.
func TestDisk(t *testing.T) {
	sysfs := t.TempDir()
	for _, dir := range []string{"devices/nvme0n1/nvme0n1p2", "class/block"} {
		if err := os.MkdirAll(filepath.Join(sysfs, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(sysfs, "devices/nvme0n1/nvme0n1p2/partition"), []byte("2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"nvme0n1": "../../devices/nvme0n1", "nvme0n1p2": "../../devices/nvme0n1/nvme0n1p2"} {
		if err := os.Symlink(target, filepath.Join(sysfs, "class/block", link)); err != nil {
			t.Fatal(err)
		}
	}
	for device, want := range map[string]string{
		"/dev/nvme0n1p2": "/dev/nvme0n1", "/dev/nvme0n1": "/dev/nvme0n1", "/dev/sdx": "/dev/sdx",
	} {
		if got := disk(sysfs, device); got != want {
			t.Errorf("disk of %s is %s, want %s", device, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"nvme.json", "sata.json", "virtual.json"} {
		f.Add([]byte(golden(f, name)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parse(b)
		if err == nil && h.WearPercent != nil && (*h.WearPercent < 0 || *h.WearPercent > maxWear) {
			t.Errorf("wear %d", *h.WearPercent)
		}
	})
}
