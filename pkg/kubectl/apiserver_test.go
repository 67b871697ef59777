package kubectl_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// live is a rig whose cluster is a real API server: what is written must pass
// the validation of the definitions, and generations count.
func live(t *testing.T, cfg *rest.Config) *rig {
	t.Helper()
	c, err := client.New(cfg, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, client: c, clock: &clock{now: start}}
}

// create writes objects with their status.
func (r *rig) create(objs ...client.Object) {
	r.t.Helper()
	for _, obj := range objs {
		status := obj.DeepCopyObject().(client.Object)
		if err := r.client.Create(r.t.Context(), obj); err != nil {
			r.t.Fatal(err)
		}
		status.SetResourceVersion(obj.GetResourceVersion())
		status.SetUID(obj.GetUID())
		switch obj.(type) {
		case *v1alpha1.CachedVolume, *v1alpha1.CacheMigration:
		default:
			continue
		}
		if err := r.client.Status().Update(r.t.Context(), status); err != nil {
			r.t.Fatal(err)
		}
	}
}

// attach makes a volume that is attached to node-a.
func (r *rig) attach(id string, opts ...func(*v1alpha1.CachedVolume)) {
	r.t.Helper()
	record := pvAndRecord("", "", id, append(opts, on("node-a"))...)[1]
	record.SetUID("")
	record.SetGeneration(0)
	r.create(record)
}

func TestWithAPIServer(t *testing.T) {
	cfg := apiserver.Start(t)

	t.Run("mode, resize and drop pass validation and follow the generation", func(t *testing.T) {
		r := live(t, cfg)
		r.attach("vol-a")
		r.tick("vol-a", applied(metav1.ConditionTrue, v1alpha1.ReasonApplied, "mode writeback"))
		code, out, errOut := r.run("mode", "cvol/vol-a", "writeback", "--accept-dirty-loss", "node-loss")
		expect(t, "output", out, `
cvol/vol-a: cacheMode writethrough -> writeback
cvol/vol-a: waiting for node node-a
cvol/vol-a: done: mode writeback on node node-a
`)
		if code != 0 {
			t.Fatal(errOut)
		}
		r.tick("vol-a", applied(metav1.ConditionTrue, v1alpha1.ReasonApplied, ""))
		if code, _, errOut = r.run("resize", "cvol/vol-a", "25%"); code != 0 {
			t.Fatal(errOut)
		}
		r.tick("vol-a", applied(metav1.ConditionTrue, v1alpha1.ReasonApplied, ""))
		if code, _, errOut = r.run("drop", "cvol/vol-a", "--yes"); code != 0 {
			t.Fatal(errOut)
		}
		got := r.record("vol-a").Spec
		if got.CacheMode != v1alpha1.CacheModeNone || got.CacheSize != "25%" || got.AcceptDirtyLoss != v1alpha1.DirtyLossNodeLoss {
			t.Errorf("spec is %+v", got)
		}
	})

	t.Run("flush", func(t *testing.T) {
		r := live(t, cfg)
		r.attach("vol-b", writeback)
		r.tick("vol-b", func(v *v1alpha1.CachedVolume) {
			v.Status.Flush = v1alpha1.FlushStatus{Request: v.Spec.FlushRequest, CompletionTime: metav1.NewTime(start)}
		})
		code, out, errOut := r.run("flush", "cvol/vol-b")
		expect(t, "output", out, `
cvol/vol-b: waiting for node node-a: 0 dirty
cvol/vol-b: flushed: the storage server has every write that was made before
`)
		if code != 0 || r.record("vol-b").Spec.FlushRequest != start.Format(time.RFC3339Nano) {
			t.Errorf("%s; spec %+v", errOut, r.record("vol-b").Spec)
		}
	})

	t.Run("abandon", func(t *testing.T) {
		r := live(t, cfg)
		r.attach("vol-c", writeback)
		if code, _, errOut := r.run("abandon", "cvol/vol-c", "--accept-data-loss"); code != 0 {
			t.Fatal(errOut)
		}
		status := r.record("vol-c").Status
		if status.DirtyState != v1alpha1.DirtyStateClean || len(status.Abandoned) != 1 {
			t.Fatalf("dirtyState is %s, given up %+v", status.DirtyState, status.Abandoned)
		}
		if by := status.Abandoned[0].Consent.By; by == "" {
			t.Error("the record does not say who gave the writes up")
		}
	})

	t.Run("invalidate", func(t *testing.T) {
		r := live(t, cfg)
		r.attach("vol-i")
		obj := r.record("vol-i")
		released("node-a")(obj)
		if err := r.client.Status().Update(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		if code, _, errOut := r.run("invalidate", "cvol/vol-i", "--yes"); code != 0 {
			t.Fatal(errOut)
		}
		if s := r.record("vol-i").Status; s.OwnerNode != "" || len(s.RetainedCaches) != 0 {
			t.Errorf("the record shows owner %q, retained caches %v", s.OwnerNode, s.RetainedCaches)
		}
	})

	t.Run("a refusal of the API server is one line", func(t *testing.T) {
		r := live(t, cfg)
		r.attach("vol-d", func(v *v1alpha1.CachedVolume) { v.Spec.CacheMode, v.Spec.CacheSize = v1alpha1.CacheModeNone, "" })
		_, _, errOut := r.run("resize", "cvol/vol-d", "100000000000000000000000000000000Gi")
		expect(t, "errors", errOut, "error: SIZE: \"100000000000000000000000000000000Gi\" is not a whole number of bytes; accepted are quantities such as 10Gi, 1.5Gi or 500M\n")
		_, _, errOut = r.run("resize", "cvol/vol-d", "5000Pi")
		expect(t, "errors", errOut, "error: change CachedVolume vol-d: CachedVolume.nearflash.io \"vol-d\" is invalid: spec.cacheSize: Invalid value: \"5000Pi\": "+
			"cacheSize must be a whole number of bytes, such as 10Gi or 1.5Gi, or 1% to 100%\n")
	})

	t.Run("moves and hot sets", func(t *testing.T) {
		r := live(t, cfg)
		r.attach("vol-m")
		uid := string(r.record("vol-m").UID)
		m := move("vol-m", "", 3, onOrigin, func(m *v1alpha1.CacheMigration) { m.Spec.VolumeUID, m.CreationTimestamp = uid, metav1.Time{} })
		m.Status.Source = v1alpha1.MigrationSource{}
		hot := hotSet("vol-m")
		hot.VolumeUID = uid
		r.create(m, hot)
		_, out, errOut := r.run("migrations", "-A", "-o", "jsonpath={.items[0].metadata.name} {.items[0].status.progress.servedFrom}")
		expect(t, "output", out, "vol-m-3 Origin")
		expect(t, "errors", errOut, "")
		_, out, _ = r.run("describe", "cvol/vol-m")
		for _, want := range []string{"Move:              origin to node-b by hot set: running, 3Gi/4Gi (75%), served from Origin, 50Mi/s, 20s left\n", "Hot set:           a list of 12Ki, recorded 25m ago\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("output has no %q:\n%s", want, out)
			}
		}
		_, out, _ = r.run("list", "-A", "-o", "wide")
		if !strings.Contains(out, "75%") {
			t.Errorf("output %s", out)
		}
	})

	t.Run("describe selects events, doctor finds the definitions", func(t *testing.T) {
		r := live(t, cfg)
		r.attach("vol-e")
		for _, about := range []string{"vol-e", "vol-a"} {
			r.create(&corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "about-" + about},
				InvolvedObject: corev1.ObjectReference{Kind: "CachedVolume", Name: about},
				Reason:         "CacheActive", Message: "seen of " + about, Type: corev1.EventTypeNormal, LastTimestamp: before(time.Minute),
			})
		}
		_, out, errOut := r.run("describe", "cvol/vol-e")
		if !strings.Contains(out, "seen of vol-e") || strings.Contains(out, "seen of vol-a") {
			t.Errorf("output %s, errors %s", out, errOut)
		}
		code, out, _ := r.run("doctor")
		if code != 1 || !strings.Contains(out, "crd/cachedvolumes.nearflash.io: serves v1alpha1 with all fields") {
			t.Errorf("exit status %d, output %s", code, out)
		}
	})
}

// TestTenantWithAPIServer is TestTenant with a real RoleBinding to Kubernetes' own roles: the API server
// says what the account may read.
func TestTenantWithAPIServer(t *testing.T) {
	cfg := apiserver.Start(t)
	admin := live(t, cfg)
	admin.attach("vol-shop")
	for _, ns := range []string{"shop", "web"} {
		admin.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
		claim := tenantClaim(ns, "data", driver)
		claim.UID = ""
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")}
		admin.create(claim)
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")}
		if err := admin.client.Status().Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		for name, ago := range map[string]time.Duration{"before": time.Hour, "last": 5 * time.Minute} {
			e := told("data", name, "nearflash-node", "CacheActive", name+" of "+ns, ago)
			e.Namespace, e.InvolvedObject.Namespace, e.InvolvedObject.UID = ns, ns, claim.UID
			admin.create(e)
		}
	}
	for _, role := range []string{"view", "edit"} {
		t.Run(role, func(t *testing.T) {
			admin.aggregate(role)
			user := role + "er"
			admin.create(&rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: user},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			})
			as := rest.CopyConfig(cfg)
			as.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
			r := live(t, as)
			r.awaitAllowed("shop")
			code, out, errOut := r.run("list", "-n", "shop")
			expect(t, "output", out, `
CLAIM   STATUS   CAPACITY   CLASS   AGO   EVENT         MESSAGE
data    Bound    20Gi       fast    5m    CacheActive   last of shop
`)
			expect(t, "errors", errOut, "You may not read CachedVolumes. This is what your claims and their last events say:\n")
			if code != 0 {
				t.Errorf("exit status %d", code)
			}
			for _, args := range [][]string{{"list", "-n", "web"}, {"list", "-n", "web", "data"}, {"list", "-A"}, {"describe", "cvol/vol-shop"}, {"resize", "cvol/vol-shop", "1Gi"}} {
				code, out, errOut := r.run(args...)
				if code == 0 || out != "" || !strings.Contains(errOut, "is forbidden: User \""+user+"\" cannot") {
					t.Errorf("%v: exit status %d, output %q, errors %q", args, code, out, errOut)
				}
			}
		})
	}
}

// aggregate fills one of Kubernetes' own roles, as kube-controller-manager does, of which there is none:
// with the role that the chart adds, too.
func (r *rig) aggregate(role string) {
	r.t.Helper()
	label := "rbac.authorization.k8s.io/aggregate-to-" + role
	var all rbacv1.ClusterRoleList
	if err := r.client.List(r.t.Context(), &all, client.MatchingLabels{label: "true"}); err != nil {
		r.t.Fatal(err)
	}
	var into rbacv1.ClusterRole
	if err := r.client.Get(r.t.Context(), client.ObjectKey{Name: role}, &into); err != nil {
		r.t.Fatal(err)
	}
	into.Rules = []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch", "patch"}}}
	for _, part := range all.Items {
		into.Rules = append(into.Rules, part.Rules...)
	}
	if len(into.Rules) < 2 {
		r.t.Fatalf("nothing is to be added to %s", role)
	}
	if err := r.client.Update(r.t.Context(), &into); err != nil {
		r.t.Fatal(err)
	}
}

// awaitAllowed waits until the API server has seen what the account was given in a namespace.
func (r *rig) awaitAllowed(namespace string) {
	r.t.Helper()
	for range 100 {
		err := r.client.List(r.t.Context(), &corev1.PersistentVolumeClaimList{}, client.InNamespace(namespace))
		if err == nil {
			return
		}
		if !apierrors.IsForbidden(err) {
			r.t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	r.t.Fatalf("the account may not list claims of namespace %s", namespace)
}

// A cluster without nearflash is named as one.
func TestWithoutDefinitions(t *testing.T) {
	r := live(t, apiserver.StartBare(t))
	for _, args := range [][]string{{"list", "-A"}, {"top"}, {"migrations"}, {"pools"}, {"pools", "node-a"}, {"describe", "cvol/x"}} {
		_, _, errOut := r.run(args...)
		expect(t, "errors", errOut, "error: this cluster does not know the resources of nearflash.io/v1alpha1: install nearflash, or choose another cluster with --context\n")
	}
}
