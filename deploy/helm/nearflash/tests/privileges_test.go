package charttest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// securityDoc is the page that says what the containers may do.
const securityDoc = "../../../../docs/explanation/security.md"

// TestPrivileges: the page says of each container what the chart gives to it by default,
// no less and no more, and why.
func TestPrivileges(t *testing.T) {
	for _, values := range []string{"static", "monitoring"} {
		t.Run(values, func(t *testing.T) {
			var containers, paths []string
			for _, object := range mustTemplate(t, valuesArgs(values)...) {
				var pod corev1.PodSpec
				switch object.GetKind() {
				case "DaemonSet", "Deployment", "StatefulSet", "Job", "CronJob":
					var d appsv1.Deployment // their templates are in the same place
					if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &d); err != nil {
						t.Fatal(err)
					}
					pod = d.Spec.Template.Spec
				default:
					continue
				}
				for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
					containers = append(containers, strings.Join([]string{c.Name, user(pod, c), powers(pod, c), shared(pod)}, " | "))
					paths = append(paths, hostPaths(pod, c)...)
				}
			}
			compare(t, "containers", 4, containers)
			compare(t, "host paths", 2, paths)
		})
	}
}

// compare wants the first n columns of a table of the page to be those lines, and a
// reason in the last one.
func compare(t *testing.T, table string, n int, got []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(securityDoc))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "<!-- privileges: "+table+" -->\n")
	if !found {
		t.Fatalf("%s has no table %q", securityDoc, table)
	}
	rest, _, _ = strings.Cut(rest, "<!-- end -->")
	var want []string
	for i, line := range slices.Collect(strings.Lines(rest)) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if i < 2 {
			continue // the head
		}
		if len(cells) != n+1 || cells[n] == "" {
			t.Errorf("a reason is missing: %s", line)
			continue
		}
		want = append(want, strings.Join(cells[:n], " | "))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		t.Errorf("%s (-page +chart):\n%s", table, diff)
	}
}

func user(pod corev1.PodSpec, c corev1.Container) string {
	switch {
	case c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil:
		return fmt.Sprint(*c.SecurityContext.RunAsUser)
	case pod.SecurityContext != nil && pod.SecurityContext.RunAsUser != nil:
		return fmt.Sprint(*pod.SecurityContext.RunAsUser)
	}
	return "of the image"
}

// powers says what a container may do: "privileged", "nothing", or what keeps it from
// being nothing.
func powers(pod corev1.PodSpec, c corev1.Container) string {
	s := c.SecurityContext
	if s == nil {
		return "no security context"
	}
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	if is(s.Privileged, true) {
		return "privileged"
	}
	var out []string
	if !is(s.AllowPrivilegeEscalation, false) {
		out = append(out, "escalation")
	}
	if !is(s.ReadOnlyRootFilesystem, true) {
		out = append(out, "a root filesystem that can be written")
	}
	if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		out = append(out, "the runtime's capabilities")
	} else {
		for _, capability := range s.Capabilities.Add {
			out = append(out, string(capability))
		}
	}
	if p := pod.SecurityContext; p == nil || !is(p.RunAsNonRoot, true) {
		out = append(out, "root")
	} else if p.SeccompProfile == nil || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		out = append(out, "any system call")
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

// shared lists the namespaces of the host that a pod is in.
func shared(pod corev1.PodSpec) string {
	var out []string
	for name, on := range map[string]bool{"network": pod.HostNetwork, "IPC": pod.HostIPC, "processes": pod.HostPID} {
		if on {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return "nothing"
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(b, a) })
	return strings.Join(out, ", ")
}

// hostPaths lists the paths of the host that a container sees.
func hostPaths(pod corev1.PodSpec, c corev1.Container) []string {
	var out []string
	for _, m := range c.VolumeMounts {
		for _, v := range pod.Volumes {
			if v.Name != m.Name || v.HostPath == nil {
				continue
			}
			access := "write"
			if m.ReadOnly {
				access = "read"
			}
			out = append(out, v.HostPath.Path+" | "+access)
		}
	}
	return out
}
