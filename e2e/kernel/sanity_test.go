//go:build kernel

package kernel

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend/iscsi"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
)

// TestKernelSanity runs csi-sanity against the whole driver: CSI layer,
// controller, nearflash-target over mutual TLS, LVM, LIO, iSCSI, dm-cache and
// mounts. Only the API server is a fake.
func TestKernelSanity(t *testing.T) {
	m := newMachine(t)
	dir, err := os.MkdirTemp("", "nf")
	mustPass(t, "temporary directory", err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, stop := context.WithCancel(context.Background())
	objects := objectStore()
	recorder := events.NewFakeRecorder(10000)

	n, err := openNode(ctx, dir, onOneSSD(), records.New(objects, recorder, time.Now))
	mustPass(t, "node", err)
	t.Cleanup(func() { m.dropPool(onOneSSD()) })
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	mustPass(t, "CachePool", objects.Create(ctx, pool))
	pool.Status.InitiatorIQN = m.initiator
	mustPass(t, "CachePool", objects.Status().Update(ctx, pool))

	backend, err := targetclient.New(m.serveTLS(ctx, dir))
	mustPass(t, "client of the storage server", err)
	t.Cleanup(func() { _ = backend.Close() })
	volumes := provision.New(provision.Config{Client: objects, Backend: iscsi.New(backend), Events: recorder})

	locks := &keylock.Set{}
	s := rpc.NewServer(ctx, nil)
	csi.RegisterIdentityServer(s, driver.NewIdentity("test", nil).WithGroups(true))
	controller := driver.NewController(volumes, locks).WithSnapshots(volumes)
	csi.RegisterControllerServer(s, controller)
	csi.RegisterGroupControllerServer(s, controller.Groups())
	csi.RegisterNodeServer(s, driver.NewNode(n, locks, nodeName, 0))
	socket := filepath.Join(dir, "csi.sock")
	l, err := rpc.Listen(ctx, socket)
	mustPass(t, "listen", err)
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, s, l) }()
	t.Cleanup(func() {
		stop()
		mustPass(t, "serve", <-done)
	})

	cfg := sanity.NewTestConfig()
	cfg.Address = socket
	cfg.TargetPath, cfg.StagingPath = filepath.Join(dir, "published"), filepath.Join(dir, "staging")
	cfg.TestVolumeSize, cfg.TestVolumeExpandSize = 64*mib, 96*mib
	cfg.IdempotentCount = 2
	cfg.TestVolumeParameters = map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "cacheSize": "32Mi"}
	cfg.TestVolumeMutableParameters = map[string]string{"cacheMode": "writethrough", "cacheSize": "16Mi"}
	cfg.SecretsFile = filepath.Join(dir, "secrets.yaml")
	secret := fmt.Sprintf("chap.username: %s\n  chap.password: %s\n", chapUser, chapWord)
	mustPass(t, "secrets", os.WriteFile(cfg.SecretsFile, []byte(
		"ControllerPublishVolumeSecret:\n  "+secret+"NodeStageVolumeSecret:\n  "+secret), 0o600))
	sanity.Test(t, cfg)
	if left, err := volumes.List(ctx); err != nil || len(left) > 0 {
		t.Errorf("volumes are left: %v, %v", left, err)
	}
	mustPass(t, "repair", n.Repair(ctx)) // retained caches of deleted volumes go
}

// objectStore is an API server in memory that, like a real one, gives every
// object a UID of its own: the fence rests on it.
func objectStore() client.Client {
	made := 0
	return fake.NewClientBuilder().WithScheme(scheme()).
		WithStatusSubresource(&v1alpha1.CachePool{}, &v1alpha1.CachedVolume{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				made++
				obj.SetUID(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", made)))
				return c.Create(ctx, obj, opts...)
			},
		}).Build()
}

// serveTLS serves the storage server and returns how to reach it.
func (m *machine) serveTLS(ctx context.Context, dir string) targetclient.Config {
	m.t.Helper()
	ca, caKey := m.certificate(dir, "ca", nil, nil)
	m.certificate(dir, "server", ca, caKey)
	m.certificate(dir, "client", ca, caKey)
	file := func(name string) string { return filepath.Join(dir, name) }
	tls := target.TLSConfig{CertFile: file("server.crt"), KeyFile: file("server.key"), ClientCAFile: file("ca.crt")}
	g, err := target.NewGRPC(logr.Discard(), tls, target.NewServer(m.svc, "test"))
	mustPass(m.t, "TLS", err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	mustPass(m.t, "listen", err)
	go func() { _ = g.Serve(l) }()
	context.AfterFunc(ctx, g.Stop)
	return targetclient.Config{
		Address: l.Addr().String(), CAFile: file("ca.crt"), CertFile: file("client.crt"), KeyFile: file("client.key"), ServerName: "server",
	}
}

// certificate makes name.crt and name.key; without a parent it signs itself.
func (m *machine) certificate(dir, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	m.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	mustPass(m.t, "key", err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: parent == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		parent, parentKey = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, parentKey)
	mustPass(m.t, "certificate", err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	mustPass(m.t, "key", err)
	for file, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		mustPass(m.t, "write", os.WriteFile(filepath.Join(dir, name+file), pem.EncodeToMemory(block), 0o600))
	}
	cert, err := x509.ParseCertificate(der)
	mustPass(m.t, "certificate", err)
	return cert, key
}
