package csi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

func FuzzDeviceName(f *testing.F) {
	for _, s := range []string{"MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n", "DEVNAME=cciss/c0d0", "DEVNAME=../x", "DEVNAME=.", "DEVNAME=a/..", "DEVNAME=a/b/c", "DEVNAME=/x", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uevent string) {
		name := deviceName(uevent)
		if name == "" {
			return
		}
		if path := filepath.Join("/dev", name); path != "/dev/"+name || strings.Count(name, "/") > 1 || strings.ContainsAny(name, " \n\x00") {
			t.Errorf("%q of %q", name, uevent)
		}
	})
}

func FuzzSocketOf(f *testing.F) {
	for _, s := range []string{"", "/a/b.sock", "unix:///a.sock", "unix:/a", "unix:a", "tcp://x", "unix://../a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		if path, err := socketOf(endpoint, "/r.sock"); err == nil && (!filepath.IsAbs(path) || filepath.Clean(path) != path) {
			t.Errorf("%q of %q", path, endpoint)
		}
	})
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"boot":"b","driver":"d","handle":"h","devno":"8:0"}`))
	f.Add([]byte(`{"boot":"b","driver":"d","handle":"h","leaving":true}`))
	f.Add([]byte("null"))
	f.Add([]byte("{"))
	v := vol{source: &volume.CSISource{Driver: "d", Handle: "h"}}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := parseRecord(b, v, "b")
		if r == nil {
			return
		}
		if r.Boot != "b" || r.Driver != "d" || r.Handle != "h" {
			t.Errorf("%+v of %q", r, b)
		}
		again, err := json.Marshal(r)
		if err != nil || parseRecord(again, v, "b") == nil {
			t.Errorf("%s, %v", again, err)
		}
		_ = r.check(disk{devno: "8:0", sequence: "1"})
	})
}

func FuzzPlain(f *testing.F) {
	f.Add("key=secret", "secret")
	f.Add(strings.Repeat("\u00e4", 600), "")
	f.Add("a\x1b[2Jb\nc", "b")
	f.Add("a b", "a\nb")
	f.Add("a\nb", "a b")
	f.Add("[redacted]", "red")
	f.Fuzz(func(t *testing.T, text, secret string) {
		got := plain(text, map[string]string{"k": secret})
		if len(got) > maxMessage+3 || strings.ContainsAny(got, "\n\x1b\x00") || (utf8.ValidString(text) && !utf8.ValidString(got)) {
			t.Errorf("%q of %q", got, text)
		}
		// The words of the error itself may have it.
		rest := strings.TrimSuffix(strings.ReplaceAll(got, redacted, "\x00"), "...")
		if strings.TrimSpace(secret) != "" && !strings.Contains(redacted, secret) && strings.Contains(rest, secret) {
			t.Errorf("%q has %q", got, secret)
		}
	})
}

func FuzzVersions(f *testing.F) {
	for _, s := range []string{"1.0.0", "v1", "1", "0.3", "10", "", ".1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if speaksV1([]string{s}) && !strings.HasPrefix(strings.TrimPrefix(s, "v"), "1") {
			t.Errorf("%q", s)
		}
	})
}

// uidOfPVC1 was computed by Python's uuid.uuid5.
const uidOfPVC1 = "115487ee-2cf1-5b30-994d-22e1ddff2cb5"

func target(s *volume.CSISource) transport.Target {
	return transport.Target{Source: volume.Source{CSI: s}}
}

// writeFile makes a file, and its folders.
func writeFile(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestUID: a target never changes its name, or a volume would be published twice; and no pod
// has it.
func TestUID(t *testing.T) {
	tr := New(Config{})
	v, err := tr.volume(target(&volume.CSISource{Driver: "d.example.com", Handle: "h", PV: "pvc-1"}))
	if err != nil {
		t.Fatal(err)
	}
	if want := "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/" + uidOfPVC1; v.target != want {
		t.Errorf("target %s, want %s", v.target, want)
	}
	if want := "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/staging/pvc-1"; v.staging != want {
		t.Errorf("staging %s, want %s", v.staging, want)
	}
	if uidOfPVC1[14] != '5' {
		t.Error("the UID is not of version 5")
	}
}

// TestStatDevice reads what this machine has.
func TestStatDevice(t *testing.T) {
	if _, block, err := statDevice("/dev/null"); err != nil || block {
		t.Errorf("/dev/null: %v, %v", block, err)
	}
	if _, _, err := statDevice(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no error of what is not there")
	}
}

// TestRemoveTree takes a directory away with what a driver has left in it.
func TestRemoveTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	writeFile(t, filepath.Join(dir, "a", "b", "c"))
	writeFile(t, filepath.Join(dir, "d"))
	if err := removeTree(dir); err != nil {
		t.Error(err)
	}
	if _, err := fileSystem(dir); err == nil {
		t.Error("it is there still")
	}
}
