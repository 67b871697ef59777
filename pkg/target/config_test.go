package target_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/target"
)

const goodConfig = `
listen: 192.0.2.1:9700
tls:
  certFile: /etc/nearflash-target/tls.crt
  keyFile: /etc/nearflash-target/tls.key
  clientCAFile: /etc/nearflash-target/ca.crt
  allowedClientNames: [nearflash-controller]
serverID: storage-1
volumeGroup: nearflash
thinPool: pool
portals: ["192.0.2.1:3260", "[2001:db8::1]:3260"]
stateDir: /var/lib/nearflash-target
`

func load(t *testing.T, text string) (target.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return target.LoadConfig(file)
}

func TestLoadConfig(t *testing.T) {
	got, err := load(t, goodConfig)
	if err != nil {
		t.Fatal(err)
	}
	want := target.Config{
		Listen: "192.0.2.1:9700",
		TLS: target.TLSConfig{
			CertFile: "/etc/nearflash-target/tls.crt", KeyFile: "/etc/nearflash-target/tls.key", ClientCAFile: "/etc/nearflash-target/ca.crt",
			AllowedClientNames: []string{"nearflash-controller"},
		},
		ServerID: "storage-1", VolumeGroup: "nearflash", ThinPool: "pool", DefaultProvisioning: target.Thin, MaxOvercommit: 10,
		Portals: []string{"192.0.2.1:3260", "[2001:db8::1]:3260"}, StateDir: "/var/lib/nearflash-target",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, metrics := range []string{
		`{listen: "127.0.0.1:9811"}`, `{listen: "[::1]:9811"}`, `{listen: "192.0.2.1:9811"}`, `{listen: "[::]:9811", allowedClientNames: [prometheus]}`,
		`{listen: "192.0.2.1:9811", clientCAFile: /etc/ca.crt}`,
	} {
		if _, err := load(t, goodConfig+"metrics: "+metrics); err != nil {
			t.Errorf("metrics %s: %v", metrics, err)
		}
	}
	thick, err := load(t, strings.Replace(goodConfig, "thinPool: pool\n", "", 1))
	if err != nil || thick.DefaultProvisioning != target.Thick {
		t.Errorf("without a pool: %q, %v", thick.DefaultProvisioning, err)
	}
}

func TestLoadConfigErrors(t *testing.T) {
	cases := map[string]struct {
		from, to, want string
	}{
		"unknown key":         {"serverID:", "serverId2:", "serverId2"},
		"listen":              {"192.0.2.1:9700", "nowhere", "listen:"},
		"certificate":         {"/etc/nearflash-target/tls.crt", "tls.crt", "tls.certFile:"},
		"no client CA":        {"  clientCAFile: /etc/nearflash-target/ca.crt\n", "", "tls.clientCAFile:"},
		"empty client name":   {"[nearflash-controller]", `[""]`, "tls.allowedClientNames:"},
		"server id":           {"storage-1", "Storage_1", "serverID:"},
		"volume group":        {"volumeGroup: nearflash", "volumeGroup: -x", "volumeGroup:"},
		"pool":                {"thinPool: pool", "thinPool: a/b", "thinPool:"},
		"thin without pool":   {"thinPool: pool", "defaultProvisioning: thin", "defaultProvisioning: thin needs"},
		"fat":                 {"thinPool: pool", "defaultProvisioning: fat", "defaultProvisioning:"},
		"overcommit":          {"thinPool: pool", "maxOvercommit: 0.5", "maxOvercommit:"},
		"devices":             {"thinPool: pool", "lvmDevices: [sda]", "lvmDevices:"},
		"no portal":           {`["192.0.2.1:3260", "[2001:db8::1]:3260"]`, "[]", "portals:"},
		"portal without port": {"192.0.2.1:3260", "192.0.2.1", "portals:"},
		"wildcard portal":     {"192.0.2.1:3260", "0.0.0.0:3260", "cannot connect"},
		"portal by name":      {"192.0.2.1:3260", "storage:3260", "portals:"},
		"a path as state":     {"thinPool: pool", "stateVolume: vg/state", "stateVolume:"},
		"a volume as state":   {"thinPool: pool", "stateVolume: nf-state", "stateVolume:"},
		"metrics by name":     {"stateDir:", "metrics: {listen: \"localhost:9811\"}\nstateDir:", "metrics.listen:"},
		"metrics everywhere":  {"stateDir:", "metrics: {listen: \":9811\"}\nstateDir:", "metrics.listen:"},
		"metrics at port 0":   {"stateDir:", "metrics: {listen: \"127.0.0.1:0\"}\nstateDir:", "metrics.listen:"},
		"metrics nowhere":     {"stateDir:", "metrics: {allowedClientNames: [prometheus]}\nstateDir:", "metrics.listen:"},
		"metrics' CA":         {"stateDir:", "metrics: {listen: \"192.0.2.1:9811\", clientCAFile: ca.crt}\nstateDir:", "metrics.clientCAFile:"},
		"metrics for nobody":  {"stateDir:", "metrics: {listen: \"192.0.2.1:9811\", allowedClientNames: [\"\"]}\nstateDir:", "metrics.allowedClientNames:"},
		"certificates for plain text": {
			"stateDir:", "metrics: {listen: \"[::1]:9811\", clientCAFile: /ca.crt}\nstateDir:", "metrics.listen: on a loopback",
		},
		"a scraper that may manage volumes": {
			"  allowedClientNames: [nearflash-controller]\n", "metrics: {listen: \"192.0.2.1:9811\"}\n", "metrics.clientCAFile: without it",
		},
		"state directory": {"/var/lib/nearflash-target", "state", "stateDir:"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, strings.Replace(goodConfig, tc.from, tc.to, 1))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to name %q", err, tc.want)
			}
		})
	}
	t.Run("all problems at once", func(t *testing.T) {
		_, err := load(t, "listen: x\n")
		for _, key := range []string{"listen", "tls.certFile", "tls.keyFile", "tls.clientCAFile", "serverID", "volumeGroup", "portals", "stateDir"} {
			if err == nil || !strings.Contains(err.Error(), key+":") {
				t.Errorf("%s is not named in: %v", key, err)
			}
		}
	})
}

func TestExampleConfigIsValid(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "deploy", "target", "config.example.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, string(b)); err != nil {
		t.Error(err)
	}
}

// TestReferenceNamesEveryKey keeps docs/reference/target.md complete.
func TestReferenceNamesEveryKey(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/target.md")
	if err != nil {
		t.Fatal(err)
	}
	var keys func(prefix string, c reflect.Type)
	keys = func(prefix string, c reflect.Type) {
		for i := range c.NumField() {
			f := c.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Type.Kind() == reflect.Struct {
				keys(name+".", f.Type)
			} else if !strings.Contains(string(text), "`"+prefix+name+"`") {
				t.Errorf("the reference does not name %s%s", prefix, name)
			}
		}
	}
	keys("", reflect.TypeFor[target.Config]())
}
