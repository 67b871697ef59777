package reconcile_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testOtherKey: a node that has lost its key is admitted with the account of the next one, once no
// session of its is up; what others have, and what is not on the storage server, is left alone.
func (c *cluster) testOtherKey(t *testing.T) {
	const id, of, node = "other-key", "other-key-of-another", "node-keyed"
	key := func() string {
		t.Helper()
		k, err := keyagreement.New()
		c.must(t, err)
		return k.Public()
	}
	set := func(name, key string) {
		t.Helper()
		c.setPool(t, name, func(p *v1alpha1.CachePool) {
			p.Status.InitiatorIQN, p.Status.LoginPublicKey = "iqn.1993-08.org.debian:01:"+name, key
		})
	}
	account := func(id volume.ID) string {
		t.Helper()
		access, err := c.storage.Access(t.Context(), id)
		c.must(t, err)
		return access.Exports[0].Username
	}
	for id, node := range map[volume.ID]string{id: node, of: node + "-2"} {
		c.must(t, c.client.Create(t.Context(), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: node}}))
		set(node, key())
		c.create(t, id)
		_, err := c.svc.Publish(t.Context(), id, node, nil, nil)
		c.must(t, err)
	}
	first, others := account(id), account(of)
	c.storage.Login(id, "iqn.1993-08.org.debian:01:"+node, true)
	set(node, key())
	never(t, "the account of a session at work has changed", func() bool { return account(id) != first })
	c.storage.Login(id, "iqn.1993-08.org.debian:01:"+node, false)
	eventually(t, "the node is admitted with its new key", func() bool { return account(id) != first })
	second := account(id)
	set(node, key())
	eventually(t, "the node is admitted with its next key", func() bool { return account(id) != second })
	if account(of) != others {
		t.Error("another node was admitted anew")
	}
}
