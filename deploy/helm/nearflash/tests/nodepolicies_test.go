package charttest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// unchanging are what a plugin may create and what changes nothing.
var unchanging = []string{"authentication.k8s.io/tokenreviews", "authorization.k8s.io/subjectaccessreviews"}

// TestNodePolicies: whatever the role of the node plugin lets it write, an admission
// policy limits to the part of its own node.
func TestNodePolicies(t *testing.T) {
	operations := map[string]admissionv1.OperationType{
		"create": admissionv1.Create, "update": admissionv1.Update, "patch": admissionv1.Update, "delete": admissionv1.Delete,
	}
	covered := map[string][]admissionv1.OperationType{}
	for _, p := range policies(t, "static") {
		for _, rule := range p.Spec.MatchConstraints.ResourceRules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					key := group + "/" + resource
					covered[key] = append(covered[key], rule.Operations...)
				}
			}
		}
	}
	for _, g := range wantGrants()["ClusterRole/nearflash-node"] {
		for verb := range strings.FieldsSeq(g.verbs) {
			operation, writes := operations[verb]
			if writes && !slices.Contains(unchanging, g.resource) && !slices.Contains(covered[g.resource], operation) {
				t.Errorf("the node plugin may %s %s, and no policy limits it", verb, g.resource)
			}
		}
	}
}

// TestPoliciesDeny: each policy is bound, and what it cannot judge is refused.
func TestPoliciesDeny(t *testing.T) {
	for _, values := range []string{"static", "target", "origins"} {
		t.Run(values, func(t *testing.T) { policies(t, values) })
	}
}

// policies are those that some values render; each is bound and denies.
func policies(t *testing.T, values string) []admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	bound := map[string]bool{}
	var all []admissionv1.ValidatingAdmissionPolicy
	for _, object := range mustTemplate(t, valuesArgs(values)...) {
		convert := func(to any) {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, to); err != nil {
				t.Fatal(err)
			}
		}
		switch object.GetKind() {
		case "ValidatingAdmissionPolicyBinding":
			var b admissionv1.ValidatingAdmissionPolicyBinding
			convert(&b)
			bound[b.Spec.PolicyName] = slices.Equal(b.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny})
		case "ValidatingAdmissionPolicy":
			var p admissionv1.ValidatingAdmissionPolicy
			convert(&p)
			all = append(all, p)
			if p.Spec.FailurePolicy == nil || *p.Spec.FailurePolicy != admissionv1.Fail {
				t.Errorf("policy %s lets pass what it cannot judge", p.Name)
			}
		}
	}
	for _, p := range all {
		if !bound[p.Name] {
			t.Errorf("policy %s has no binding that denies", p.Name)
		}
	}
	return all
}

// testNodeEveryField: whoever has nothing to do with a volume or a move writes no
// field of its status. A field without a value here fails the test.
func (c *cluster) testNodeEveryField(t *testing.T, nodeA client.Client) {
	foreign := c.as(t, c.podToken(t, "nearflash-node", "node-s"))
	t.Run("volume", func(t *testing.T) { c.testEveryVolumeField(t, foreign) })
	t.Run("move", func(t *testing.T) { c.testEveryMoveField(t, foreign, nodeA) })
}

func (c *cluster) testEveryVolumeField(t *testing.T, foreign client.Client) {
	volumes := map[string]v1alpha1.CachedVolumeStatus{
		"Generation":           {Generation: new(int64(9))},
		"OwnerNode":            {OwnerNode: "node-s"},
		"Readers":              {Readers: []string{"node-s"}},
		"Publication":          {Publication: v1alpha1.PublicationReleased},
		"DirtyState":           {DirtyState: v1alpha1.DirtyStatePossiblyDirty},
		"Takeover":             {Takeover: "x"},
		"Filesystem":           {Filesystem: v1alpha1.FilesystemFormatting},
		"Activation":           {Activation: v1alpha1.Activation{ID: "x", Generation: 2}},
		"PendingActivation":    {PendingActivation: v1alpha1.Activation{ID: "x", Generation: 2}},
		"RetainedCaches":       {RetainedCaches: []v1alpha1.RetainedCache{{NodeName: "node-s", Generation: 1}}},
		"Residency":            {Residency: []v1alpha1.RetainedCache{{NodeName: "node-s", Generation: 1}}},
		"WarmSource":           {WarmSource: v1alpha1.WarmSource{NodeName: "node-s", Generation: 1}},
		"Cache":                {Cache: v1alpha1.CacheStatus{Mode: v1alpha1.CacheModeWritethrough}},
		"Flush":                {Flush: v1alpha1.FlushStatus{Request: "x", CompletionTime: metav1.Now()}},
		"Freeze":               {Freeze: frozen()},
		"Scrub":                {Scrub: v1alpha1.ScrubStatus{Request: "x", CompletionTime: metav1.Now()}},
		"Preload":              {Preload: v1alpha1.PreloadStatus{Request: "x", State: v1alpha1.PreloadCompleted}},
		"PersistentVolumeName": {PersistentVolumeName: "pv"},
		"Conditions":           {Conditions: cachedCondition()},
		"Abandoned": {Abandoned: []v1alpha1.AbandonedWrites{{
			Generation: 1, NodeName: "node-s", Consent: v1alpha1.LossConsent{Time: metav1.Now(), Given: "--accept-data-loss"},
		}}},
	}
	volume := c.storedVolume(t, "fields", ownedStatus("node-a", 2))
	for field := range fields[v1alpha1.CachedVolumeStatus]() {
		value, known := volumes[field]
		if !known {
			t.Errorf("status.%s of a CachedVolume: who may write it? Say so in the admission policy, and here", field)
			continue
		}
		changed := volume.DeepCopy()
		setField(&changed.Status, &value, field)
		forbidden(t, "write "+field+" of another's volume", foreign.Status().Update(t.Context(), changed, client.DryRunAll))
	}
}

func (c *cluster) testEveryMoveField(t *testing.T, foreign, source client.Client) {
	now := metav1.Now()
	moves := map[string]v1alpha1.CacheMigrationStatus{
		"Source":         {Source: v1alpha1.MigrationSource{State: "Exported"}},
		"Progress":       {Progress: v1alpha1.MigrationProgress{HydratedBytes: new(int64(1))}},
		"Outcome":        {Outcome: "Ended"},
		"OutcomeMessage": {OutcomeMessage: "x"},
		"StartTime":      {StartTime: now},
		"CompletionTime": {CompletionTime: now},
		"Conditions":     {Conditions: []metav1.Condition{{Type: "Completed", Status: "True", Reason: "x", LastTransitionTime: now}}},
	}
	migration := newMigration("fields", 2, "node-a", "node-b")
	if err := c.admin.Create(t.Context(), migration); err != nil {
		t.Fatal(err)
	}
	for field := range fields[v1alpha1.CacheMigrationStatus]() {
		value, known := moves[field]
		if !known {
			t.Errorf("status.%s of a CacheMigration: who may write it? Say so in the admission policy, and here", field)
			continue
		}
		changed := migration.DeepCopy()
		setField(&changed.Status, &value, field)
		for name, node := range map[string]client.Client{"a foreign node": foreign, "the source": source} {
			if name == "the source" && field == "Source" {
				continue
			}
			err := node.Status().Patch(t.Context(), changed.DeepCopy(), client.MergeFrom(migration), client.DryRunAll)
			forbidden(t, "write "+field+" of a move, as "+name, err)
		}
	}
}

// fields yields the names of a struct's fields.
func fields[T any]() func(yield func(string) bool) {
	return func(yield func(string) bool) {
		of := reflect.TypeFor[T]()
		for i := range of.NumField() {
			if !yield(of.Field(i).Name) {
				return
			}
		}
	}
}

// setField copies one field.
func setField[T any](to, from *T, name string) {
	reflect.ValueOf(to).Elem().FieldByName(name).Set(reflect.ValueOf(from).Elem().FieldByName(name))
}
