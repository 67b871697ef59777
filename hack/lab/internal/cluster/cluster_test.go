package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/hack/lab/internal/driver"
	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

func newTestLab(t *testing.T, id string) *Lab {
	t.Helper()
	l, err := New(id, "/checkout", t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLock(t *testing.T) {
	l := newTestLab(t, "lock")
	ctx := context.Background()
	unlock, err := l.Lock(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lock(ctx, 0); !errors.Is(err, ErrBusy) {
		t.Errorf("second lock: error %v, want %v", err, ErrBusy)
	}
	time.AfterFunc(150*time.Millisecond, unlock)
	again, err := l.Lock(ctx, 10*time.Second)
	if err != nil {
		t.Fatalf("after the first was released: %v", err)
	}
	again()
}

func TestStateRoundTrip(t *testing.T) {
	l := newTestLab(t, "state")
	if _, err := l.load(); !errors.Is(err, ErrNotUp) {
		t.Errorf("error %v, want %v", err, ErrNotUp)
	}
	if err := os.MkdirAll(l.Paths.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.save(state{Token: "secret", Sizes: Sizes{StorageDelay: 2 * time.Millisecond}}); err != nil {
		t.Fatal(err)
	}
	got, err := l.load()
	if err != nil || got.Token != "secret" || got.Sizes.StorageDelay != 2*time.Millisecond {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := l.MustBeUp(); !errors.Is(err, ErrNotUp) {
		t.Errorf("an incomplete lab counts as up: %v", err)
	}
	st, err := os.Stat(l.Paths.State())
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file with the token has mode %v, %v", st.Mode(), err)
	}
}

func TestEnviron(t *testing.T) {
	l := newTestLab(t, "env")
	got := l.Environ([]string{"A=b", "PATH=/usr/bin", "KUBECONFIG=/other", "NO_PROXY=example.org"})
	for _, want := range []string{
		"A=b", "KUBECONFIG=" + l.Paths.Kubeconfig("admin"), "NEARFLASH_LAB_ID=env",
		"PATH=" + l.Paths.Bin() + ":/usr/bin", "NO_PROXY=example.org,127.0.0.1,10.88.0.1,10.96.0.0/16",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
	if slices.Contains(got, "KUBECONFIG=/other") {
		t.Error("the caller's cluster is still in the environment")
	}
}

func TestLastLines(t *testing.T) {
	tests := map[string]struct {
		in   string
		n    int
		want string
	}{
		"fewer lines":         {in: "a\nb\n", n: 5, want: "a\nb\n"},
		"more lines":          {in: "a\nb\nc\n", n: 2, want: "b\nc\n"},
		"no newline at end":   {in: "a\nb\nc", n: 1, want: "c"},
		"empty lines count":   {in: "a\n\nc\n", n: 2, want: "\nc\n"},
		"nothing":             {n: 3},
		"no limit":            {in: "a\nb\n", want: "a\nb\n"},
		"exactly as many":     {in: "a\nb\n", n: 2, want: "a\nb\n"},
		"newlines at the end": {in: "a\nb\n\n", n: 1, want: "b\n\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := string(lastLines([]byte(tc.in), tc.n)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// The chart's schema refuses unknown keys; here only the top level is looked at,
// the rest is the chart's own tests'.
func TestChartValues(t *testing.T) {
	b, err := os.ReadFile("../../../../" + chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := yaml.Unmarshal(b, &defaults); err != nil {
		t.Fatal(err)
	}
	s := state{Origin: &Origin{}, WithoutISCSID: true, SecondStorage: true}
	values := chartValues(s, "ca", "cert", "key", []string{"a.1.tar"})
	for key := range values {
		if _, known := defaults[key]; !known {
			t.Errorf("the chart has no value %q", key)
		}
	}
	one, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	other, err := json.Marshal(chartValues(s, "ca", "cert", "key", []string{"a.2.tar"}))
	if err != nil {
		t.Fatal(err)
	}
	if string(one) == string(other) {
		t.Error("another image gives the same values: its pods would not be rolled out")
	}
}

func TestStageImages(t *testing.T) {
	l := newTestLab(t, "images")
	src := t.TempDir()
	archive := filepath.Join(src, "driver.tar")
	stage := func(content string) string {
		t.Helper()
		if err := os.WriteFile(archive, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.stageImages([]string{archive}); err != nil {
			t.Fatal(err)
		}
		names, err := l.stagedImages()
		if err != nil || len(names) != 1 {
			t.Fatalf("staged %q, %v, want one archive", names, err)
		}
		return names[0]
	}
	first := stage("one")
	if again := stage("one"); again != first {
		t.Errorf("the same archive is staged as %s and as %s", first, again)
	}
	if second := stage("two"); second == first || !strings.HasPrefix(second, "driver.") {
		t.Errorf("a changed archive is staged as %s after %s", second, first)
	}
}

func TestControlSpecs(t *testing.T) {
	l := newTestLab(t, "control")
	for _, name := range controlPlane() {
		spec := l.controlSpec(name, "/bin/"+name)
		if len(spec.Args) == 0 || spec.Log == "" {
			t.Errorf("%s has no arguments or no log: %+v", name, spec)
		}
		for _, arg := range spec.Args {
			// Whoever lists processes sees arguments.
			if strings.Contains(arg, "PRIVATE KEY") {
				t.Errorf("%s has a key among its arguments", name)
			}
		}
	}
}

// TestSecondStorage: the second server is a guest of a lab that was made with it, and serves under
// its own name, address and certificate.
func TestSecondStorage(t *testing.T) {
	l := newTestLab(t, "second")
	if err := pki.Write(l.Paths.PKI()); err != nil {
		t.Fatal(err)
	}
	second := plan.Second()
	if _, err := (state{}).find(second.Name); !errors.Is(err, plan.ErrUnknownNode) {
		t.Errorf("a lab without it: error %v, want %v", err, plan.ErrUnknownNode)
	}
	s := state{SecondStorage: true}
	if n, err := s.find(second.Name); err != nil || !slices.Contains(s.nodes(), n) || slices.Contains(s.nodes(), plan.Spare()) {
		t.Errorf("found %+v, %v, guests %v", n, err, s.nodes())
	}
	seen := map[string]bool{}
	for _, n := range []plan.Node{plan.Storage(), second} {
		cfg, err := l.guestConfig(s, n)
		if err != nil {
			t.Fatal(err)
		}
		var values struct{ Listen, ServerID string }
		if err := json.Unmarshal(cfg.Storage.Files[targetConfig], &values); err != nil {
			t.Fatal(err)
		}
		if values.Listen != n.IP+":9443" || cfg.Services[0].Address != values.Listen || values.ServerID != n.Name {
			t.Errorf("%s serves at %s as %s, and is waited for at %s", n.Name, values.Listen, values.ServerID, cfg.Services[0].Address)
		}
		for _, own := range []string{l.guestDisk(n), string(cfg.Storage.Files[driver.CertFile])} {
			if seen[own] {
				t.Errorf("%s has what the other one has: %.40s", n.Name, own)
			}
			seen[own] = true
		}
	}
}

func TestUpOptions(t *testing.T) {
	one := state{Complete: true}
	for name, tc := range map[string]struct {
		o    UpOptions
		s    state
		want string
	}{
		"new":                     {o: UpOptions{SecondStorage: true}},
		"again":                   {o: UpOptions{SecondStorage: true}, s: state{Complete: true, SecondStorage: true}},
		"not named again":         {s: state{Complete: true, SecondStorage: true}},
		"left by a killed up":     {o: UpOptions{StoragePair: true}, s: state{SecondStorage: true}},
		"a pair and a second one": {o: UpOptions{SecondStorage: true, StoragePair: true}, want: "for two labs"},
		"a second one of a pair":  {o: UpOptions{SecondStorage: true}, s: state{Complete: true, StoragePair: true}, want: "for two labs"},
		"too late for a second":   {o: UpOptions{SecondStorage: true}, s: one, want: "a second one is made with a new lab"},
		"too late for a pair":     {o: UpOptions{StoragePair: true}, s: one, want: "a pair is made with a new lab"},
		"too late for no iscsid":  {o: UpOptions{WithoutISCSID: true}, s: one, want: "have an iscsid"},
		"too late for a root":     {o: UpOptions{ReadOnlyRoot: true}, s: one, want: "a root that can be written"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.o.check("x", tc.s)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestGuestConfig(t *testing.T) {
	l := newTestLab(t, "guest")
	if err := pki.Write(l.Paths.PKI()); err != nil {
		t.Fatal(err)
	}
	for _, n := range plan.Nodes() {
		cfg, err := l.guestConfig(state{Token: "t", Sizes: Sizes{StorageDelay: time.Millisecond}}, n)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Token != "t" || cfg.Network.IP != n.IP+"/24" {
			t.Errorf("%s: %+v", n.Name, cfg)
		}
		if worker := cfg.Worker != nil; worker != (n.Role == plan.RoleWorker) {
			t.Errorf("%s of role %s: worker part %v", n.Name, n.Role, worker)
		}
		if n.Role == plan.RoleStorage && (cfg.Storage.Delay != time.Millisecond || len(cfg.Services) != 1) {
			t.Errorf("%s: %+v", n.Name, cfg)
		}
		if n.Role == plan.RoleWorker && len(cfg.Worker.ServingKey) == 0 {
			t.Errorf("%s has no serving key", n.Name)
		}
	}
}
