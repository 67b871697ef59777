package charttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	originNamespace = "nearflash-origins"
	// held is a finalizer and ours a label of nearflash: the policies know them by their
	// prefix.
	held = "nearflash.io/origin"
	ours = "nearflash.io/volume"
	// protection is Kubernetes' own finalizer of claims.
	protection = "kubernetes.io/pvc-protection"
)

// originsOn are the values that switch origins on.
var originsOn = []string{
	"--set", "origins.enabled=true", "--set", "storageClasses[0].name=cached",
	"--set", "storageClasses[0].parameters.backend=csi", "--set", "storageClasses[0].parameters.originStorageClass=pd",
}

// TestWithoutISCSI: a pod that need not have the host's /etc/iscsi starts where /etc cannot be written.
func TestWithoutISCSI(t *testing.T) {
	for value, want := range map[string]int{"true": 3, "false": 0} {
		out, err := helm(t.Context(), append([]string{"template", release, chartDir, "--kube-version", "1.36.0", "--set", "node.iscsi=" + value}, originsOn...)...)
		if err != nil {
			t.Fatal(err)
		}
		mounts := strings.Count(string(out), "mountPath: /etc/iscsi") + strings.Count(string(out), "mountPath: /var/lib/iscsi") + strings.Count(string(out), "mountPath: /run/lock/iscsi")
		paths := strings.Count(string(out), "path: /etc/iscsi") + strings.Count(string(out), "path: /var/lib/iscsi") + strings.Count(string(out), "path: /run/lock/iscsi")
		if mounts != want || paths != want {
			t.Errorf("node.iscsi=%s: %d mounts of %d directories, want %d", value, mounts, paths, want)
		}
	}
}

// TestHostIscsiadm: a plugin that runs the host's iscsiadm has nothing made in the host's /etc, sees the
// host's processes, and makes no initiator name.
func TestHostIscsiadm(t *testing.T) {
	out, err := helm(t.Context(), append([]string{"template", release, chartDir, "--kube-version", "1.36.0", "--set", "node.iscsid.run=nsenter"}, originsOn...)...)
	if err != nil {
		t.Fatal(err)
	}
	text := string(out)
	for _, not := range []string{"/etc/iscsi\n", "/var/lib/iscsi\n", "/run/lock/iscsi\n", "--make-initiator-name", "component: iscsid"} {
		if strings.Contains(text, not) {
			t.Errorf("it has %q", not)
		}
	}
	for _, want := range []string{"- --host-iscsiadm\n", "- --initiator-name-file=/etc/iscsi/initiatorname.iscsi\n", "hostPID: true\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q", want)
		}
	}
}

// TestOwnISCSID: the daemon that the chart brings and the plugin have one initiator name, which is not of
// the host's /etc, and the daemon cannot ask the API server for anything. Without volumes of iSCSI
// targets there is none.
func TestOwnISCSID(t *testing.T) {
	for args, want := range map[string]int{
		"node.iscsid.run=host": 0, "node.iscsid.run=nsenter": 0, "node.iscsid.run=own": 2, "node.iscsid.run=own,node.iscsi=false": 0,
	} {
		daemons, names := 0, 0
		for _, object := range mustTemplate(t, append([]string{"--set", "node.stateDir=/var/lib/other," + args}, originsOn...)...) {
			if object.GetKind() != "DaemonSet" {
				continue
			}
			text, err := object.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			names += strings.Count(string(text), `"path":"/var/lib/other/iscsi"`)
			if object.GetLabels()["app.kubernetes.io/component"] != "iscsid" {
				if made := strings.Contains(string(text), "--make-initiator-name"); made != (want > 0) {
					t.Errorf("%s: the plugin makes the initiator name: %v", args, made)
				}
				continue
			}
			daemons++
			if !strings.Contains(string(text), `"automountServiceAccountToken":false`) || !strings.Contains(string(text), `"hostNetwork":true`) {
				t.Errorf("%s: the daemon is %s", args, text)
			}
			if selector, _, _ := unstructured.NestedString(object.Object, "spec", "selector", "matchLabels", "app.kubernetes.io/component"); selector != "iscsid" {
				t.Errorf("%s: the daemon selects pods of %q", args, selector)
			}
		}
		if names != want || daemons != want/2 {
			t.Errorf("%s: %d daemons, %d pods with the name below node.stateDir, want %d", args, daemons, names, want)
		}
	}
}

// testOrigins switches origins of other drivers on in an installation that had none, and
// off again. It leaves them on, with a claim.
func (c *cluster) testOrigins(t *testing.T) {
	ctx := t.Context()
	upgrade := func(args ...string) error {
		return c.helm(ctx, append([]string{"upgrade", release, chartDir}, args...)...)
	}
	if err := upgrade(originsOn...); err != nil {
		t.Fatal(err)
	}
	controller := c.as(t, c.podToken(t, "nearflash-controller", "node-a"))
	c.waitForOriginPolicies(t, controller)
	t.Run("pods", c.testOriginPods)
	t.Run("claims", func(t *testing.T) { c.testOriginClaims(t, controller) })
	t.Run("snapshots", func(t *testing.T) { c.testOriginSnapshots(t, controller) })
	t.Run("attachments", func(t *testing.T) { c.testOriginAttachments(t, controller) })
	t.Run("the controller's own limits", func(t *testing.T) { c.testOriginAccount(t, controller) })
	t.Run("namespace", func(t *testing.T) {
		c.make(t, newNamespace("elsewhere"))
		forbidden(t, "delete the namespace", c.admin.Delete(ctx, newNamespace(originNamespace)))
		allowed(t, "delete another namespace", c.admin.Delete(ctx, newNamespace("elsewhere"), client.DryRunAll))
	})
	t.Run("off", func(t *testing.T) {
		claim := newInnerClaim("in-use")
		c.make(t, claim)
		for name, args := range map[string][]string{
			"off": {"--reset-values"}, "elsewhere": append(slices.Clone(originsOn), "--set", "origins.namespace=other"),
		} {
			if err := upgrade(args...); err == nil || !strings.Contains(err.Error(), "namespace "+originNamespace+" has 1 claims") {
				t.Errorf("%s while there is a claim: %v", name, err)
			}
		}
		c.drop(t, controller, claim)
		if err := upgrade("--reset-values"); err != nil {
			t.Fatal(err)
		}
		c.wantNamespaceKept(t)
		notes, err := helm(ctx, "get", "notes", release, "--namespace", namespace, "--kubeconfig", c.kubeconfig)
		if err != nil || !strings.Contains(string(notes), "NAMESPACE "+originNamespace+" REMAINS") {
			t.Errorf("no word on what remains (%v):\n%s", err, notes)
		}
		if err := upgrade(originsOn...); err != nil {
			t.Errorf("on again, with the namespace that stayed: %v", err)
		}
		c.make(t, newInnerClaim("data"))
	})
}

// wantNamespaceKept wants the namespace of inner claims to be there, and to stay.
func (c *cluster) wantNamespaceKept(t *testing.T) {
	t.Helper()
	var kept corev1.Namespace
	if err := c.admin.Get(t.Context(), client.ObjectKey{Name: originNamespace}, &kept); err != nil || !kept.DeletionTimestamp.IsZero() {
		t.Errorf("the namespace of inner claims did not stay: %v, deleted at %v", err, kept.DeletionTimestamp)
	}
}

// waitForOriginPolicies waits until every policy refuses something.
func (c *cluster) waitForOriginPolicies(t *testing.T, controller client.Client) {
	t.Helper()
	claim, foreign := newInnerClaim("probe"), newOriginVolume("probe", "shop")
	c.make(t, claim)
	c.make(t, foreign)
	err := eventually(t.Context(), "wait for the admission policies of origins", func(ctx context.Context) error {
		for _, err := range []error{
			c.admin.Create(ctx, newPod(originNamespace), client.DryRunAll),
			c.admin.Delete(ctx, claim, client.DryRunAll),
			c.admin.Create(ctx, newAttachment("probe", "pv", ours), client.DryRunAll),
			c.admin.Delete(ctx, newNamespace(originNamespace), client.DryRunAll),
			controller.Delete(ctx, foreign, client.DryRunAll),
		} {
			if !apierrors.IsForbidden(err) {
				return errors.Join(errNotRefused, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c.drop(t, controller, claim)
}

func (c *cluster) testOriginPods(t *testing.T) {
	ctx := t.Context()
	forbidden(t, "run a pod beside inner claims", c.admin.Create(ctx, newPod(originNamespace)))
	forbidden(t, "have a controller run one", c.impersonate(t, "system:serviceaccount:kube-system:job-controller").Create(ctx, newPod(originNamespace)))
	allowed(t, "run a pod elsewhere", c.admin.Create(ctx, newPod("default"), client.DryRunAll))
}

func (c *cluster) testOriginClaims(t *testing.T, controller client.Client) {
	ctx := t.Context()
	claim := newInnerClaim("data")
	allowed(t, "make an inner claim", controller.Create(ctx, claim))
	change := func(as client.Client, change func(*corev1.PersistentVolumeClaim)) error {
		t.Helper()
		changed := c.stored(t, claim)
		change(changed)
		return as.Update(ctx, changed)
	}
	finalizers := func(names ...string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Finalizers = names }
	}
	binder := c.impersonate(t, "system:serviceaccount:kube-system:persistent-volume-binder")
	guard := c.impersonate(t, "system:serviceaccount:kube-system:pvc-protection-controller")
	allowed(t, "bind it", change(binder, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv-data" }))
	allowed(t, "give it back to the scheduler", change(c.admin, func(c *corev1.PersistentVolumeClaim) { c.Annotations["x"] = "y" }))
	allowed(t, "end Kubernetes' own protection", change(guard, finalizers(held)))
	allowed(t, "add another driver's finalizer", change(c.admin, finalizers("example.com/x", held, protection)))
	for name, to := range map[string][]string{"take ours": {protection}, "take all": nil, "add one of ours": {held, "nearflash.io/other", protection}} {
		forbidden(t, name, change(guard, finalizers(to...)))
		patched := c.stored(t, claim)
		before := patched.DeepCopy()
		patched.Finalizers = to
		// The API keeps metadata that is written with a status.
		forbidden(t, name+" with a status", c.admin.Status().Patch(ctx, patched, client.MergeFrom(before)))
	}
	const marks = `{"metadata":{"%s":{"nearflash.io/%s":%s}}}`
	for name, text := range map[string]string{
		"change the owner on it": fmt.Sprintf(marks, "annotations", "admitted", `"y"`), "take the owner from it": fmt.Sprintf(marks, "annotations", "admitted", "null"),
		"add to it": fmt.Sprintf(marks, "annotations", "x", `""`), "give it to another volume": fmt.Sprintf(marks, "labels", "volume", `"y"`),
	} {
		patch := client.RawPatch("application/merge-patch+json", []byte(text))
		forbidden(t, name, c.admin.Patch(ctx, c.stored(t, claim), patch))
		forbidden(t, name+" with a status", c.admin.Status().Patch(ctx, c.stored(t, claim), patch))
		allowed(t, name+" as the controller", controller.Patch(ctx, c.stored(t, claim), patch, client.DryRunAll))
	}
	resized := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"capacity":{"storage":"2Gi"},"conditions":null}}`))
	allowed(t, "say that it has grown, as a kubelet", c.impersonate(t, "system:node:node-a").Status().Patch(ctx, c.stored(t, claim), resized))
	allowed(t, "say that it has grown", controller.Status().Patch(ctx, c.stored(t, claim), resized))

	inNamespace := client.InNamespace(originNamespace)
	namespaces := c.impersonate(t, "system:serviceaccount:kube-system:namespace-controller")
	forbidden(t, "delete it", c.admin.Delete(ctx, claim))
	forbidden(t, "delete all", c.admin.DeleteAllOf(ctx, &corev1.PersistentVolumeClaim{}, inNamespace))
	forbidden(t, "delete all, as who ends namespaces", namespaces.DeleteAllOf(ctx, &corev1.PersistentVolumeClaim{}, inNamespace))
	if left := c.stored(t, claim); !left.DeletionTimestamp.IsZero() {
		t.Error("the claim is being deleted")
	}
	strange, elsewhere := newInnerClaim("strange"), newInnerClaim("elsewhere")
	strange.Finalizers, elsewhere.Namespace = nil, "default"
	for _, other := range []*corev1.PersistentVolumeClaim{strange, elsewhere} {
		c.make(t, other)
		allowed(t, "delete what is no origin", c.admin.Delete(ctx, other))
	}
	forbidden(t, "delete another's claim as the controller", controller.Delete(ctx, elsewhere))
	forbidden(t, "make a claim elsewhere as the controller", controller.Create(ctx, func() *corev1.PersistentVolumeClaim {
		claim := newInnerClaim("other")
		claim.Namespace = "default"
		return claim
	}()))
	c.drop(t, controller, claim)
	c.drop(t, controller, strange)
}

func (c *cluster) testOriginAttachments(t *testing.T, controller client.Client) {
	ctx := t.Context()
	attachment := newAttachment("nearflash-data", "pv-data", ours)
	other := newAttachment("csi-of-another", "pv-other", "")
	c.make(t, other)
	allowed(t, "attach an origin", controller.Create(ctx, attachment))
	patch := func(of *storagev1.VolumeAttachment, text string) error {
		return c.admin.Patch(ctx, of.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text)))
	}
	allowed(t, "set the attacher's finalizer", patch(attachment, `{"metadata":{"finalizers":["external-attacher/x"],"labels":{"x":"y"}}}`))
	allowed(t, "say that it is attached", c.admin.Status().Patch(ctx, attachment.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"status":{"attached":true}}`))))
	forbidden(t, "take our label", patch(attachment, `{"metadata":{"labels":null}}`))
	forbidden(t, "change our label", patch(attachment, `{"metadata":{"labels":{"`+ours+`":"other"}}}`))
	forbidden(t, "empty our label", patch(attachment, `{"metadata":{"labels":{"`+ours+`":""}}}`))
	forbidden(t, "add a label of ours", patch(attachment, `{"metadata":{"labels":{"nearflash.io/x":"y"}}}`))
	forbidden(t, "change for which admission it is", patch(attachment, `{"metadata":{"annotations":{"nearflash.io/admission":"x"}}}`))
	forbidden(t, "label another's", patch(other, `{"metadata":{"labels":{"`+ours+`":""}}}`))
	forbidden(t, "make one with our label", c.admin.Create(ctx, newAttachment("mine", "pv-data", ours)))
	forbidden(t, "detach below a cache", c.admin.Delete(ctx, attachment))
	forbidden(t, "detach as kube-controller-manager", c.impersonate(t, "system:serviceaccount:kube-system:attachdetach-controller").Delete(ctx, attachment))
	forbidden(t, "detach all", c.admin.DeleteAllOf(ctx, &storagev1.VolumeAttachment{}, client.MatchingLabels{ours: "data"}))

	forbidden(t, "attach without a label, as the controller", controller.Create(ctx, newAttachment("canonical", "pv-data", "")))
	inline := newAttachment("inline", "", ours)
	inline.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{
		AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: newOriginVolume("x", "").Spec.PersistentVolumeSource,
	}}
	forbidden(t, "attach without a PersistentVolume, as the controller", controller.Create(ctx, inline))
	forbidden(t, "detach another's, as the controller", controller.Delete(ctx, other))
	own := newAttachment("csi-of-nearflash", "pv-own", "")
	own.Spec.Attacher = "csi.nearflash.io"
	c.make(t, own)
	mark := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"nearflash.io/x":"y"}}}`))
	allowed(t, "stamp an attachment, as the controller", controller.Patch(ctx, attachment.DeepCopy(), mark))
	allowed(t, "change an attachment of its own driver, as the attacher", controller.Patch(ctx, own, mark))
	forbidden(t, "change another's, as the controller", controller.Patch(ctx, other.DeepCopy(), mark))
	allowed(t, "detach another's", c.admin.Delete(ctx, other))
	allowed(t, "detach an origin", controller.Delete(ctx, attachment))
	allowed(t, "end the detach, as the attacher", patch(attachment, `{"metadata":{"finalizers":null}}`))
}

// testOriginAccount: RBAC gives the controller all PersistentVolumes.
func (c *cluster) testOriginAccount(t *testing.T, controller client.Client) {
	ctx := t.Context()
	own, inner := newOriginVolume("own", "shop"), newOriginVolume("inner", originNamespace)
	own.Spec.CSI.Driver = "csi.nearflash.io"
	foreign, free := newOriginVolume("foreign", "shop"), newOriginVolume("free", "")
	allowed(t, "make a volume, as the provisioner", controller.Create(ctx, own))
	forbidden(t, "make another driver's volume", controller.Create(ctx, newOriginVolume("made", "shop")))
	for _, v := range []*corev1.PersistentVolume{inner, foreign, free} {
		c.make(t, v)
	}
	patch := func(of *corev1.PersistentVolume, text string) error {
		return controller.Patch(ctx, of.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text)))
	}
	const retain = `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`
	const take = `{"spec":{"claimRef":{"namespace":"` + originNamespace + `","name":"x"}}}`
	allowed(t, "keep an origin", patch(inner, retain))
	allowed(t, "change its own volume, as a sidecar", patch(own, retain))
	allowed(t, "take a free volume", patch(free, take))
	forbidden(t, "change another's volume", patch(foreign, retain))
	forbidden(t, "take another's volume", patch(foreign, take))
	forbidden(t, "delete another's volume", controller.Delete(ctx, foreign))
	allowed(t, "delete its own volume, as the provisioner", controller.Delete(ctx, own))
	allowed(t, "list pods beside inner claims", controller.List(ctx, &corev1.PodList{}, client.InNamespace(originNamespace)))
	allowed(t, "list classes", controller.List(ctx, &storagev1.StorageClassList{}))
	allowed(t, "list events of inner claims", controller.List(ctx, &corev1.EventList{}, client.InNamespace(originNamespace)))
	forbidden(t, "list all pods", controller.List(ctx, &corev1.PodList{}))
}

// drop deletes a claim for good, as the controller.
func (c *cluster) drop(t *testing.T, controller client.Client, claim *corev1.PersistentVolumeClaim) {
	t.Helper()
	if err := controller.Delete(t.Context(), claim); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	none := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	if err := controller.Patch(t.Context(), claim.DeepCopy(), none); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}

// stored reads a claim.
func (c *cluster) stored(t *testing.T, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	t.Helper()
	stored := &corev1.PersistentVolumeClaim{}
	if err := c.admin.Get(t.Context(), client.ObjectKeyFromObject(claim), stored); err != nil {
		t.Fatal(err)
	}
	return stored
}

// impersonate is a client of another user, who may do everything.
func (c *cluster) impersonate(t *testing.T, user string) client.Client {
	t.Helper()
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	as, err := client.New(config, client.Options{Scheme: c.scheme})
	if err != nil {
		t.Fatal(err)
	}
	return as
}

func newNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func newPod(in string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: in, GenerateName: "pod-"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nearflash.local/none:none"}}},
	}
}

func newInnerClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: originNamespace, Name: name, Finalizers: []string{held},
			Labels: map[string]string{ours: name}, Annotations: map[string]string{"nearflash.io/admitted": "{}"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("pd"), VolumeMode: new(corev1.PersistentVolumeBlock),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// newOriginVolume is another driver's, of a claim in a namespace; "" is of none.
func newOriginVolume(name, claimNamespace string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: new(corev1.PersistentVolumeBlock),
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "pd.example.com", VolumeHandle: name}},
		},
	}
	if claimNamespace != "" {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claimNamespace, Name: name}
	}
	return v
}

func newAttachment(name, volume, label string) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "pd.example.com", NodeName: "node-a", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
	}
	if label != "" {
		a.Labels = map[string]string{label: "data"}
	}
	return a
}
