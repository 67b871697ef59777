package scheduling

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// lifetime is that of a certificate, which is replaced when less than
	// renewBefore of it is left.
	lifetime, renewBefore = 90 * 24 * time.Hour, 30 * 24 * time.Hour
	// period is the time between two looks at the Secret, retry that after a
	// failure, patience how long a look may take.
	period, retry, patience = 30 * time.Second, 5 * time.Second, 10 * time.Second
)

// Keys of the Secret: ca.crt is what the API server shall trust.
const (
	caKey   = "ca.crt"
	certKey = corev1.TLSCertKey
	keyKey  = corev1.TLSPrivateKeyKey
)

// errNoCertificate is returned while there is no certificate to serve with.
var errNoCertificate = errors.New("no certificate yet")

// certificates keeps the webhook's certificate. Each one has an authority of its
// own, whose key is thrown away at once: whoever reads the Secret can serve the
// webhook until the certificate ends, and sign nothing.
type certificates struct {
	client client.Client
	// key names the Secret; the webhook configuration has the same name.
	key client.ObjectKey
	// host is the name in the certificate.
	host    string
	now     func() time.Time
	current atomic.Pointer[tls.Certificate]
}

// serving returns the certificate for a connection.
func (c *certificates) serving(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if cert := c.current.Load(); cert != nil {
		return cert, nil
	}
	return nil, errNoCertificate
}

// follow takes the certificate from the Secret until ctx ends.
func (c *certificates) follow(ctx context.Context) error {
	return repeat(ctx, func(ctx context.Context) error {
		_, _, err := c.load(ctx)
		if errors.Is(err, errNoCertificate) {
			klog.FromContext(ctx).Info("The scheduling webhook waits for its certificate", "reason", err.Error())
			return err
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Certificate of the scheduling webhook not read")
		}
		return err
	})
}

// keep makes and renews the certificate, and has the API server trust it, until
// ctx ends.
func (c *certificates) keep(ctx context.Context) error {
	return repeat(ctx, func(ctx context.Context) error {
		err := c.ensure(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Certificate of the scheduling webhook not kept")
		}
		return err
	})
}

// repeat does something now and then, sooner after a failure, until ctx ends.
func repeat(ctx context.Context, do func(context.Context) error) error {
	for {
		limited, cancel := context.WithTimeout(ctx, patience)
		err := do(limited)
		cancel()
		pause := period
		if err != nil {
			pause = retry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// load takes the certificate from the Secret and serves with it from now on.
func (c *certificates) load(ctx context.Context) (*corev1.Secret, *tls.Certificate, error) {
	secret := &corev1.Secret{}
	if err := c.client.Get(ctx, c.key, secret); err != nil {
		return nil, nil, fmt.Errorf("read Secret %s, which the chart makes: %w", c.key, err)
	}
	cert, err := parse(secret.Data, c.host, c.now())
	if err != nil {
		return secret, nil, fmt.Errorf("%w: Secret %s: %w", errNoCertificate, c.key, err)
	}
	c.current.Store(cert)
	return secret, cert, nil
}

// ensure makes a certificate if there is none, or none that lasts. The API server
// trusts a new one before it is stored, and the one before until the next.
func (c *certificates) ensure(ctx context.Context) error {
	secret, cert, err := c.load(ctx)
	if err != nil && !errors.Is(err, errNoCertificate) {
		return err
	}
	if err == nil && cert.Leaf.NotAfter.Sub(c.now()) > renewBefore {
		return c.trust(ctx, secret.Data[caKey])
	}
	chain, key, err := certutil.GenerateSelfSignedCertKeyWithOptions(certutil.SelfSignedCertKeyOptions{Host: c.host, MaxAge: lifetime})
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	ca := issuer(chain)
	if cert != nil {
		ca = append(ca, issuer(secret.Data[certKey])...)
	}
	if err := c.trust(ctx, ca); err != nil {
		return err
	}
	secret.Data = map[string][]byte{caKey: ca, certKey: chain, keyKey: key}
	if err := c.client.Update(ctx, secret); err != nil {
		return fmt.Errorf("store the certificate in Secret %s: %w", c.key, err)
	}
	klog.FromContext(ctx).Info("Made a certificate for the scheduling webhook", "host", c.host, "lifetime", lifetime)
	_, _, err = c.load(ctx)
	return err
}

// trust makes the API server accept certificates of these authorities.
func (c *certificates) trust(ctx context.Context, bundle []byte) error {
	obj := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := c.client.Get(ctx, client.ObjectKey{Name: c.key.Name}, obj); err != nil {
		return fmt.Errorf("read MutatingWebhookConfiguration %s, which the chart makes: %w", c.key.Name, err)
	}
	before := obj.DeepCopy()
	changed := false
	for i := range obj.Webhooks {
		if conf := &obj.Webhooks[i].ClientConfig; !bytes.Equal(conf.CABundle, bundle) {
			conf.CABundle, changed = bundle, true
		}
	}
	if !changed {
		return nil
	}
	// Webhooks are merged by name, so that nothing but the bundle is written.
	if err := c.client.Patch(ctx, obj, client.StrategicMergeFrom(before)); err != nil {
		return fmt.Errorf("set the CA of MutatingWebhookConfiguration %s: %w", c.key.Name, err)
	}
	return nil
}

// parse returns the certificate of a Secret if clients that trust its authorities
// accept it.
func parse(data map[string][]byte, host string, now time.Time) (*tls.Certificate, error) {
	if len(data[certKey]) == 0 {
		return nil, fmt.Errorf("it has no %s", certKey)
	}
	cert, err := tls.X509KeyPair(data[certKey], data[keyKey])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", certKey, keyKey, err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data[caKey])
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now}); err != nil {
		return nil, fmt.Errorf("%s: %w", certKey, err)
	}
	return &cert, nil
}

// issuer returns what follows the first certificate of a chain: its authority.
func issuer(chain []byte) []byte {
	_, rest := pem.Decode(chain)
	return bytes.Clone(rest)
}
