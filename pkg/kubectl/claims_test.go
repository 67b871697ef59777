package kubectl_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// tenantClaim is a claim as a tenant sees it.
func tenantClaim(namespace, name, provisioner string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": provisioner}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-" + name, StorageClassName: ptr("fast")},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")}},
	}
}

func told(claim, name, controller, reason, message string, ago time.Duration) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: "shop", Name: name},
		InvolvedObject:      corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: claim, UID: types.UID("uid-" + claim)},
		ReportingController: controller, Reason: reason, Message: message, LastTimestamp: before(ago),
	}
}

// TestTenant: who has rights in a namespace alone sees the claims there and what was told about
// them, and nothing of other namespaces.
func TestTenant(t *testing.T) {
	gone := told("data", "e5", "nearflash-node", "CacheActive", "of a claim before", time.Second)
	gone.InvolvedObject.UID = "uid-before"
	objs := []client.Object{
		tenantClaim("shop", "data", driver), tenantClaim("shop", "logs", driver), tenantClaim("shop", "other", "other.example.com"), tenantClaim("web", "site", driver),
		told("data", "e1", "nearflash-node", "PoolFull", "no room", time.Hour), told("data", "e2", "nearflash-node", "CacheActive", "a new, empty cache on node node-a", 5*time.Minute),
		told("data", "e3", "persistentvolume-controller", "Foreign", "x", time.Minute), told("other", "e4", "other", "Foreign", "x", time.Minute), gone,
	}
	const note = "You may not read CachedVolumes. This is what your claims and their last events say:\n"
	for name, tc := range map[string]struct {
		args             []string
		forbid           []client.Object
		wantOut, wantErr string
	}{
		"all claims": {args: []string{"list", "-n", "shop"}, wantErr: note, wantOut: `
CLAIM   STATUS   CAPACITY   CLASS   AGO   EVENT         MESSAGE
data    Bound    20Gi       fast    5m    CacheActive   a new, empty cache on node node-a
logs    Bound    20Gi       fast    -     -             -
`},
		"by name": {args: []string{"list", "-n", "shop", "pvc/logs"}, wantErr: note, wantOut: `
CLAIM   STATUS   CAPACITY   CLASS   AGO   EVENT   MESSAGE
logs    Bound    20Gi       fast    -     -       -
`},
		"none":               {args: []string{"list", "-n", "empty"}, wantErr: note + "No claims of nearflash found in namespace empty.\n"},
		"of another":         {args: []string{"list", "-n", "shop", "site"}, wantErr: "error: there is no claim site in namespace shop: name its namespace with -n; `kubectl nearflash list -A` shows all volumes\n"},
		"no claim":           {args: []string{"list", "-n", "shop", "cvol/pvc-data"}, wantErr: "error: cvol/pvc-data is no claim in namespace shop, and you may not read CachedVolumes: name a claim of yours\n"},
		"no events":          {args: []string{"list", "-n", "shop", "data"}, forbid: []client.Object{&corev1.Event{}}, wantErr: note, wantOut: "CLAIM   STATUS   CAPACITY   CLASS   AGO   EVENT   MESSAGE\ndata    Bound    20Gi       fast    -     -       -\n"},
		"no claims either":   {args: []string{"list", "-n", "shop"}, forbid: []client.Object{&corev1.PersistentVolumeClaim{}}, wantErr: "error: list CachedVolumes: cachedvolumes is forbidden: no role: ask for the permissions in docs/reference/kubectl.md, or use another context\n"},
		"all namespaces":     {args: []string{"list", "-A"}, wantErr: "error: list CachedVolumes: cachedvolumes is forbidden: no role: ask for the permissions in docs/reference/kubectl.md, or use another context\n"},
		"objects are wanted": {args: []string{"list", "-n", "shop", "-o", "name"}, wantErr: "error: list CachedVolumes: cachedvolumes is forbidden: no role: ask for the permissions in docs/reference/kubectl.md, or use another context\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, objs...)
			r.forbid(append(tc.forbid, &v1alpha1.CachedVolume{}, &corev1.PersistentVolume{}, &corev1.Node{})...)
			code, out, errOut := r.run(tc.args...)
			expect(t, "output", out, tc.wantOut)
			expect(t, "errors", errOut, tc.wantErr)
			if (code != 0) != strings.HasPrefix(tc.wantErr, "error:") {
				t.Errorf("exit status %d", code)
			}
		})
	}
}

// TestViewer: Kubernetes' role view has neither PersistentVolumes nor nodes; with nearflash's
// objects it shows the same volumes.
func TestViewer(t *testing.T) {
	claimed := func(v *v1alpha1.CachedVolume) {
		v.Spec.ClaimRef = &v1alpha1.ClaimReference{Namespace: "shop", Name: "data"}
	}
	objs := append(bound("shop", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib), claimed), bound("shop", "else", "pvc-2", on("node-a"))...)
	for name, tc := range map[string]struct {
		args             []string
		wantOut, wantErr string
	}{
		"list": {args: []string{"list", "-n", "shop"}, wantOut: `
CLAIM   MODE        SIZE   NODE     CACHED   HIT%   DIRTY   USED    WAITS-FOR
data    writeback   10Gi   node-a   yes      94     512Mi   8.2Gi   -
`},
		"by claim": {args: []string{"list", "-n", "shop", "data", "-o", "name"}, wantOut: "cachedvolume.nearflash.io/pvc-1\n"},
		"a claim that the record does not name": {args: []string{"list", "-n", "shop", "else", "-o", "name"},
			wantErr: "error: claim else names PersistentVolume pvc-2, which is not known to belong to it: use an account that may read PersistentVolumes\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, objs...)
			r.forbid(&corev1.PersistentVolume{}, &corev1.Node{})
			code, out, errOut := r.run(tc.args...)
			expect(t, "output", out, tc.wantOut)
			expect(t, "errors", errOut, tc.wantErr)
			if (code != 0) != (tc.wantErr != "") {
				t.Errorf("exit status %d", code)
			}
		})
	}
	r := newRig(t, objs...)
	r.forbid(&corev1.PersistentVolume{}, &corev1.Node{})
	if _, out, _ := r.run("describe", "-n", "shop", "data"); !strings.Contains(out, "node-a (you may not see its state)") || !strings.Contains(out, "Writes are acknowledged by the SSD of node-a") {
		t.Errorf("describe says\n%s", out)
	}
}

// TestWaitsFor: a volume that waits says for what, and for which node.
func TestWaitsFor(t *testing.T) {
	hold := func(name string) func(*v1alpha1.CachedVolume) {
		return func(v *v1alpha1.CachedVolume) {
			v.Spec.Hold = &v1alpha1.VolumeHold{Name: name, Token: "t", Since: before(time.Second)}
		}
	}
	for name, tc := range map[string]struct {
		opts []func(*v1alpha1.CachedVolume)
		want string
	}{
		"nothing":                         {[]func(*v1alpha1.CachedVolume){on("up")}, "up -"},
		"dirty, at work":                  {[]func(*v1alpha1.CachedVolume){writeback, on("up")}, "up -"},
		"dirty, and its node is away":     {[]func(*v1alpha1.CachedVolume){writeback, on("down")}, "down down, not Ready"},
		"dirty, and its node is gone":     {[]func(*v1alpha1.CachedVolume){writeback, released("lost")}, "lost lost, not in the cluster"},
		"dirty, after it left":            {[]func(*v1alpha1.CachedVolume){writeback, released("up")}, "up up to flush"},
		"clean, after it left":            {[]func(*v1alpha1.CachedVolume){released("down")}, "- -"},
		"a snapshot":                      {[]func(*v1alpha1.CachedVolume){on("up"), hold("snapshot-1")}, "up a snapshot"},
		"a change":                        {[]func(*v1alpha1.CachedVolume){on("up"), applied(metav1.ConditionFalse, v1alpha1.ReasonFlushing, "x")}, "up a change"},
		"a change that cannot be":         {[]func(*v1alpha1.CachedVolume){on("up"), applied(metav1.ConditionFalse, v1alpha1.ReasonRejected, "x")}, "up -"},
		"a change, not attached any more": {[]func(*v1alpha1.CachedVolume){released("up"), applied(metav1.ConditionFalse, v1alpha1.ReasonFlushing, "x")}, "- -"},
	} {
		r := newRig(t, append(bound("shop", "data", "pvc-1", tc.opts...), node("up", true), node("down", false))...)
		_, out, errOut := r.run("list", "-n", "shop")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		last := strings.Fields(lines[len(lines)-1])
		if len(last) < 9 || errOut != "" {
			t.Errorf("%s: %q, %q", name, out, errOut)
			continue
		}
		if got := last[3] + " " + strings.Join(last[8:], " "); got != tc.want {
			t.Errorf("%s: node and what it waits for %q, want %q", name, got, tc.want)
		}
	}
}
