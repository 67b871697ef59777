package plan

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestID(t *testing.T) {
	a, b := ID("/srv/one"), ID("/srv/two")
	if a == b {
		t.Errorf("two checkouts share the identity %s", a)
	}
	if want := "d5cebdfe"; len(a) != len(want) {
		t.Errorf("ID has %d characters, want %d", len(a), len(want))
	}
	if a != ID("/srv/one") {
		t.Error("ID is not stable")
	}
}

func TestResolveID(t *testing.T) {
	tests := map[string]struct {
		name    string
		want    string
		wantErr error
	}{
		"no name":       {want: ID("/c")},
		"name":          {name: "ci-1", want: "ci-1"},
		"upper case":    {name: "CI", wantErr: ErrName},
		"path":          {name: "../x", wantErr: ErrName},
		"blank":         {name: "a b", wantErr: ErrName},
		"hyphen at end": {name: "a-", wantErr: ErrName},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ResolveID(tc.name, "/c")
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAddressPlan(t *testing.T) {
	bridge := netip.MustParsePrefix(HostIP + "/24").Masked()
	pods := netip.MustParsePrefix(PodRange)
	seen := map[string]string{HostIP: "host", PairIP: "pair"}
	for _, n := range AllNodes() {
		for _, key := range []string{n.IP, n.MAC, n.Tap, n.PodCIDR} {
			if other, dup := seen[key]; dup && key != "" {
				t.Errorf("%s and %s share %s", n.Name, other, key)
			}
			seen[key] = n.Name
		}
		if !bridge.Contains(netip.MustParseAddr(n.IP)) {
			t.Errorf("%s lies outside the bridge's prefix %s", n.IP, bridge)
		}
		if n.Role == RoleWorker && !pods.Contains(netip.MustParsePrefix(n.PodCIDR).Addr()) {
			t.Errorf("%s lies outside %s", n.PodCIDR, pods)
		}
		if len(n.Tap) > 15 {
			t.Errorf("interface name %q is too long for the kernel", n.Tap)
		}
	}
}

func TestPodRoutes(t *testing.T) {
	want := []Route{{Dst: "10.244.2.0/24", Via: "10.88.0.12"}}
	if diff := cmp.Diff(want, PodRoutes("node-a")); diff != "" {
		t.Errorf("routes of node-a (-want +got):\n%s", diff)
	}
	if got := len(PodRoutes("")); got != 2 {
		t.Errorf("the host has %d pod routes, want 2", got)
	}
}

func TestPodGateway(t *testing.T) {
	got, err := PodGateway("10.244.2.0/24")
	if err != nil || got != "10.244.2.1" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestFindNode(t *testing.T) {
	if _, err := FindNode("node-c"); !errors.Is(err, ErrUnknownNode) {
		t.Errorf("error %v, want %v", err, ErrUnknownNode)
	}
	if n, err := FindNode("storage"); err != nil || n.Role != RoleStorage {
		t.Errorf("got %+v, %v", n, err)
	}
}

func TestNewPaths(t *testing.T) {
	if _, err := NewPaths("/a b", "x"); err == nil {
		t.Error("a blank in the state directory is accepted")
	}
	p, err := NewPaths("/t", "x")
	if err != nil || p.Root != "/t/nearflash-lab/x" {
		t.Errorf("got %q, %v", p.Root, err)
	}
	t.Setenv("TMPDIR", "")
	if p, err = NewPaths("", "x"); err != nil || p.Root != "/var/tmp/nearflash-lab/x" {
		t.Errorf("got %q, %v", p.Root, err)
	}
}
