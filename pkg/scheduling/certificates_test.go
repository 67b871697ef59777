package scheduling

import (
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testCertificates lets time pass for the certificate. It leaves the Secret empty, as
// the chart makes it.
func (c *cluster) testCertificates(t *testing.T) {
	cfg := Config{Namespace: namespace, Name: name}
	clock := clocktesting.NewFakeClock(time.Now())
	newCertificates := func(host string) *certificates {
		return &certificates{client: c.api, key: client.ObjectKey{Namespace: namespace, Name: name}, host: host, now: clock.Now}
	}
	leader, other := newCertificates(cfg.host()), newCertificates(cfg.host())
	if _, err := leader.serving(nil); err == nil {
		t.Error("a certificate before there is one")
	}
	if _, _, err := other.load(t.Context()); err == nil {
		t.Error("a certificate in the chart's Secret")
	}
	c.ensure(t, leader)
	first := c.served(t, leader)
	if _, _, err := other.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.served(t, other); !got.Equal(first) {
		t.Error("two replicas serve with different certificates")
	}
	if n := len(c.authorities(t)); n != 1 {
		t.Errorf("%d authorities are trusted, want 1", n)
	}
	// Nothing is written while all is well.
	before := c.configuration(t)
	c.ensure(t, leader)
	if diff := cmp.Diff(before, c.configuration(t)); diff != "" {
		t.Errorf("the configuration changed:\n%s", diff)
	}
	if got := c.served(t, leader); !got.Equal(first) {
		t.Error("the certificate changed")
	}
	// Somebody takes the trust away.
	before.Webhooks[0].ClientConfig.CABundle = nil
	if err := c.api.Update(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	c.ensure(t, leader)
	c.verify(t, first, clock.Now())

	clock.Step(lifetime - renewBefore)
	c.ensure(t, leader)
	second := c.served(t, leader)
	if second.Equal(first) {
		t.Fatal("the certificate was not renewed")
	}
	c.verify(t, first, clock.Now()) // the other replicas follow later
	c.verify(t, second, clock.Now())
	if n := len(c.authorities(t)); n != 2 {
		t.Errorf("%d authorities are trusted after a renewal, want 2", n)
	}
	// The authorities do not pile up, and what is no certificate is replaced.
	c.ensure(t, leader) // by this clock the second one ends soon as well
	if n := len(c.authorities(t)); n != 2 {
		t.Errorf("%d authorities are trusted after two renewals, want 2", n)
	}
	write := func(change func(*corev1.Secret)) func(*testing.T) {
		return func(t *testing.T) {
			secret := c.secret(t)
			change(secret)
			if err := c.api.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}
	}
	clock.SetTime(time.Now())
	for name, damage := range map[string]func(*testing.T){
		"a key of another": write(func(s *corev1.Secret) { s.Data[keyKey] = []byte("x") }),
		"no authority":     write(func(s *corev1.Secret) { delete(s.Data, caKey) }),
		"nothing at all":   write(func(s *corev1.Secret) { s.Data = nil }),
		"another name":     func(t *testing.T) { c.ensure(t, newCertificates("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			damage(t)
			if _, _, err := newCertificates(cfg.host()).load(t.Context()); err == nil {
				t.Error("such a Secret is accepted")
			}
			c.ensure(t, leader)
			c.verify(t, c.served(t, leader), clock.Now())
		})
	}
	write(func(s *corev1.Secret) { s.Data = nil })(t)
}

func (c *cluster) ensure(t *testing.T, certs *certificates) {
	t.Helper()
	if err := certs.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) served(t *testing.T, certs *certificates) *x509.Certificate {
	t.Helper()
	cert, err := certs.serving(nil)
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf
}

func (c *cluster) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := c.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// authorities are those that the API server trusts.
func (c *cluster) authorities(t *testing.T) []*x509.Certificate {
	t.Helper()
	var out []*x509.Certificate
	rest := c.configuration(t).Webhooks[0].ClientConfig.CABundle
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, ca)
	}
}

// verify wants a certificate to be accepted by the API server.
func (c *cluster) verify(t *testing.T, cert *x509.Certificate, now time.Time) {
	t.Helper()
	roots := x509.NewCertPool()
	for _, ca := range c.authorities(t) {
		roots.AddCert(ca)
	}
	if _, err := cert.Verify(x509.VerifyOptions{DNSName: name + "." + namespace + ".svc", Roots: roots, CurrentTime: now}); err != nil {
		t.Errorf("the API server does not accept the certificate: %v", err)
	}
}
