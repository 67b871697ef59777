package cluster

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/hack/lab/internal/node"
)

// TestPlugIntoMachineThatDoesNotRun: its next boot has what is in the list.
func TestPlugIntoMachineThatDoesNotRun(t *testing.T) {
	l, err := New("t", "", t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, file := t.Context(), filepath.Join(t.TempDir(), "d.img")
	if _, err := l.PlugDisk(ctx, "node-a", node.Plugged{File: file, Serial: "d"}); err == nil {
		t.Error("a file that is not there is plugged in")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.PlugDisk(ctx, "node-a", node.Plugged{File: file, Serial: "d"}); !errors.Is(err, ErrNotUp) {
		t.Errorf("without a lab: %v", err)
	}
	if err := os.MkdirAll(l.Paths.Node("node-a"), 0o700); err != nil {
		t.Fatal(err)
	}
	plug := func(name string, readOnly bool) (string, error) {
		return l.PlugDisk(ctx, "node-a", node.Plugged{File: file, Serial: name, ReadOnly: readOnly})
	}
	for _, name := range []string{"d", "e", "d"} {
		if _, err := plug(name, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := plug("d", true); err == nil {
		t.Error("a disk is plugged in twice, once read-only")
	}
	for range 2 {
		if err := l.UnplugDisk(ctx, "node-a", "d"); err != nil {
			t.Fatal(err)
		}
	}
	if device, err := plug("f", true); device != "/dev/disk/by-id/google-f" || err != nil {
		t.Errorf("got %q, %v", device, err)
	}
	got, err := l.PluggedDisks(ctx, "node-a")
	want := []node.Plugged{{Letter: "d", File: file, Serial: "e"}, {Letter: "c", File: file, Serial: "f", ReadOnly: true}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, plugged (-want +got):\n%s", err, diff)
	}
}

func TestParseOrigin(t *testing.T) {
	one := map[string]string{"node-a": originZone, "node-b": originZone}
	two := map[string]string{"node-a": originZone, "node-b": "us-lab1-b"}
	tests := map[string]struct {
		name, zones string
		want        map[string]string
		wantErr     error
	}{
		"none":           {},
		"one zone":       {name: OriginPD, want: one},
		"two zones":      {name: OriginPD, zones: "node-b=us-lab1-b", want: two},
		"ceph":           {name: OriginCeph},
		"zones of ceph":  {name: OriginCeph, zones: "node-b=us-lab1-b", wantErr: ErrOrigin},
		"other origin":   {name: "x", wantErr: ErrOrigin},
		"zones alone":    {zones: "node-b=us-lab1-b", wantErr: ErrOrigin},
		"no worker":      {name: OriginPD, zones: "storage=us-lab1-b", wantErr: ErrOrigin},
		"no zone's name": {name: OriginPD, zones: "node-a=x", wantErr: ErrOrigin},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := ParseOrigin(tc.name, tc.zones)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			var got map[string]string
			if o != nil {
				got = o.Zones
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("zones (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOriginPod: what the node half of a driver sees of the host is what drivers' own
// manifests show them, and the program.
func TestOriginPod(t *testing.T) {
	for name, more := range map[string][]string{OriginPD: nil, OriginCeph: {"/lib/modules"}} {
		t.Run(name, func(t *testing.T) {
			o, err := ParseOrigin(name, "")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range o.kind().pod(o, "/images/other/program")["volumes"].([]m) {
				got = append(got, v["hostPath"].(m)["path"].(string))
			}
			want := append([]string{
				"/var/lib/kubelet/plugins/kubernetes.io/csi", "/var/lib/kubelet/pods", "/var/lib/kubelet/plugins/" + o.kind().driver,
				"/var/lib/kubelet/plugins_registry", "/dev", "/sys", "/run/udev", "/images/other/program",
			}, more...)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("folders (-want +got):\n%s", diff)
			}
		})
	}
}
