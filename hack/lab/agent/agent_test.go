package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/hack/scsidisk"
)

func TestMountPoints(t *testing.T) {
	const mounts = `/dev/ubda / ext4 rw 0 0
proc /proc proc rw 0 0
/dev/dm-3 /var/lib/kubelet/a\040b ext4 rw 0 0
none /host hostfs rw 0 0
/dev/ubdb /mnt xfs rw 0 0
`
	want := []string{"/var/lib/kubelet/a b", "/mnt"}
	if diff := cmp.Diff(want, mountPoints(mounts)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPlugged: the guest's own disks have no serial number, which stays as it is.
func TestPlugged(t *testing.T) {
	sys := t.TempDir()
	for path, text := range map[string]string{
		"ubda/serial": "(null)", "ubda/ro": "0\n", "ubdc/serial": "pvc-1\n", "ubdc/ro": "0\n", "ubdd/serial": "pvc-2\n", "ubdd/ro": "1\n",
	} {
		if err := writeFile(filepath.Join(sys, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for device, want := range map[string]scsidisk.Disk{
		"ubda": {}, "ubdb": {},
		"ubdc": {Device: "ubdc", Serial: "pvc-1"}, "ubdd": {Device: "ubdd", Serial: "pvc-2", ReadOnly: true},
	} {
		got, found, err := plugged(sys, device)
		if err != nil || found != (want.Serial != "") || found && got != want {
			t.Errorf("%s: %+v, %v, %v, want %+v", device, got, found, err, want)
		}
	}
}

func TestHostsFile(t *testing.T) {
	want := "127.0.0.1 localhost\n10.0.0.1 a\n10.0.0.2 b\n"
	if got := hostsFile(map[string]string{"b": "10.0.0.2", "a": "10.0.0.1"}); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCompletedCPUInfo(t *testing.T) {
	got := string(completedCPUInfo([]byte("processor\t: 0\ncache size\t: 7 KB\n\nprocessor\t: 1\n\n")))
	if n := strings.Count(got, "cpu MHz"); n != 2 {
		t.Errorf("%d lines with a clock rate for 2 processors:\n%s", n, got)
	}
	if n := strings.Count(got, "cache size"); n != 2 || !strings.Contains(got, "7 KB") {
		t.Errorf("a line that was there is doubled or replaced:\n%s", got)
	}
	if !strings.Contains(got, "core id\t\t: 1\n") {
		t.Errorf("the second processor is no core of its own:\n%s", got)
	}
}

func TestCNIConflist(t *testing.T) {
	b, err := cniConflist("10.244.7.0/24")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Plugins []struct {
			Type string `json:"type"`
			IPAM struct {
				Ranges [][]struct {
					Subnet string `json:"subnet"`
				} `json:"ranges"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Plugins) != 1 || list.Plugins[0].IPAM.Ranges[0][0].Subnet != "10.244.7.0/24" {
		t.Errorf("got %s", b)
	}
}

func TestExitCode(t *testing.T) {
	tests := map[string]struct {
		argv    []string
		want    int
		wantErr bool
	}{
		"success":    {argv: []string{"true"}},
		"failure":    {argv: []string{"sh", "-c", "exit 9"}, want: 9},
		"signal":     {argv: []string{"sh", "-c", "kill -KILL $$"}, want: 137},
		"no program": {argv: []string{"/nonexistent"}, want: 127, wantErr: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := exitCode(exec.Command(tc.argv[0], tc.argv[1:]...).Run())
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("got %d, %v, want %d", got, err, tc.want)
			}
		})
	}
}

func TestSupervisorRestart(t *testing.T) {
	s := newSupervisor()
	if err := s.restart("x"); err == nil {
		t.Error("a service that never ran can be restarted")
	}
	ended := make(chan error, 1)
	go func() { ended <- s.runOnce("x", exec.Command("sleep", "60")) }()
	if err := waitFor(context.Background(), "the service", 10*time.Second, func() bool { return s.restart("x") == nil }); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the service ended by itself")
	}
	if got := s.counts()["x"]; got != 1 {
		t.Errorf("%d starts, want 1", got)
	}
	if err := s.runOnce("x", exec.Command(filepath.Join(t.TempDir(), "none"))); !os.IsNotExist(err) {
		t.Errorf("error %v for a program that is not there", err)
	}
}

// TestSupervisorStop: a service that was stopped has ended, and runs again after a start only.
func TestSupervisorStop(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := newSupervisor()
	if err := s.stop(ctx, "x"); err == nil {
		t.Error("a service that there is not can be stopped")
	}
	s.know("x")
	looped := make(chan struct{})
	go func() {
		defer close(looped)
		for s.awaitStart(ctx, "x") == nil {
			_ = s.runOnce("x", exec.CommandContext(ctx, "sleep", "60"))
		}
	}()
	awaitRun := func(want int) {
		t.Helper()
		if err := waitFor(ctx, "the service", 10*time.Second, func() bool { return len(s.runs()) == 1 && s.counts()["x"] == want }); err != nil {
			t.Fatal(err)
		}
	}
	awaitRun(1)
	for range 2 {
		if err := s.stop(ctx, "x"); err != nil || len(s.runs()) > 0 {
			t.Fatalf("stopped: %v, and %v runs", err, s.runs())
		}
	}
	if err := s.runOnce("x", exec.Command("true")); !errors.Is(err, errStopped) || s.counts()["x"] != 1 {
		t.Fatalf("a stopped service was started: %v", err)
	}
	for range 2 {
		if err := s.start(ctx, "x"); err != nil {
			t.Fatal(err)
		}
	}
	awaitRun(2)
	cancel()
	<-looped
}
