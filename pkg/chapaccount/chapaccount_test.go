package chapaccount

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var key = client.ObjectKey{Namespace: "ns", Name: "account"}

func read(t *testing.T, api client.Client) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := api.Get(t.Context(), key, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// TestEnsure: the account is made once, and is the same from then on, also when it is asked
// for by two controllers at once; the password is in no log.
func TestEnsure(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(t.Context(), logger)
	api := fake.NewClientBuilder().Build()
	m := &Maker{Client: api, Secret: key, Username: "nearflash"}
	if err := m.ensure(ctx); err != nil {
		t.Fatal(err)
	}
	first := read(t, api)
	password := string(first.Data[PasswordKey])
	if string(first.Data[UsernameKey]) != "nearflash" || len(password) < 24 {
		t.Errorf("made %d keys, a password of %d characters", len(first.Data), len(password))
	}
	late := &Maker{Secret: key, Username: "nearflash", Client: interceptor.NewClient(api, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name) // asked before the other one made it
		},
	})}
	for _, each := range []*Maker{m, late, {Client: api, Secret: key, Username: "other"}} {
		if err := each.ensure(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(first, read(t, api)); diff != "" {
		t.Error("the account has changed")
	}
	log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if !strings.Contains(log, "Made a CHAP account") || strings.Contains(log, password) {
		t.Errorf("log:\n%s", log)
	}
}

// TestForeign: what somebody else has put there stays, complete or not.
func TestForeign(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	secret := &corev1.Secret{Data: map[string][]byte{"chap.username": []byte("theirs")}}
	secret.Namespace, secret.Name = key.Namespace, key.Name
	if err := api.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := (&Maker{Client: api, Secret: key, Username: "nearflash"}).ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(secret.Data, read(t, api).Data); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// TestUnreadable: that the Secret cannot be read says nothing of whether it is there.
func TestUnreadable(t *testing.T) {
	away := errors.New("the API server is away")
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return away
		},
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			t.Error("made without knowing")
			return nil
		},
	})
	if err := (&Maker{Client: api, Secret: key}).ensure(t.Context()); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
}
