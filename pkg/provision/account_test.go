package provision

import (
	"context"
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/loginaccount"
	"github.com/nearflash/nearflash/pkg/volume"
)

// keyed is a fixture whose controller has a key, with nodes that have keys.
type keyed struct {
	*fixture

	controller *keyagreement.Key
	keyErr     error
	nodes      map[string]*keyagreement.Key
	// granted is what the storage server was given last.
	granted volume.Credentials
}

func newKey(t *testing.T) *keyagreement.Key {
	t.Helper()
	key, err := keyagreement.New()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func withKeys(t *testing.T, f *fixture) *keyed {
	t.Helper()
	k := &keyed{fixture: f, controller: newKey(t), nodes: map[string]*keyagreement.Key{}}
	f.svc.loginKey = func(context.Context) (*keyagreement.Key, error) { return k.controller, k.keyErr }
	f.storage.Admitted = func(_ volume.ID, g backend.Grant) { k.granted = g.Credentials }
	for _, name := range []string{"a", "b"} {
		name = string(f.id) + "-" + name
		if err := f.client.Create(t.Context(), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
		k.setKey(t, name, newKey(t))
	}
	f.create(t)
	return k
}

// node is one of the fixture's own nodes.
func (k *keyed) node(name string) string { return string(k.id) + "-" + name }

// setKey gives a node a key, or takes it away.
func (k *keyed) setKey(t *testing.T, node string, key *keyagreement.Key) {
	t.Helper()
	pool := &v1alpha1.CachePool{}
	if err := k.client.Get(t.Context(), client.ObjectKey{Name: node}, pool); err != nil {
		t.Fatal(err)
	}
	pool.Status.InitiatorIQN, pool.Status.LoginPublicKey = "iqn.1993-08.org.debian:01:"+node, ""
	if k.nodes[node] = key; key != nil {
		pool.Status.LoginPublicKey = key.Public()
	}
	if err := k.client.Status().Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
}

// agrees fails unless the node derives of the publication what the storage server has.
func (k *keyed) agrees(t *testing.T, what, node string, p volume.Publication) {
	t.Helper()
	at, err := loginaccount.AtNode(k.nodes[node], p.LoginKey, loginaccount.Admission{Volume: k.id, Fence: p.Fence})
	if err != nil || !at.Equal(k.granted) {
		t.Errorf("%s: the node derives %s, the server has %s, the same: %v (%v)", what, at.Username, k.granted.Username, at.Equal(k.granted), err)
	}
}

func (k *keyed) publishTo(t *testing.T, node string, cred *volume.Credentials) volume.Publication {
	t.Helper()
	p, err := k.svc.Publish(t.Context(), k.id, node, nil, cred)
	if err != nil {
		t.Fatalf("publish to %s: %v", node, err)
	}
	return p
}

// testDerivedAccounts: nodes, generations and volumes have accounts of their own, which are the
// same at each call and at both ends; the Secret's is not taken by a node that has a key.
func testDerivedAccounts(t *testing.T, _ *rest.Config, f *fixture) {
	k := withKeys(t, f)
	a, b := k.node("a"), k.node("b")
	seen := map[string]bool{chap.Password: true}
	fresh := func(what string) {
		t.Helper()
		if seen[k.granted.Password] {
			t.Errorf("%s has an account that another admission has", what)
		}
		seen[k.granted.Password] = true
	}
	p := k.publishTo(t, a, chap)
	k.agrees(t, "the first", a, p)
	fresh("the first")
	first := k.granted
	if k.publishTo(t, a, nil); !k.granted.Equal(first) {
		t.Error("the same publication again has another account")
	}
	k.unpublish(t, a)
	if k.publishTo(t, a, nil); !k.granted.Equal(first) {
		t.Error("the same node under the same generation has another account")
	}
	k.unpublish(t, a)
	k.agrees(t, "another node", b, k.publishTo(t, b, nil))
	fresh("another node")
	k.unpublish(t, b)
	k.agrees(t, "another generation", a, k.publishTo(t, a, nil))
	fresh("another generation")
}

// testAccountFallback is the table of the controller's part (states.md, The account of an
// admission).
func testAccountFallback(t *testing.T, _ *rest.Config, f *fixture) {
	k := withKeys(t, f)
	a := k.node("a")
	k.keyErr = volume.ErrUnavailable
	_, err := k.svc.Publish(t.Context(), k.id, a, nil, chap)
	if wantError(t, err, volume.ErrUnavailable); len(k.storage.Exported(k.id)) > 0 {
		t.Error("admitted without the controller's key")
	}
	k.keyErr = nil
	k.setKey(t, a, nil)
	_, err = k.svc.Publish(t.Context(), k.id, a, nil, nil)
	if wantError(t, err, volume.ErrInvalid); !strings.Contains(err.Error(), "loginPublicKey") || !strings.Contains(err.Error(), "controller-publish-secret-name") {
		t.Errorf("the error does not name both ways: %v", err)
	}
	if p := k.publishTo(t, a, chap); p.LoginKey != "" || !k.granted.Equal(*chap) {
		t.Errorf("a node without a key: context %q, account %s", p.LoginKey, k.granted.Username)
	}
	k.unpublish(t, a)
	k.setKey(t, a, newKey(t))
	k.svc.loginKey = nil
	if p := k.publishTo(t, a, chap); p.LoginKey != "" || !k.granted.Equal(*chap) {
		t.Errorf("a controller without a key: context %q, account %s", p.LoginKey, k.granted.Username)
	}
}

// testRenewAccount is the table "A node has another key" of states.md.
func testRenewAccount(t *testing.T, _ *rest.Config, f *fixture) {
	k := withKeys(t, f)
	a := k.node("a")
	initiator := "iqn.1993-08.org.debian:01:" + a
	renew := func(what string, wantWait, wantNew bool) {
		t.Helper()
		k.granted = volume.Credentials{}
		k.takeSteps()
		wait, err := k.svc.RenewAccount(t.Context(), k.id, a)
		if err != nil || wait != wantWait || (k.granted.Username != "") != wantNew || len(k.takeSteps()) > 0 != wantNew {
			t.Errorf("%s: wait %v, admitted as %q, %v; want %v, %v", what, wait, k.granted.Username, err, wantWait, wantNew)
		}
	}
	renew("not published", false, false)
	p := k.publishTo(t, a, nil)
	renew("as it is", false, false)
	k.storage.Login(k.id, initiator, true)
	k.setKey(t, a, newKey(t))
	renew("a session at work", true, false)
	k.storage.Login(k.id, initiator, false)
	renew("another key", false, true)
	k.agrees(t, "admitted anew", a, p) // by the context of before
	renew("once", false, false)

	old := k.controller
	k.controller = newKey(t)
	k.setKey(t, a, newKey(t))
	renew("another key of the controller", false, false)
	k.controller, k.keyErr = old, volume.ErrUnavailable
	if _, err := k.svc.RenewAccount(t.Context(), k.id, a); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("without the controller's key: %v", err)
	}
	k.keyErr = nil
	obj := &v1alpha1.CachedVolume{}
	if err := k.client.Get(t.Context(), client.ObjectKey{Name: string(k.id)}, obj); err != nil {
		t.Fatal(err)
	}
	obj.Status.Generation = ptr.To[int64](7) // of which the server does not know
	if err := k.client.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	renew("another generation than the server's", false, false)
	obj.Status.Generation, obj.Status.Publication = ptr.To[int64](1), v1alpha1.PublicationReleased
	if err := k.client.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	renew("released", false, false)
}

// testRenewSecret: what was admitted with the Secret's account keeps it until it is published
// anew: its attachment has no public half.
func testRenewSecret(t *testing.T, _ *rest.Config, f *fixture) {
	k := withKeys(t, f)
	a := k.node("a")
	key := k.nodes[a]
	k.setKey(t, a, nil)
	k.publishTo(t, a, chap)
	k.setKey(t, a, key)
	if wait, err := k.svc.RenewAccount(t.Context(), k.id, a); wait || err != nil || !k.granted.Equal(*chap) {
		t.Errorf("wait %v, %v, account %s", wait, err, k.granted.Username)
	}
	k.agrees(t, "published anew", a, k.publishTo(t, a, chap))
	if wait, err := k.svc.RenewAccount(t.Context(), "not-there", a); wait || err != nil {
		t.Errorf("a volume that is gone: %v, %v", wait, err)
	}
}
