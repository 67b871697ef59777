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
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	csiorigin "github.com/nearflash/nearflash/pkg/backend/csi"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/backend/iscsi"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
)

// underSanity is a whole driver that csi-sanity is run against: CSI layer, controller and node plugin.
// Only the API server is a fake.
type underSanity struct {
	t       *testing.T
	m       *machine
	ctx     context.Context
	dir     string
	objects client.WithWatch
	n       *node
}

func newUnderSanity(t *testing.T) *underSanity {
	m := newMachine(t)
	dir, err := os.MkdirTemp("", "nf")
	mustPass(t, "temporary directory", err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	u := &underSanity{t: t, m: m, ctx: ctx, dir: dir, objects: objectStore()}
	u.n, err = openNode(ctx, dir, onOneSSD(), records.New(u.objects, events.NewFakeRecorder(10000), time.Now))
	mustPass(t, "node", err)
	t.Cleanup(func() { m.dropPool(onOneSSD()) })
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	mustPass(t, "CachePool", u.objects.Create(ctx, pool))
	pool.Status.InitiatorIQN = m.initiator
	mustPass(t, "CachePool", u.objects.Status().Update(ctx, pool))
	return u
}

// run runs csi-sanity over a controller's volumes, whose parameters are given, and the secrets of its
// calls as a file has them.
func (u *underSanity) run(cfg provision.Config, parameters map[string]string, secrets string) {
	t := u.t
	t.Helper()
	cfg.Client, cfg.Events = u.objects, events.NewFakeRecorder(10000)
	volumes := provision.New(cfg)
	locks := &keylock.Set{}
	ctx, stop := context.WithCancel(u.ctx)
	s := rpc.NewServer(ctx, nil)
	controller := driver.NewController(volumes, locks).WithSnapshots(volumes)
	groups := controller.Groups()
	csi.RegisterIdentityServer(s, driver.NewIdentity("test", nil).WithGroups(groups != nil))
	csi.RegisterControllerServer(s, controller)
	if groups != nil {
		csi.RegisterGroupControllerServer(s, groups)
	}
	csi.RegisterNodeServer(s, driver.NewNode(u.n, locks, nodeName, 0))
	socket := filepath.Join(u.dir, "csi.sock")
	l, err := rpc.Listen(ctx, socket)
	mustPass(t, "listen", err)
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, s, l) }()
	t.Cleanup(func() {
		stop()
		mustPass(t, "serve", <-done)
	})

	asked := sanity.NewTestConfig()
	asked.Address = socket
	asked.TargetPath, asked.StagingPath = filepath.Join(u.dir, "published"), filepath.Join(u.dir, "staging")
	asked.TestVolumeSize, asked.TestVolumeExpandSize = 64*mib, 96*mib
	asked.IdempotentCount = 2
	asked.TestVolumeParameters = parameters
	asked.TestVolumeMutableParameters = map[string]string{"cacheMode": "writethrough", "cacheSize": "16Mi"}
	if secrets != "" {
		asked.SecretsFile = filepath.Join(u.dir, "secrets.yaml")
		mustPass(t, "secrets", os.WriteFile(asked.SecretsFile, []byte(secrets), 0o600))
	}
	sanity.Test(t, asked)
	if left, err := volumes.List(ctx); err != nil || len(left) > 0 {
		t.Errorf("volumes are left: %v, %v", left, err)
	}
	mustPass(t, "repair", u.n.Repair(ctx)) // retained caches of deleted volumes go
}

// TestKernelSanity runs csi-sanity against the driver over nearflash-target: mutual TLS, LVM, LIO,
// iSCSI, dm-cache and mounts.
func TestKernelSanity(t *testing.T) {
	u := newUnderSanity(t)
	backend, err := targetclient.New(u.m.serveTLS(u.ctx, u.dir))
	mustPass(t, "client of the storage server", err)
	t.Cleanup(func() { _ = backend.Close() })
	secret := fmt.Sprintf("chap.username: %s\n  chap.password: %s\n", chapUser, chapWord)
	u.run(provision.Config{Servers: map[string]provision.Server{"": {Backend: iscsi.New(backend)}}}, map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "cacheSize": "32Mi"},
		"ControllerPublishVolumeSecret:\n  "+secret+"NodeStageVolumeSecret:\n  "+secret)
}

// TestKernelSanityOverDriver runs it against the driver over another one, which fails the test at each
// breach of the specification by the controller's objects or by the node plugin; what serves claims and
// attachments in a cluster is a stand-in.
func TestKernelSanityOverDriver(t *testing.T) {
	u := newUnderSanity(t)
	other := csitest.Start(t, u.objects, "strict", 64<<30)
	other.StartSnapshots(t)
	// Until a cut is ready, what is made of it is Aborted. csi-sanity does not ask again, as
	// csi-provisioner does.
	other.Behave(csitest.Behaviour{ReadyAtOnce: true})
	strict := u.m.strictDriver(map[string]*node{nodeName: u.n}, nil)
	other.Sidecars(strict.on[nodeName])
	mustPass(t, "CSINode", u.objects.Create(u.ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: other.Driver, NodeID: nodeName}}},
	}))
	origins := csiorigin.New(csiorigin.Config{Client: u.objects, Namespace: other.Namespace, Driver: driver.Name})
	u.run(provision.Config{Origins: origins}, map[string]string{
		"backend": "csi", "originStorageClass": other.Class(""), "cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "cacheSize": "32Mi",
	}, "")
	strict.none(t, "csi-sanity")
	if wrong := other.Wrong(); len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
	if left, err := strict.on[nodeName].Left(); err != nil || len(left) > 0 {
		t.Errorf("the other driver still has %v, %v", left, err)
	}
}

// objectStore is an API server in memory that, like a real one, gives every
// object a UID of its own: the fence rests on it.
func objectStore() client.WithWatch {
	var made atomic.Int64
	scheme, err := kube.NewScheme()
	if err != nil {
		panic(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&v1alpha1.CachePool{}, &v1alpha1.CachedVolume{}, &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{},
			&storagev1.VolumeAttachment{}, &snapshotv1.VolumeSnapshot{}).
		WithIndex(&corev1.Event{}, "involvedObject.uid", func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).
		WithIndex(&corev1.Event{}, "reason", func(o client.Object) []string { return []string{o.(*corev1.Event).Reason} }).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				obj.SetUID(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", made.Add(1))))
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
