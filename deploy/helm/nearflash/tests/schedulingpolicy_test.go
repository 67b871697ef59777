package charttest

import (
	"context"
	"errors"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// otherWebhook has another value than the chart's in each field. One without a value here
// fails the test.
func otherWebhook() admissionv1.MutatingWebhook {
	everything := admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}}
	return admissionv1.MutatingWebhook{
		Name:                    "other.nearflash.io",
		Rules:                   []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.OperationAll}, Rule: everything}},
		FailurePolicy:           new(admissionv1.Fail),
		MatchPolicy:             new(admissionv1.Exact),
		NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		SideEffects:             new(admissionv1.SideEffectClassNoneOnDryRun),
		TimeoutSeconds:          new(int32(30)),
		AdmissionReviewVersions: []string{"v1", "v1beta1"},
		ReinvocationPolicy:      new(admissionv1.IfNeededReinvocationPolicy),
		MatchConditions:         []admissionv1.MatchCondition{{Name: "all", Expression: "true"}},
	}
}

// testWebhookPolicy: of the webhook the controller writes the authority and nothing else. By
// RBAC alone it could have every object of the cluster sent to itself, and change it.
func (c *cluster) testWebhookPolicy(t *testing.T, controller client.Client) {
	ctx := t.Context()
	conf := &admissionv1.MutatingWebhookConfiguration{}
	if err := c.admin.Get(ctx, client.ObjectKey{Name: schedulingName}, conf); err != nil {
		t.Fatal(err)
	}
	write := func(ctx context.Context, as client.Client, change func(*admissionv1.MutatingWebhookConfiguration)) error {
		changed := conf.DeepCopy()
		change(changed)
		return as.Patch(ctx, changed, client.MergeFrom(conf), client.DryRunAll)
	}
	other := otherWebhook()
	widen := func(conf *admissionv1.MutatingWebhookConfiguration) { conf.Webhooks[0].Rules = other.Rules }
	err := eventually(ctx, "wait for the policy of the webhook", func(ctx context.Context) error {
		if err := write(ctx, controller, widen); !apierrors.IsForbidden(err) {
			return errors.Join(errNotRefused, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	changes := map[string]func(*admissionv1.MutatingWebhookConfiguration){
		"labels":      func(conf *admissionv1.MutatingWebhookConfiguration) { conf.Labels["a"] = "b" },
		"annotations": func(conf *admissionv1.MutatingWebhookConfiguration) { conf.Annotations = map[string]string{"a": "b"} },
		"finalizers":  func(conf *admissionv1.MutatingWebhookConfiguration) { conf.Finalizers = []string{"example.com/a"} },
		"owners": func(conf *admissionv1.MutatingWebhookConfiguration) {
			conf.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-a", UID: "a"}}
		},
		"no webhook": func(conf *admissionv1.MutatingWebhookConfiguration) { conf.Webhooks = nil },
		"another webhook": func(conf *admissionv1.MutatingWebhookConfiguration) {
			conf.Webhooks = append(conf.Webhooks, second(conf))
		},
		"where it is": func(conf *admissionv1.MutatingWebhookConfiguration) {
			conf.Webhooks[0].ClientConfig.Service.Name = "other"
		},
		"where it is, as a URL": func(conf *admissionv1.MutatingWebhookConfiguration) {
			conf.Webhooks[0].ClientConfig.Service, conf.Webhooks[0].ClientConfig.URL = nil, new("https://example.com/")
		},
	}
	for field := range fields[admissionv1.MutatingWebhook]() {
		if field != "ClientConfig" {
			changes[field] = func(conf *admissionv1.MutatingWebhookConfiguration) { setField(&conf.Webhooks[0], &other, field) }
		}
	}
	for what, change := range changes {
		if err := write(ctx, c.admin, change); err != nil {
			t.Errorf("change %s as an administrator: %v", what, err)
		}
		forbidden(t, "change "+what+" of the webhook", write(ctx, controller, change))
	}
	for field := range fields[admissionv1.WebhookClientConfig]() {
		if field != "URL" && field != "Service" && field != "CABundle" {
			t.Errorf("clientConfig.%s of a webhook: may the controller write it? Say so in the admission policy, and here", field)
		}
	}
	allowed(t, "write the webhook's authority", write(ctx, controller, func(conf *admissionv1.MutatingWebhookConfiguration) {
		conf.Webhooks[0].ClientConfig.CABundle = c.config.CAData
	}))
}

// second is a copy of the webhook under another name.
func second(conf *admissionv1.MutatingWebhookConfiguration) admissionv1.MutatingWebhook {
	out := *conf.Webhooks[0].DeepCopy()
	out.Name = "second.nearflash.io"
	return out
}
