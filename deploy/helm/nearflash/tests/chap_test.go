package charttest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/chapaccount"
	"github.com/nearflash/nearflash/pkg/loginaccount/keeper"
)

// TestRenderTwice: tools that apply renderings take a difference for a change, and would
// rotate by it whatever is random.
func TestRenderTwice(t *testing.T) {
	target := []string{"--set", "target.address=storage:9443", "--set", "target.tls.existingSecret=x"}
	for name, args := range map[string][]string{"defaults": nil, "a storage server": target, "target.yaml": valuesArgs("target"), "origins.yaml": valuesArgs("origins")} {
		t.Run(name, func(t *testing.T) {
			var renderings [2][]byte
			for i := range renderings {
				var err error
				renderings[i], err = helm(t.Context(), append([]string{"template", release, chartDir, "--namespace", namespace, "--kube-version", "1.36.0"}, args...)...)
				if err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(renderings[0], renderings[1]) {
				t.Error("two renderings of the same values differ")
			}
		})
	}
}

// TestWhoMakesTheAccount: the controller makes the Secret where nothing else gives it and there
// is a storage server, and may make no other beside its own key, which nothing of the chart has.
func TestWhoMakesTheAccount(t *testing.T) {
	target := []string{"--set", "target.address=storage:9443", "--set", "target.tls.existingSecret=x"}
	const key, both = "['nearflash-login-key']", "['nearflash-login-key', 'nearflash-chap']"
	for name, tc := range map[string]struct {
		args              []string
		chart, controller bool
		// may are the Secrets that the controller may make, "" for none.
		may string
	}{
		"no storage server": {},
		"a storage server":  {args: target, controller: true, may: both},
		"a password":        {args: append([]string{"--set", "chap.password=twelve-chars"}, target...), chart: true, may: key},
		"a Secret":          {args: append([]string{"--set", "chap.existingSecret=mine"}, target...), may: key},
		"both":              {args: append([]string{"--set", "chap.existingSecret=mine", "--set", "chap.password=twelve-chars"}, target...), may: key},
	} {
		t.Run(name, func(t *testing.T) {
			found := map[string]bool{}
			for _, object := range mustTemplate(t, tc.args...) {
				text, err := object.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				kind := object.GetKind()
				found["chart"] = found["chart"] || kind == "Secret" && object.GetName() == "nearflash-chap"
				found["key"] = found["key"] || kind == "Secret" && object.GetName() == "nearflash-login-key"
				found["flag"] = found["flag"] || bytes.Contains(text, []byte(`"--chap-secret=nearflash-chap"`))
				found["right"] = found["right"] || kind == "Role" && bytes.Contains(text, []byte(`"resources":["secrets"],"verbs":["create"]`))
				if kind == "ValidatingAdmissionPolicy" && object.GetName() == "nearflash-controller-secrets" {
					found["policy"] = true
					if !bytes.Contains(text, []byte(" in "+tc.may+" ")) {
						t.Errorf("the policy is not of %s: %s", tc.may, text)
					}
				}
			}
			want := map[string]bool{"chart": tc.chart, "key": false, "flag": tc.controller, "right": tc.may != "", "policy": tc.may != ""}
			for what, is := range want {
				if found[what] != is {
					t.Errorf("%s: %v, want %v", what, found[what], is)
				}
			}
		})
	}
}

// chartThatGenerates is the chart with the Secret as versions before made it.
func chartThatGenerates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"templates", "files", "crds"} {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(chartDir, folder))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"Chart.yaml", "values.yaml", "values.schema.json"} {
		copyFile(t, filepath.Join(chartDir, file), filepath.Join(dir, file))
	}
	copyFile(t, "testdata/secrets-before.yaml", filepath.Join(dir, "templates", "secrets.yaml"))
	return dir
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// testAccount takes the part of the controller, which makes the Secret and no other: one
// of another type would be the token of whichever account it names.
func (c *cluster) testAccount(t *testing.T) {
	ctx := t.Context()
	controller := c.as(t, c.podToken(t, "nearflash-controller", "node-a"))
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: kind}
		if kind == corev1.SecretTypeServiceAccountToken {
			s.Annotations = map[string]string{corev1.ServiceAccountNameKey: "nearflash-node"}
		}
		return s
	}
	before := c.chapSecret(t)
	if err := c.admin.Delete(ctx, before); err != nil {
		t.Fatal(err)
	}
	err := eventually(ctx, "wait for the policy of Secrets", func(ctx context.Context) error {
		if err := controller.Create(ctx, secret("other", corev1.SecretTypeOpaque), client.DryRunAll); !apierrors.IsForbidden(err) {
			return errNotRefused
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	forbidden(t, "make a token of another account", controller.Create(ctx, secret(before.Name, corev1.SecretTypeServiceAccountToken)))
	generated := secret("", corev1.SecretTypeOpaque)
	generated.GenerateName = before.Name
	forbidden(t, "make a Secret of a generated name", controller.Create(ctx, generated))
	elsewhere := secret(before.Name, corev1.SecretTypeOpaque)
	elsewhere.Namespace = "default"
	forbidden(t, "make a Secret in another namespace", controller.Create(ctx, elsewhere))
	forbidden(t, "make its key as a token", controller.Create(ctx, secret(keeper.SecretName, corev1.SecretTypeServiceAccountToken)))
	c.testLoginKey(t, controller)
	c.makeAccount(t, controller, before.Name)
	made := c.chapSecret(t)
	changed := made.DeepCopy()
	changed.Data = before.Data
	forbidden(t, "change the CHAP account", controller.Update(ctx, changed))
	forbidden(t, "delete the CHAP account", controller.Delete(ctx, changed))
	allowed(t, "make another Secret as an administrator", c.admin.Create(ctx, secret("other", corev1.SecretTypeOpaque), client.DryRunAll))
	// The release has had one of this name, which is gone.
	if err := c.helm(ctx, "upgrade", release, chartDir); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made.Data, c.chapSecret(t).Data); diff != "" {
		t.Error("an upgrade changed the account that the controller has made")
	}
}

// testLoginKey: the controller makes its key, and reads it; nobody else of nearflash does, and it
// never writes it.
func (c *cluster) testLoginKey(t *testing.T, controller client.Client) {
	ctx := t.Context()
	maker := &keeper.Keeper{Client: controller, Namespace: namespace}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- maker.Start(running) }()
	err := eventually(ctx, "wait for the key", func(ctx context.Context) error {
		_, err := maker.Key(ctx)
		return err
	})
	stop()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	made := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: keeper.SecretName}}
	forbidden(t, "change its key", controller.Update(ctx, made))
	forbidden(t, "delete its key", controller.Delete(ctx, made))
	node := c.as(t, c.podToken(t, "nearflash-node", "node-a"))
	forbidden(t, "read the controller's key as a node", node.Get(ctx, client.ObjectKeyFromObject(made), &corev1.Secret{}))
}

// makeAccount runs what makes the account, until it is there.
func (c *cluster) makeAccount(t *testing.T, as client.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	maker := chapaccount.Maker{Client: as, Secret: client.ObjectKey{Namespace: namespace, Name: name}, Username: "nearflash"}
	done := make(chan error, 1)
	go func() { done <- maker.Start(ctx) }()
	err := eventually(ctx, "wait for the account", func(ctx context.Context) error {
		return c.admin.Get(ctx, maker.Secret, &corev1.Secret{})
	})
	cancel()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
}
