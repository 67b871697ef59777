package artifact

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// TestModulesAgree: a package is compiled once for all programs of the lab only if
// these are built with the same versions of all that it needs. From nothing, that is
// a third of the lab's time.
func TestModulesAgree(t *testing.T) {
	apart := map[string]string{
		"github.com/container-storage-interface/spec":              "kubelet reads volume conditions where newer versions have none",
		"github.com/kubernetes-csi/external-snapshotter/client/v8": "that of the sidecars requires a newer client-go than the driver has; the API is the same",
	}
	versions := map[string]map[string][]string{}
	for _, dir := range []string{".", "hack", "hack/tools/kube", "hack/tools/etcd", "hack/tools/sidecars", "hack/tools/helm", "hack/tools/upstream", "hack/tools/pd"} {
		path := filepath.Join("../../..", dir, "go.mod")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		mod, err := modfile.Parse(path, data, nil)
		if err != nil {
			t.Fatal(err)
		}
		replaced := map[string]string{}
		for _, r := range mod.Replace {
			replaced[r.Old.Path] = r.New.Version
		}
		for _, r := range mod.Require {
			version := r.Mod.Version
			if v, found := replaced[r.Mod.Path]; found {
				version = v
			}
			if versions[r.Mod.Path] == nil {
				versions[r.Mod.Path] = map[string][]string{}
			}
			versions[r.Mod.Path][version] = append(versions[r.Mod.Path][version], dir)
		}
	}
	if len(versions) < 100 {
		t.Errorf("only %d modules are required", len(versions))
	}
	for _, path := range slices.Sorted(maps.Keys(versions)) {
		if _, known := apart[path]; known == (len(versions[path]) == 1) {
			var list []string
			for version, dirs := range versions[path] {
				list = append(list, version+" by "+strings.Join(dirs, " and "))
			}
			t.Errorf("%s is required as %s", path, strings.Join(list, ", as "))
		}
	}
}
