package charttest

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// schedulingName is that of the webhook's objects.
const schedulingName = "nearflash-scheduling"

// TestSchedulingOff wants nothing of the webhook where it is switched off.
func TestSchedulingOff(t *testing.T) {
	args := append(valuesArgs("static"), "--set", "scheduling.enabled=false")
	for _, object := range mustTemplate(t, args...) {
		if object.GetName() == schedulingName {
			t.Errorf("%s %s is rendered", object.GetKind(), object.GetName())
		}
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "--scheduling-") {
			t.Errorf("%s %s has flags of the webhook", object.GetKind(), object.GetName())
		}
	}
}

// testScheduling wants an upgrade to keep what the controller has put into the
// chart's objects, which it does as its own account, and to take them away where the
// webhook is switched off.
func (c *cluster) testScheduling(t *testing.T) {
	ctx := t.Context()
	controller := c.as(t, c.podToken(t, "nearflash-controller", "node-a"))
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: namespace, Name: schedulingName}
	allowed(t, "read the webhook's Secret", controller.Get(ctx, key, secret))
	secret.Data = map[string][]byte{"tls.crt": []byte("certificate")}
	allowed(t, "write the webhook's Secret", controller.Update(ctx, secret))
	c.testWebhookPolicy(t, controller)
	conf := &admissionregistrationv1.MutatingWebhookConfiguration{}
	allowed(t, "read the webhook's configuration", controller.Get(ctx, client.ObjectKey{Name: schedulingName}, conf))
	before := conf.DeepCopy()
	conf.Webhooks[0].ClientConfig.CABundle = c.config.CAData
	allowed(t, "write the webhook's authority", controller.Patch(ctx, conf, client.StrategicMergeFrom(before)))
	other := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	if err := c.admin.Create(ctx, other); err != nil {
		t.Fatal(err)
	}
	forbidden(t, "change another webhook", controller.Patch(ctx, other, client.RawPatch("application/merge-patch+json", []byte(`{"webhooks":[]}`))))
	forbidden(t, "write the CHAP secret", controller.Update(ctx, c.chapSecret(t)))
	forbidden(t, "read a namespace", controller.Get(ctx, client.ObjectKey{Name: "default"}, &corev1.Namespace{}))

	if err := c.helm(ctx, "upgrade", release, chartDir, "--set", "logLevel=3"); err != nil {
		t.Fatal(err)
	}
	if err := c.admin.Get(ctx, key, secret); err != nil || string(secret.Data["tls.crt"]) != "certificate" {
		t.Errorf("the Secret has %v after an upgrade (%v), want the certificate", secret.Data, err)
	}
	if err := c.admin.Get(ctx, client.ObjectKey{Name: schedulingName}, conf); err != nil || string(conf.Webhooks[0].ClientConfig.CABundle) != string(c.config.CAData) {
		t.Errorf("the authority is %q after an upgrade (%v), want it kept", conf.Webhooks[0].ClientConfig.CABundle, err)
	}
	if err := c.helm(ctx, "upgrade", release, chartDir, "--set", "scheduling.enabled=false"); err != nil {
		t.Fatal(err)
	}
	if err := c.admin.Get(ctx, client.ObjectKey{Name: schedulingName}, conf); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the webhook's configuration after it was switched off: %v, want not found", err)
	}
}
