package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func guest() Guest {
	return Guest{
		Name: "node-a", Kernel: "/k/linux", Boot: "/s/boot", Share: "/s/share", RootBase: "/k/base.ext4", RootCOW: "/s/root.cow",
		Disks: []string{"/s/ssd0", "/s/ssd1"}, Plugged: []Plugged{{Letter: "d", File: "/s/p.img", Serial: "p"}}, MemoryMiB: 512, Tap: "tap-a", RunDir: "/s/run", Console: "/s/console.log",
	}
}

func TestUMLSpec(t *testing.T) {
	got, err := UML{}.Spec(guest())
	if err != nil {
		t.Fatal(err)
	}
	want := "mem=512M root=/dev/root rootfstype=hostfs rootflags=/s/boot ro init=/agent " +
		"ubd0=/s/root.cow,/k/base.ext4 ubd1=/s/ssd0 ubd2=/s/ssd1 ubddd=/s/p.img,,p con=null con0=null,fd:1 ssl=null quiet seccomp=on " +
		"umid=node-a uml_dir=/s/run nfshare=/s/share vec0:transport=tap,ifname=tap-a"
	if diff := cmp.Diff(want, strings.Join(got.Args, " ")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Path != "/k/linux" || got.Log != "/s/console.log" {
		t.Errorf("path %s, log %s", got.Path, got.Log)
	}
	for _, e := range got.Env {
		if strings.HasPrefix(e, "TMPDIR=") {
			t.Error("TMPDIR reaches the guest's kernel: its memory would lie on a disk")
		}
	}
}

func TestUMLSpecRefuses(t *testing.T) {
	tests := map[string]func(*Guest){
		"blank in a path": func(g *Guest) { g.Share = "/s h" },
		"comma in a disk": func(g *Guest) { g.Disks[0] = "/s/a,b" },
		"comma in a plug": func(g *Guest) { g.Plugged[0].Serial = "a,b" },
		"missing kernel":  func(g *Guest) { g.Kernel = "" },
		"too many disks":  func(g *Guest) { g.Disks = make([]string, maxUBDs) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			g := guest()
			change(&g)
			if _, err := (UML{}).Spec(g); !errors.Is(err, ErrGuest) {
				t.Errorf("error %v, want %v", err, ErrGuest)
			}
		})
	}
}

func TestMakeDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := MakeDisk(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MakeDisk(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "data" {
		t.Errorf("a disk that is there was changed: %d bytes, %v", len(b), err)
	}
}
