package charttest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// grant is one permission of a role, with the reason for it. A change of RBAC
// has to state its reason here.
type grant struct {
	resource string // group/resource, the core group is empty
	verbs    string
	why      string
}

// metricsReader is the role that an administrator binds.
const metricsReader = "ClusterRole/nearflash-metrics-reader"

// people are the roles that Kubernetes' own view and edit take in.
const viewers, editors = "ClusterRole/nearflash-view", "ClusterRole/nearflash-edit"

func wantGrants() map[string][]grant {
	const controller, scheduling, check = "nearflash-controller", "nearflash-scheduling", "nearflash-check"
	return map[string][]grant{
		metricsReader: {
			{"/metrics", "get", "for whoever scrapes; nobody has it unless podMonitor.enabled"},
		},
		viewers: {
			{"nearflash.io/cachedvolumes", "get list watch", "whoever may look at all namespaces looks at their volumes"},
			{"nearflash.io/cachepools", "get list watch", "and at what the nodes have for them"},
			{"nearflash.io/cachemigrations", "get list watch", "and at what moves"},
			{"nearflash.io/cachehotsets", "get list watch", "which a move may begin with"},
		},
		editors: {
			{"nearflash.io/cachedvolumes", "patch update", "mode, size, flush, drop and migrate; no status, by which writes are given up, and no pools"},
		},
		"ClusterRole/" + controller: {
			{"nearflash.io/cachedvolumes", "get list watch create update patch delete", "it makes, fences and forgets volumes"},
			{"nearflash.io/cachedvolumes/status", "update patch", "it writes owner and generation before a node is admitted (I1)"},
			{"nearflash.io/cachedvolumes/finalizers", "update patch", "owner references with blockOwnerDeletion need it where that admission is on"},
			{"nearflash.io/cachepools", "get list watch delete", "initiator names of nodes; those of nodes that left the cluster go"},
			{"nearflash.io/cachepools/status", "patch", "nodes are told what was deleted"},
			{"nearflash.io/cachemigrations", "get list watch delete", "it ends what nobody waits for, and deletes what has ended"},
			{"nearflash.io/cachemigrations/status", "patch", "the outcome, when the destination cannot say it"},
			{"nearflash.io/cachehotsets", "get create patch", "a clone begins with what its parent reads most"},
			{"/nodes", "get list watch", "a pool without a node is stale"},
			{"storage.k8s.io/csinodes", "get list watch", "it exports where the node plugin is missing"},
			{"/persistentvolumes", "get list watch", "a volume stays while its PersistentVolume may be used"},
			{"/events", "create patch", "core events"},
			{"events.k8s.io/events", "create patch", "events of the new API"},
			{"authentication.k8s.io/tokenreviews", "create", "who a client of /metrics is"},
			{"authorization.k8s.io/subjectaccessreviews", "create", "whether it may get /metrics"},
		},
		"ClusterRole/" + controller + "-provisioner": {
			{"/persistentvolumes", "get list watch create patch delete", "its output"},
			{"/persistentvolumeclaims", "get list watch update", "its input; update gives a claim back to the scheduler"},
			{"storage.k8s.io/storageclasses", "get list watch", "parameters"},
			{"storage.k8s.io/volumeattributesclasses", "get list watch", "a claim may name one; its parameters win over the StorageClass's"},
			{"storage.k8s.io/csinodes", "get list watch", "upstream asks for it"},
			{"/nodes", "get list watch", "the node of a WaitForFirstConsumer claim"},
			{"storage.k8s.io/volumeattachments", "get list watch", "no deletion while attached"},
			{"/events", "list watch create update patch", "it reports on the claim"},
		},
		"ClusterRole/" + controller + "-attacher": {
			{"/persistentvolumes", "get list watch patch", "its finalizer"},
			{"storage.k8s.io/csinodes", "get list watch", "node ids"},
			{"storage.k8s.io/volumeattachments", "get list watch patch", "its input and finalizer"},
			{"storage.k8s.io/volumeattachments/status", "patch", "its output"},
		},
		"ClusterRole/" + controller + "-resizer": {
			{"/persistentvolumes", "get list watch patch", "the new capacity, the new VolumeAttributesClass"},
			{"/persistentvolumeclaims", "get list watch", "its input"},
			{"/persistentvolumeclaims/status", "patch", "progress of an expansion or of a change of the VolumeAttributesClass"},
			{"storage.k8s.io/volumeattributesclasses", "get list watch", "what a claim is to be changed to"},
			{"/events", "list watch create update patch", "it reports on the claim"},
		},
		"Role/" + controller: {
			{"coordination.k8s.io/leases", "get create update", "leader election in the release's namespace"},
			{"/secrets nearflash-chap", "get", "the attacher passes the CHAP account to ControllerPublishVolume"},
			{"/configmaps", "create", "the record of the storage server's epoch; a name cannot be given for this verb"},
			{"/configmaps nearflash-epochs", "get update", "the same, of a record that exists"},
			{"/configmaps nearflash-storage", "update", "keep what the storage server last said, for kubectl nearflash doctor"},
			{"/pods", "list watch", "export on which nodes the node plugin never started"},
		},
		"ClusterRole/" + scheduling: {
			{"/persistentvolumeclaims", "list watch", "from a pod's claim to its volume"},
			{"storage.k8s.io/storageclasses", "list watch", "the size of the cache of a volume that is not made yet"},
			{"admissionregistration.k8s.io/mutatingwebhookconfigurations " + scheduling, "get patch", "the authority of the webhook's certificate; limited to it by admission policy"},
		},
		"Role/" + scheduling: {
			{"/secrets " + scheduling, "get update", "the webhook's certificate"},
		},
		"ClusterRole/" + check: {
			{"storage.k8s.io/csidrivers csi.nearflash.io", "get", "whether the driver is known, and fences"},
			{"storage.k8s.io/csinodes", "get", "whether kubelets know the driver"},
			{"nearflash.io/cachedvolumes", "list", "whether the definition is there"},
			{"nearflash.io/cachepools", "list", "what each node says of its SSDs and kernel"},
			{"nearflash.io/cachemigrations", "list", "whether the definition is there"},
			{"nearflash.io/cachehotsets", "list", "whether the definition is there"},
		},
		"Role/" + check: {
			{"coordination.k8s.io/leases", "get", "whether controller and sidecars have leaders"},
			{"apps/daemonsets nearflash-node", "get", "on how many nodes the plugin is ready"},
			{"/pods", "list", "on which nodes"},
		},
		"ClusterRole/nearflash-node": {
			{"nearflash.io/cachedvolumes", "get list watch", "no create, update or delete: a node must not make or forget a volume"},
			{"nearflash.io/cachedvolumes/status", "update patch", "dirty mark, retained cache, conditions; limited by admission policy"},
			{"nearflash.io/cachemigrations", "get list watch create delete", "it asks for caches of its volumes and exports its own; limited by admission policy"},
			{"nearflash.io/cachemigrations/status", "patch", "each side of a migration reports; limited by admission policy"},
			{"nearflash.io/cachehotsets", "get create update patch", "a hint that outlives the node; limited by admission policy"},
			{"nearflash.io/cachepools", "get list watch create update", "its own pool; limited by admission policy; an administrator's spec stays"},
			{"nearflash.io/cachepools/status", "update patch", "its own pool; limited by admission policy"},
			{"/nodes", "get", "whether its own node is shut down, so that it gives up what it exports"},
			{"/persistentvolumeclaims", "get", "UID of the claim that an event is about"},
			{"events.k8s.io/events", "create patch", "what it does, for people; limited by admission policy"},
			{"authentication.k8s.io/tokenreviews", "create", "which node's plugin asks for a cache, and who a client of /metrics is"},
			{"authorization.k8s.io/subjectaccessreviews", "create", "whether it may get /metrics"},
		},
	}
}

// wantOriginGrants are those that origins of other drivers need beyond the others.
func wantOriginGrants() map[string][]grant {
	const role = "nearflash-origins"
	return map[string][]grant{
		"ClusterRole/" + role: {
			{"/persistentvolumes", "patch", "an origin is kept until its volume is deleted; limited by admission policy"},
			{"storage.k8s.io/volumeattachments", "get list watch create patch delete", "origins are attached without a pod; limited by admission policy"},
			{"storage.k8s.io/csidrivers", "get list", "whether the other driver attaches"},
			{"storage.k8s.io/csinodes", "get list", "on which nodes the other driver is, and by which labels"},
			{"storage.k8s.io/storageclasses", "get list", "whose class the origin's is, and when it binds"},
			{"snapshot.storage.k8s.io/volumesnapshotclasses", "get list", "whose class a snapshot is to be made by, and which is the default"},
		},
		"Role/" + role: {
			{"/persistentvolumeclaims", "get list watch create patch delete", "inner claims, in their own namespace alone"},
			{"/persistentvolumeclaims/status", "patch", "the end of an expansion that a kubelet would write"},
			{"/pods", "list", "whether one uses an origin all the same"},
			{"/events", "get list", "why an inner claim is not bound"},
			{"snapshot.storage.k8s.io/volumesnapshots", "get list create patch delete", "snapshots of inner claims, in their namespace alone"},
		},
	}
}

func TestRBAC(t *testing.T) {
	for values, grants := range map[string]map[string][]grant{"static": wantGrants(), "origins": withOriginGrants(), "production": withSnapshotGrants(), "target": withAccountGrants(), "targets": withServerGrants()} {
		t.Run(values, func(t *testing.T) { compareGrants(t, values, grants) })
	}
}

// withSnapshotGrants has what csi-snapshotter takes, in the release of production.yaml.
func withSnapshotGrants() map[string][]grant {
	all := wantGrants()
	const provisioner, why = "ClusterRole/nearflash-controller-provisioner", "the snapshot that a claim is to be made from"
	all[provisioner] = append(all[provisioner],
		grant{"snapshot.storage.k8s.io/volumesnapshots", "get list watch update", why + ", with a finalizer meanwhile"},
		grant{"snapshot.storage.k8s.io/volumesnapshotcontents", "get list", why})
	all["ClusterRole/nearflash-controller-snapshotter"] = []grant{
		{"snapshot.storage.k8s.io/volumesnapshotclasses", "get list watch", "parameters"},
		{"snapshot.storage.k8s.io/volumesnapshotcontents", "create get list watch update patch", "its input, and its finalizer"},
		{"snapshot.storage.k8s.io/volumesnapshotcontents/status", "update patch", "its output"},
		{"groupsnapshot.storage.k8s.io/volumegroupsnapshotclasses", "get list watch", "parameters of groups"},
		{"groupsnapshot.storage.k8s.io/volumegroupsnapshotcontents", "get list watch update patch", "groups, and their finalizers"},
		{"groupsnapshot.storage.k8s.io/volumegroupsnapshotcontents/status", "update patch", "what was made of a group"},
		{"/events", "list watch create update patch", "it reports on the snapshot"},
	}
	all["Role/nearflash-controller"] = append(all["Role/nearflash-controller"], loginKeyGrants()...)
	return all
}

// loginKeyGrants are what the controller takes where there is a storage server.
func loginKeyGrants() []grant {
	return []grant{
		{"/secrets nearflash-login-key", "get", "the key of which the accounts of nodes are derived"},
		{"/secrets", "create", "that key, and the CHAP account for nodes without one, once; limited to those by admission policy"},
	}
}

// withAccountGrants has what the controller takes where it has a storage server.
func withAccountGrants() map[string][]grant {
	all := wantGrants()
	const role = "Role/nearflash-controller"
	all[role] = append(all[role], loginKeyGrants()...)
	return all
}

// withServerGrants has what the controller takes in the release of targets.yaml: each server's
// words of itself are in a ConfigMap of its own.
func withServerGrants() map[string][]grant {
	all := withAccountGrants()
	const role = "Role/nearflash-controller"
	for i, g := range all[role] {
		if g.resource == "/configmaps nearflash-storage" {
			all[role][i].resource += " nearflash-storage.archive nearflash-storage.rack-2"
		}
	}
	return all
}

func withOriginGrants() map[string][]grant {
	all := wantGrants()
	maps.Copy(all, wantOriginGrants())
	const node = "ClusterRole/nearflash-node"
	all[node] = append(all[node], grant{"storage.k8s.io/csinodes", "get", "how many volumes the driver of origins.attachLimitOf takes on its own node"})
	return all
}

func compareGrants(t *testing.T, values string, wanted map[string][]grant) {
	t.Helper()
	want := map[string]map[string]string{}
	for role, grants := range wanted {
		want[role] = map[string]string{}
		for _, g := range grants {
			if g.why == "" {
				t.Errorf("%s: %s has no reason", role, g.resource)
			}
			want[role][g.resource] = sorted(g.verbs)
		}
	}
	got := map[string]map[string]string{}
	for _, object := range mustTemplate(t, valuesArgs(values)...) {
		if kind := object.GetKind(); kind != "ClusterRole" && kind != "Role" {
			continue
		}
		var role rbacv1.ClusterRole // the rules of a Role have the same form
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
			t.Fatal(err)
		}
		got[object.GetKind()+"/"+role.Name] = flatten(t, role.Rules)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("roles (-stated +rendered):\n%s", diff)
	}
}

// TestRoleBindings makes sure that a role is bound to the account it was written for.
func TestRoleBindings(t *testing.T) {
	got := map[string]string{}
	for _, object := range mustTemplate(t, valuesArgs("origins")...) {
		if kind := object.GetKind(); kind != "ClusterRoleBinding" && kind != "RoleBinding" {
			continue
		}
		var binding rbacv1.ClusterRoleBinding
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &binding); err != nil {
			t.Fatal(err)
		}
		for _, s := range binding.Subjects {
			got[binding.RoleRef.Kind+"/"+binding.RoleRef.Name] += s.Kind + "/" + s.Namespace + "/" + s.Name
		}
	}
	want := map[string]string{}
	for role := range withOriginGrants() {
		if role == metricsReader || role == viewers || role == editors {
			continue
		}
		account := "nearflash-controller"
		switch {
		case strings.HasSuffix(role, "-node"):
			account = "nearflash-node"
		case strings.HasSuffix(role, "-check"):
			account = "nearflash-check"
		}
		want[role] = "ServiceAccount/" + namespace + "/" + account
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bindings (-want +rendered):\n%s", diff)
	}
}

// flatten turns rules into resource -> verbs and refuses wildcards.
func flatten(t *testing.T, rules []rbacv1.PolicyRule) map[string]string {
	t.Helper()
	verbs := map[string]map[string]bool{}
	for _, rule := range rules {
		if strings.Contains(strings.Join(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs), " "), "*") {
			t.Errorf("rule with a wildcard: %v", rule)
		}
		keys := slices.Clone(rule.NonResourceURLs)
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				keys = append(keys, strings.Join(append([]string{group + "/" + resource}, rule.ResourceNames...), " "))
			}
		}
		for _, key := range keys {
			if verbs[key] == nil {
				verbs[key] = map[string]bool{}
			}
			for _, verb := range rule.Verbs {
				verbs[key][verb] = true
			}
		}
	}
	flat := map[string]string{}
	for key, set := range verbs {
		flat[key] = strings.Join(slices.Sorted(maps.Keys(set)), " ")
	}
	return flat
}

func sorted(words string) string {
	fields := strings.Fields(words)
	slices.Sort(fields)
	return strings.Join(fields, " ")
}

// TestAggregation: Kubernetes' own roles take in those of people, and no others.
func TestAggregation(t *testing.T) {
	const prefix = "rbac.authorization.k8s.io/aggregate-to-"
	got := map[string]string{}
	for _, object := range mustTemplate(t, valuesArgs("origins")...) {
		for label, value := range object.GetLabels() {
			if to, found := strings.CutPrefix(label, prefix); found && value == "true" {
				got[object.GetKind()+"/"+object.GetName()] += to
			}
		}
	}
	if diff := cmp.Diff(map[string]string{viewers: "view", editors: "edit"}, got); diff != "" {
		t.Errorf("aggregated (-want +rendered):\n%s", diff)
	}
}
