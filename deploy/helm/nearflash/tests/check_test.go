package charttest

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/app/controller"
)

const (
	// checkName is that of what `helm test` runs.
	checkName = "nearflash-check"
	checkNode = "node-checked"
)

// testCheck does what the pod of `helm test` does, with the account and the
// arguments that the chart gives it: on an installation that nothing runs of, on one
// that looks as if everything ran, and on ones that lack a single thing.
func (c *cluster) testCheck(t *testing.T) {
	args := c.installHooks(t)
	kubeconfig := c.tokenConfig(t, c.podToken(t, checkName, checkNode))
	t.Setenv("KUBECONFIG", kubeconfig)

	out, err := runCheck(t, args)
	if err == nil {
		t.Fatalf("the check passes where nothing runs:\n%s", out)
	}
	for _, want := range []string{"lease nearflash-controller:", "lease external-resizer-csi-nearflash-io:", "DaemonSet nearflash-node"} {
		if !strings.Contains(out, "WRONG  "+want) {
			t.Errorf("no word on %s:\n%s", want, out)
		}
	}
	healthy := c.pretendToRun(t)
	if out, err := runCheck(t, args); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for name, tc := range healthy.breakages() {
		t.Run(name, func(t *testing.T) {
			tc.do(t)
			out, err := runCheck(t, args)
			tc.undo(t)
			if err == nil || !strings.Contains(out, tc.want) {
				t.Errorf("got %v, want a line with %q:\n%s", err, tc.want, out)
			}
		})
	}
	if out, err := runCheck(t, args); err != nil {
		t.Errorf("%v after everything was put right:\n%s", err, out)
	}
}

// installHooks makes what helm would make for `helm test`, but the pod, and returns
// the pod's arguments.
func (c *cluster) installHooks(t *testing.T) []string {
	t.Helper()
	var args []string
	for _, object := range mustTemplate(t, valuesArgs("static")...) {
		if object.GetAnnotations()["helm.sh/hook"] != "test" {
			continue
		}
		if object.GetKind() != "Pod" {
			if err := c.admin.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &pod); err != nil {
			t.Fatal(err)
		}
		args = pod.Spec.Containers[0].Args
	}
	if len(args) == 0 || args[0] != "check" {
		t.Fatalf("the pod of `helm test` runs %q, want check", args)
	}
	return args[1:]
}

// tokenConfig writes a kubeconfig for a token.
func (c *cluster) tokenConfig(t *testing.T, token string) string {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, c.config.CAData, 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"x",
"contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}],
"clusters":[{"name":"x","cluster":{"server":%q,"certificate-authority":%q}}],
"users":[{"name":"x","user":{"token":%q}}]}`, "https://"+strings.TrimPrefix(c.config.Host, "https://"), ca, token)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// runCheck looks once, with the rendered arguments.
func runCheck(t *testing.T, args []string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	check := controller.Check{Out: &out}
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	check.AddFlags(flags)
	if err := flags.Parse(append(append([]string{}, args...), "--timeout=0")); err != nil {
		t.Fatal(err)
	}
	err := check.Run(t.Context())
	return out.String(), err
}

// running are the objects that a healthy installation has.
type running struct {
	c       *cluster
	lease   *coordinationv1.Lease
	set     *appsv1.DaemonSet
	csiNode *storagev1.CSINode
}

// pretendToRun makes the API server say what it says when everything runs.
func (c *cluster) pretendToRun(t *testing.T) *running {
	t.Helper()
	r := &running{c: c, set: &appsv1.DaemonSet{}}
	duration, holder := int32(15), "somebody"
	for _, name := range []string{
		"nearflash-controller", "csi-nearflash-io", "external-attacher-leader-csi-nearflash-io", "external-resizer-csi-nearflash-io",
	} {
		r.lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &duration, RenewTime: &metav1.MicroTime{Time: time.Now()}},
		}
		c.make(t, r.lease)
	}
	r.csiNode = &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: checkNode},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "csi.nearflash.io", NodeID: checkNode}}},
	}
	c.make(t, r.csiNode)
	c.make(t, newPool(checkNode))
	if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "nearflash-node"}, r.set); err != nil {
		t.Fatal(err)
	}
	r.nodesReady(t, 1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nearflash-node-checked", Labels: r.set.Spec.Selector.MatchLabels},
		Spec:       corev1.PodSpec{NodeName: checkNode, Containers: []corev1.Container{{Name: "c", Image: "nearflash.local/none:none"}}},
	}
	c.make(t, pod)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := c.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return r
}

// make creates an object.
func (c *cluster) make(t *testing.T, object client.Object) {
	t.Helper()
	if err := c.admin.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// nodesReady sets on how many of one nodes the plugin is ready.
func (r *running) nodesReady(t *testing.T, n int32) {
	t.Helper()
	r.set.Status = appsv1.DaemonSetStatus{ObservedGeneration: r.set.Generation, DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, NumberReady: n}
	if err := r.c.admin.Status().Update(t.Context(), r.set); err != nil {
		t.Fatal(err)
	}
}

// renewed sets when the lease was renewed, and by whom.
func (r *running) renewed(t *testing.T, holder string, at time.Time) {
	t.Helper()
	r.lease.Spec.HolderIdentity, r.lease.Spec.RenewTime = &holder, &metav1.MicroTime{Time: at}
	if err := r.c.admin.Update(t.Context(), r.lease); err != nil {
		t.Fatal(err)
	}
}

// breakage takes one thing away and gives it back.
type breakage struct {
	do, undo func(*testing.T)
	want     string
}

func (r *running) breakages() map[string]breakage {
	register := func(drivers ...storagev1.CSINodeDriver) func(*testing.T) {
		return func(t *testing.T) {
			r.csiNode.Spec.Drivers = drivers
			if err := r.c.admin.Update(t.Context(), r.csiNode); err != nil {
				t.Fatal(err)
			}
		}
	}
	well := func(t *testing.T) { r.renewed(t, "somebody", time.Now()) }
	return map[string]breakage{
		"nobody leads": {
			do: func(t *testing.T) { r.renewed(t, "", time.Now()) }, undo: well,
			want: "WRONG  lease external-resizer-csi-nearflash-io has no holder",
		},
		"the leader is gone": {
			do: func(t *testing.T) { r.renewed(t, "somebody", time.Now().Add(-time.Hour)) }, undo: well,
			want: "WRONG  lease external-resizer-csi-nearflash-io of somebody was last renewed 1h",
		},
		"a plugin is not ready": {
			do: func(t *testing.T) { r.nodesReady(t, 0) }, undo: func(t *testing.T) { r.nodesReady(t, 1) },
			want: "WRONG  the node plugin is ready on 0 of 1 nodes",
		},
		"a kubelet does not know the driver": {
			do: register(), undo: register(storagev1.CSINodeDriver{Name: "csi.nearflash.io", NodeID: checkNode}),
			want: "WRONG  the kubelet of node " + checkNode + " does not know csi.nearflash.io",
		},
		"a node does not report": {
			do: func(t *testing.T) {
				if err := r.c.admin.Delete(t.Context(), newPool(checkNode)); err != nil {
					t.Fatal(err)
				}
			},
			undo: func(t *testing.T) { r.c.make(t, newPool(checkNode)) },
			want: "WRONG  node " + checkNode + " has no CachePool",
		},
	}
}
