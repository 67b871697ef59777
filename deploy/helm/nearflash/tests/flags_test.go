package charttest

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/app/controller"
	"github.com/nearflash/nearflash/pkg/app/node"
)

// config is the configuration of one of our programs.
type config interface {
	AddFlags(fs *flag.FlagSet)
	Validate() error
}

// TestFlags gives the rendered arguments to the programs' own reading of them.
func TestFlags(t *testing.T) {
	for _, name := range snapshotValues {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, c := range containers(t, name) {
				var cfg config
				switch c.Name {
				case "nearflash-controller":
					cfg = &controller.Config{}
				case "nearflash-node":
					cfg = &node.Config{}
				default:
					continue
				}
				seen[c.Name] = true
				flags := flag.NewFlagSet(c.Name, flag.ContinueOnError)
				flags.SetOutput(io.Discard)
				klog.InitFlags(flags)
				cfg.AddFlags(flags)
				// What kubelet does with the variables of the environment, and with a ConfigMap.
				args := strings.NewReplacer("--targets=/etc/nearflash/targets", "--targets="+targetsFolder(t, name), "$(NODE_NAME)", "node-a", "$(NODE_IP)", "192.0.2.1", "$(NODE_IPS)", "192.0.2.1,2001:db8::1", "$(NAMESPACE)", namespace).Replace(strings.Join(c.Args, "\n"))
				if err := flags.Parse(strings.Split(args, "\n")); err != nil {
					t.Errorf("%s: %v", c.Name, err)
				} else if err := cfg.Validate(); err != nil {
					t.Errorf("%s: %v", c.Name, err)
				}
			}
			if len(seen) != 2 {
				t.Errorf("found only %v", seen)
			}
		})
	}
}

// targetsFolder is what the controller sees at /etc/nearflash/targets.
func targetsFolder(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if object := find(mustTemplate(t, valuesArgs(name)...), "ConfigMap", "nearflash-targets"); object != nil {
		for file, text := range convert[corev1.ConfigMap](t, object).Data {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// containers returns those of all rendered workloads.
func containers(t *testing.T, name string) []corev1.Container {
	t.Helper()
	var all []corev1.Container
	for _, object := range mustTemplate(t, valuesArgs(name)...) {
		if kind := object.GetKind(); kind != "Deployment" && kind != "DaemonSet" {
			continue
		}
		var workload appsv1.Deployment // the template of a DaemonSet has the same form
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &workload); err != nil {
			t.Fatal(err)
		}
		all = append(all, workload.Spec.Template.Spec.Containers...)
	}
	return all
}
