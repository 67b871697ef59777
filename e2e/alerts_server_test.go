//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/e2e/cluster"
)

const (
	// targetFolder has the storage server's configuration, and targetMetrics is where it serves metrics
	// to Prometheus.
	targetFolder  = "/etc/nearflash-target/"
	targetMetrics = "10.88.0.20:9815"
	// stopTarget ends the storage server's service; the machine starts another.
	stopTarget = "old=$(pidof nearflash-target); kill $old; while pidof nearflash-target | grep -qw $old; do sleep 0.1; done"
	// fillPool fills the thin pool so far, in percent. A block of each chunk is enough, if the pool does
	// not write zeroes over the rest meanwhile; the disk below is a file without room for all of it.
	fillPool = `set -e
read size used chunk <<<"$(lvs --noheadings --nosuffix --units k -o lv_size,data_percent,chunk_size storage/pool)"
lvchange -qq --zero n storage/pool
lvcreate -q -n e2e-fill -V ${size%%.*}k -T storage/pool
chunks=$(awk "BEGIN {print int($size / $chunk * (%d - $used) / 100)}")
fio --name=fill --filename=/dev/storage/e2e-fill --rw=write:$((${chunk%%.*} - 4))k --bs=4k --io_size=$((chunks * 4))k \
  --direct=1 --ioengine=libaio --iodepth=64 --minimal >/dev/null
lvchange -qq --zero y storage/pool`
	emptyPool = `lvremove -qq -y storage/e2e-fill 2>/dev/null || true; lvchange -qq --zero y storage/pool 2>/dev/null || true`
)

var _ = Describe("The alerts about a storage server that is asked itself", Label("alerts", "metrics", "lab", "slow"), Serial, func() {
	It("fire for certificates, for what it cannot read, for what is wrong, and for a server that is away", func(ctx SpecContext) {
		s := newSpace(ctx)
		ca := newAuthority(5)
		p := startPrometheus(ctx, s, targetScrape(ca))

		By("giving both sides certificates that end soon")
		end := replaceCertificates(ctx, ca)
		Expect(p.await(ctx, `up{job="nearflash-target"} == 1`, one)).To(Succeed())
		for _, alert := range []struct{ name, certificate, severity string }{
			{"NearflashCertificateEnds", "server", "warning"}, {"NearflashCertificateEnds", "client", "critical"},
			{"NearflashTargetCertificateEnds", "server", "warning"}, {"NearflashTargetCertificateEnds", "client_ca", "critical"},
		} {
			Expect(p.awaitAlert(ctx, alert.name, map[string]string{"certificate": alert.certificate, "severity": alert.severity})).To(Succeed())
		}

		By("filling the thin pool")
		empty := caused(ctx, cluster.StorageMachine, fmt.Sprintf(fillPool, 97), emptyPool)
		for _, alert := range []string{"NearflashStorageServerUnhealthy", "NearflashTargetUnhealthy", "NearflashTargetNearlyFull"} {
			Expect(p.awaitAlert(ctx, alert, nil)).To(Succeed())
		}
		Expect(empty(ctx)).To(Succeed())
		for _, alert := range []string{"NearflashStorageServerUnhealthy", "NearflashTargetUnhealthy", "NearflashTargetNearlyFull"} {
			Expect(p.awaitResolved(ctx, alert)).To(Succeed())
		}

		By("keeping it from reading its volume group")
		blind := caused(ctx, cluster.StorageMachine, `mount --bind /bin/false $(command -v lvs)`, `umount $(command -v lvs) 2>/dev/null || true`)
		p.fires(ctx, "NearflashTargetCheckFailing", nil, blind)

		By("stopping it")
		still := caused(ctx, cluster.StorageMachine, `kill -STOP $(pidof nearflash-target)`, `kill -CONT $(pidof nearflash-target)`)
		p.fires(ctx, "NearflashTargetDown", map[string]string{"severity": "critical"}, still)

		By("giving the certificates of before back")
		Expect(end(ctx)).To(Succeed())
		Expect(p.awaitResolved(ctx, "NearflashCertificateEnds")).To(Succeed())
	}, NodeTimeout(3*specLimit))

	It("fire for a controller that may not read records any more", func(ctx SpecContext) {
		s := newSpace(ctx)
		p := startPrometheus(ctx, s)
		Expect(p.await(ctx, `nearflash_controller_cluster_visible == 1`, one)).To(Succeed())
		p.fires(ctx, "NearflashControllerBlind", map[string]string{"severity": "critical"}, withoutMigrations(ctx))
	}, NodeTimeout(specLimit))
})

// withoutMigrations takes away from the controller the right to list CacheMigrations.
func withoutMigrations(ctx context.Context) (end func(context.Context) error) {
	GinkgoHelper()
	role := &rbacv1.ClusterRole{}
	Expect(k.API.Get(ctx, client.ObjectKey{Name: "nearflash-controller"}, role)).To(Succeed())
	old := role.DeepCopy()
	end = func(ctx context.Context) error {
		now := &rbacv1.ClusterRole{}
		if err := k.API.Get(ctx, client.ObjectKeyFromObject(role), now); err != nil {
			return err
		}
		now.Rules = old.Rules
		return k.API.Update(ctx, now)
	}
	DeferCleanup(func(ctx SpecContext) { Expect(end(ctx)).To(Succeed()) }, NodeTimeout(soon))
	found := false
	for i, rule := range role.Rules {
		if len(rule.Resources) == 1 && rule.Resources[0] == "cachemigrations" {
			role.Rules[i].Verbs, found = []string{"get", "delete"}, true
		}
	}
	Expect(found).To(BeTrue(), "a rule of cachemigrations alone: %v", role.Rules)
	Expect(k.API.Patch(ctx, role, client.MergeFrom(old))).To(Succeed())
	return end
}

// targetScrape is the storage server itself, with the rules of deploy/target.
func targetScrape(ca *authority) scrape {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(checkout(), "deploy", "target", "alerts.yaml"))
	Expect(err).NotTo(HaveOccurred())
	var rules ruleFile
	Expect(yaml.Unmarshal(text, &rules)).To(Succeed())
	cert, key := ca.issue("prometheus", 30, x509.ExtKeyUsageClientAuth)
	return scrape{
		job: fmt.Sprintf(`
  - job_name: nearflash-target
    scheme: https
    tls_config: {ca_file: target-ca.crt, cert_file: target.crt, key_file: target.key}
    static_configs: [{targets: ["%s"]}]
`, targetMetrics),
		rules: rules.hastily(),
		files: map[string][]byte{"target-ca.crt": ca.text, "target.crt": cert, "target.key": key},
	}
}

// replaceCertificates follows "Make certificates" of docs/how-to/storage-server.md: both sides know
// both CAs before either has a new certificate. The storage server serves metrics from then on. end
// gives back what was there.
func replaceCertificates(ctx context.Context, ca *authority) (end func(context.Context) error) {
	GinkgoHelper()
	files := map[string][]byte{}
	for _, name := range []string{"tls.crt", "tls.key", "client-ca.crt", "config.yaml"} {
		text, err := k.Host.Run(ctx, cluster.StorageMachine, "cat "+targetFolder+name)
		Expect(err).NotTo(HaveOccurred())
		files[name] = []byte(text)
	}
	secret := &corev1.Secret{}
	Expect(k.API.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: "nearflash-target-client"}, secret)).To(Succeed())
	before := secret.DeepCopy()
	end = func(ctx context.Context) error {
		if err := putSecret(ctx, before); err != nil {
			return err
		}
		return putTarget(ctx, files)
	}
	DeferCleanup(func(ctx SpecContext) { Expect(end(ctx)).To(Succeed()) }, NodeTimeout(late))

	host, _, err := net.SplitHostPort(firstServer.address)
	Expect(err).NotTo(HaveOccurred())
	var config map[string]any
	Expect(json.Unmarshal(files["config.yaml"], &config)).To(Succeed())
	config["metrics"] = map[string]any{"listen": targetMetrics, "allowedClientNames": []string{"prometheus"}}
	text, err := json.Marshal(config)
	Expect(err).NotTo(HaveOccurred())
	cert, key := ca.issue(cluster.StorageMachine, 20, x509.ExtKeyUsageServerAuth, net.ParseIP(host))
	now := secret.DeepCopy()
	now.Data["ca.crt"] = bytes.Join([][]byte{before.Data["ca.crt"], ca.text}, []byte("\n"))
	now.Data["tls.crt"], now.Data["tls.key"] = ca.issue("nearflash-controller", 5, x509.ExtKeyUsageClientAuth)
	Expect(putSecret(ctx, now)).To(Succeed())
	Expect(putTarget(ctx, map[string][]byte{
		"tls.crt": cert, "tls.key": key, "config.yaml": text,
		"client-ca.crt": bytes.Join([][]byte{files["client-ca.crt"], ca.text}, []byte("\n")),
	})).To(Succeed())
	return end
}

// putSecret gives the controller a client certificate.
func putSecret(ctx context.Context, want *corev1.Secret) error {
	secret := &corev1.Secret{}
	if err := k.API.Get(ctx, client.ObjectKeyFromObject(want), secret); err != nil {
		return err
	}
	secret.Data = want.Data
	return k.API.Update(ctx, secret)
}

// putTarget writes files of the storage server, and has it begin anew.
func putTarget(ctx context.Context, files map[string][]byte) error {
	for name, text := range files {
		if _, err := k.Lab.RunInput(ctx, cluster.StorageMachine, "umask 077; cat >"+targetFolder+name, text); err != nil {
			return err
		}
	}
	_, err := k.Host.Run(ctx, cluster.StorageMachine, stopTarget)
	return err
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	text []byte // the certificate in PEM
}

func newAuthority(days int) *authority {
	GinkgoHelper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	template := certificate("e2e CA", days)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	Expect(err).NotTo(HaveOccurred())
	cert, err := x509.ParseCertificate(der)
	Expect(err).NotTo(HaveOccurred())
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func certificate(name string, days int) *x509.Certificate {
	GinkgoHelper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	Expect(err).NotTo(HaveOccurred())
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, days),
	}
}

// issue returns a certificate of so many days and its key, in PEM.
func (a *authority) issue(name string, days int, usage x509.ExtKeyUsage, addresses ...net.IP) (cert, key []byte) {
	GinkgoHelper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	template := certificate(name, days)
	template.KeyUsage, template.ExtKeyUsage, template.IPAddresses = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}, addresses
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	Expect(err).NotTo(HaveOccurred())
	text, err := x509.MarshalPKCS8PrivateKey(private)
	Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}
