package target_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

// authority is a CA for tests.
type authority struct {
	t    *testing.T
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), name: name}
	a.key = a.newKey()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes cn.pem and cn-key.pem.
func (a *authority) issue(cn string) {
	a.t.Helper()
	a.issueUntil(cn, time.Now().Add(time.Hour))
}

// issueUntil is issue with an end.
func (a *authority) issueUntil(cn string, end time.Time) {
	a.t.Helper()
	a.issueFor(cn, end, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth)
}

func (a *authority) issueFor(cn string, end time.Time, usage ...x509.ExtKeyUsage) {
	a.t.Helper()
	key := a.newKey()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cn},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		DNSNames: []string{"storage.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: usage,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(cn+".pem", "CERTIFICATE", der)
	a.write(cn+"-key.pem", "PRIVATE KEY", keyDER)
}

func (a *authority) client(address, cn string) targetclient.Config {
	return targetclient.Config{Address: address, CertFile: a.file(cn + ".pem"), KeyFile: a.file(cn + "-key.pem"), CAFile: a.file("ca.pem")}
}

// serve runs the service on a real socket and returns its address.
func serve(t *testing.T, svc *target.Service, ca *authority, log logr.Logger, allowed ...string) string {
	t.Helper()
	ca.issue("server")
	g, err := target.NewGRPC(log, ca.server(allowed...), target.NewServer(svc, "v9"))
	if err != nil {
		t.Fatal(err)
	}
	return listen(t, g)
}

// server is the configuration of a server that trusts the CA's clients.
func (a *authority) server(allowed ...string) target.TLSConfig {
	return target.TLSConfig{CertFile: a.file("server.pem"), KeyFile: a.file("server-key.pem"), ClientCAFile: a.file("ca.pem"), AllowedClientNames: allowed}
}

// listen serves on a real socket until the test ends.
func listen(t *testing.T, g *grpc.Server) (address string) {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := g.Serve(lis); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		g.Stop()
		wg.Wait()
	})
	return lis.Addr().String()
}

func connect(t *testing.T, c targetclient.Config) *targetclient.Client {
	t.Helper()
	client, err := targetclient.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestMutualTLS(t *testing.T) {
	svc, _ := started(t)
	ca, foreign := newAuthority(t, "ca"), newAuthority(t, "foreign")
	ca.issue("controller")
	ca.issue("somebody")
	ca.issueFor("storage-2", time.Now().Add(time.Hour), x509.ExtKeyUsageServerAuth)
	foreign.issue("controller")
	address := serve(t, svc, ca, logr.Discard(), "controller", "storage-2") // whose certificate is no client's
	mixed := foreign.client(address, "controller")
	mixed.CAFile = ca.file("ca.pem")
	otherName := ca.client(address, "controller")
	otherName.ServerName = "another.example"
	goodName := ca.client(address, "controller")
	goodName.ServerName = "storage.example"

	cases := map[string]struct {
		config targetclient.Config
		want   error
	}{
		"right":                                {ca.client(address, "controller"), nil},
		"right, by name":                       {goodName, nil},
		"certificate of another CA":            {mixed, targetclient.ErrUnavailable},
		"name that is not allowed":             {ca.client(address, "somebody"), targetclient.ErrDenied},
		"another server, by its own":           {ca.client(address, "storage-2"), targetclient.ErrUnavailable},
		"server is not who it should be":       {otherName, targetclient.ErrUnavailable},
		"server's CA is not the one we expect": {foreign.client(address, "controller"), targetclient.ErrUnavailable},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			h, err := connect(t, tc.config).Health(ctx)
			if tc.want != nil {
				if !errors.Is(err, tc.want) {
					t.Fatalf("got %+v, %v, want %v", h, err, tc.want)
				}
				return
			}
			if err != nil || !h.Healthy || h.Version != "v9" || h.ServerID != "s1" {
				t.Errorf("got %+v, %v", h, err)
			}
		})
	}

	for name, creds := range map[string]credentials.TransportCredentials{
		"no encryption": insecure.NewCredentials(),
		"no certificate": credentials.NewTLS(&tls.Config{
			InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, // the client's side is not tested here
		}),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := targetpb.NewTargetClient(conn).Health(ctx, &targetpb.HealthRequest{}); err == nil {
				t.Error("was let in")
			}
		})
	}
}

func TestRenewedCertificates(t *testing.T) {
	svc, _ := started(t)
	ca := newAuthority(t, "ca")
	ca.issue("controller")
	address := serve(t, svc, ca, logr.Discard())
	if _, err := connect(t, ca.client(address, "controller")).Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A new CA takes over on both sides, without a restart.
	next := newAuthority(t, "next")
	next.issue("controller")
	next.issue("server")
	ca.copyOver(next, "ca.pem", "server.pem", "server-key.pem")
	if _, err := connect(t, next.client(address, "controller")).Health(t.Context()); err != nil {
		t.Errorf("new certificate: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := connect(t, ca.client(address, "controller")).Health(ctx); err == nil {
		t.Error("the former CA's client is still let in")
	}
}

// TestUnreadCertificates: a client whose certificates are not there says so, until they are.
func TestUnreadCertificates(t *testing.T) {
	svc, _ := started(t)
	ca := newAuthority(t, "ca")
	address := serve(t, svc, ca, logr.Discard())
	config := ca.client(address, "controller")
	if _, err := targetclient.New(config); err == nil {
		t.Error("certificates that are not there were read")
	}
	client, err := targetclient.NewUnread(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.Health(ctx); !errors.Is(err, targetclient.ErrUnavailable) || !strings.Contains(err.Error(), config.CertFile) {
		t.Errorf("without certificates: %v", err)
	}
	ca.issue("controller")
	for {
		_, err := client.Health(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("with certificates: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// copyOver gives files of a the content of those of from.
func (a *authority) copyOver(from *authority, names ...string) {
	a.t.Helper()
	for _, name := range names {
		b, err := os.ReadFile(from.file(name))
		if err != nil {
			a.t.Fatal(err)
		}
		if err := os.WriteFile(a.file(name), b, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// TestClient goes through all calls and all typed errors over the wire, and looks
// for the password in the most verbose log.
func TestClient(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	sink := funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		log.WriteString(prefix + args + "\n")
	}, funcr.Options{Verbosity: 9})
	svc, m := started(t)
	ca := newAuthority(t, "ca")
	ca.issue("controller")
	c := connect(t, ca.client(serve(t, svc, ca, sink), "controller"))
	ctx := t.Context()

	v, err := c.CreateVolume(ctx, "v1", 5*mib, targetclient.ServerDefault)
	if err != nil {
		t.Fatal(err)
	}
	want := targetclient.Volume{Name: "v1", SizeBytes: 8 * mib, Provisioning: targetclient.Thin, Ready: true, UsedBytes: 4 * mib, WWID: v.WWID}
	if diff := cmp.Diff(want, v); diff != "" || !strings.HasPrefix(v.WWID, "naa.6001405") {
		t.Errorf("wwid %s (-want +got):\n%s", v.WWID, diff)
	}
	req := targetclient.ExportRequest{Name: "v1", InitiatorIQN: nodeA, CHAPUsername: "user", CHAPPassword: "password-of-a", Generation: 3}
	conn, err := c.ExportVolume(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	wantConn := targetclient.Connection{Portals: []string{portal}, TargetIQN: iqnBase + "v1:g3", WWID: v.WWID}
	if diff := cmp.Diff(wantConn, conn); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := m.login("v1", nodeA, "a"); err != nil {
		t.Error(err)
	}
	checkTypedErrors(t, c, req)

	if size, err := c.ExpandVolume(ctx, "v1", 9*mib); err != nil || size != 12*mib {
		t.Errorf("expand: %d, %v", size, err)
	}
	got, err := c.GetVolume(ctx, "v1")
	if err != nil || got.Generation != 3 || len(got.Exports) != 1 || got.Exports[0].InitiatorIQN != nodeA || got.Exports[0].Generation != 3 {
		t.Fatalf("get: %+v, %v", got, err)
	}
	if err := c.UnexportVolume(ctx, "v1", nodeA, "a-former-one"); err != nil || m.login("v1", nodeA, "a") != nil {
		t.Errorf("the end of another admission: %v, login %v", err, m.login("v1", nodeA, "a"))
	}
	if err := c.UnexportVolume(ctx, "v1", nodeA, got.Exports[0].Admission); err != nil || m.login("v1", nodeA, "a") == nil {
		t.Errorf("the end of the admission: %v, and the initiator may still log in", err)
	}
	if list, next, err := c.ListVolumes(ctx, 1, ""); err != nil || len(list) != 1 || next != "" {
		t.Errorf("list: %+v, %q, %v", list, next, err)
	}
	if room, err := c.GetCapacity(ctx, targetclient.Thin); err != nil || room.AvailableBytes != 2036*mib || room.TotalBytes != 1024*mib {
		t.Errorf("capacity: %+v, %v", room, err)
	}
	if err := errors.Join(c.UnexportVolume(ctx, "v1", "", ""), c.DeleteVolume(ctx, "v1")); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Contains(log.String(), "password-of") || !strings.Contains(log.String(), "***stripped***") {
		t.Errorf("passwords in the log, or nothing logged:\n%s", log.String())
	}
}

func checkTypedErrors(t *testing.T, c *targetclient.Client, req targetclient.ExportRequest) {
	t.Helper()
	ctx := t.Context()
	other, old, short := req, req, req
	other.InitiatorIQN, old.Generation, short.CHAPPassword = nodeB, 2, "password-of"
	export := func(r targetclient.ExportRequest) error { _, err := c.ExportVolume(ctx, r); return err }
	create := func(name string, size int64) error {
		_, err := c.CreateVolume(ctx, name, size, targetclient.Thick)
		return err
	}
	get := func() error { _, err := c.GetVolume(ctx, "none"); return err }
	cases := map[string]struct {
		err, want error
	}{
		"outdated":       {export(old), targetclient.ErrStaleGeneration},
		"other owner":    {export(other), targetclient.ErrExported},
		"delete":         {c.DeleteVolume(ctx, "v1"), targetclient.ErrExported},
		"bad password":   {export(short), targetclient.ErrInvalid},
		"other size":     {create("v1", 1<<40), targetclient.ErrAlreadyExists},
		"no room":        {create("big", 1<<40), targetclient.ErrNoSpace},
		"does not exist": {get(), targetclient.ErrNotFound},
	}
	for name, tc := range cases {
		if !errors.Is(tc.err, tc.want) || strings.Contains(tc.err.Error(), "password-of") {
			t.Errorf("%s: got %v, want %v", name, tc.err, tc.want)
		}
	}
	var stale *targetclient.StaleGenerationError
	if !errors.As(cases["outdated"].err, &stale) || stale.Stored != 3 || stale.Requested != 2 {
		t.Errorf("outdated: %+v", stale)
	}
	var exported *targetclient.ExportedError
	if !errors.As(cases["delete"].err, &exported) || !cmp.Equal(exported.Initiators, []string{nodeA}) {
		t.Errorf("delete: %+v", exported)
	}
	var invalid *targetclient.InvalidFieldError
	if !errors.As(cases["bad password"].err, &invalid) || invalid.Field != "chap_password" || invalid.Value != "" {
		t.Errorf("bad password: %+v", invalid)
	}
}

func TestClientReportsUnfinishedWork(t *testing.T) {
	svc, m := started(t)
	gate := make(chan struct{})
	m.lvm.Step = func(change string) error {
		if strings.HasPrefix(change, "zero ") {
			<-gate
		}
		return nil
	}
	ca := newAuthority(t, "ca")
	ca.issue("controller")
	c := connect(t, ca.client(serve(t, svc, ca, logr.Discard()), "controller"))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := c.CreateVolume(ctx, "v1", 8*mib, targetclient.Thick)
	close(gate)
	if !errors.Is(err, targetclient.ErrInProgress) {
		t.Errorf("got %v, want in progress", err)
	}
}

// Every field that sounds like a secret must be marked as one.
func TestSecretFieldsAreMarked(t *testing.T) {
	marked := 0
	messages := targetpb.File_pkg_target_targetpb_target_proto.Messages()
	for i := range messages.Len() {
		fields := messages.Get(i).Fields()
		for j := range fields.Len() {
			f := fields.Get(j)
			secret, _ := proto.GetExtension(f.Options(), targetpb.E_Secret).(bool)
			if secret {
				marked++
			}
			if strings.Contains(string(f.Name()), "password") != secret {
				t.Errorf("%s: marked as secret: %v", f.FullName(), secret)
			}
		}
	}
	if marked == 0 {
		t.Error("no field is marked")
	}
}

func TestStrip(t *testing.T) {
	req := &targetpb.ExportVolumeRequest{Name: "v1", ChapPassword: "password-of-a"}
	text := target.Strip(req)
	if strings.Contains(text, "password-of") || !strings.Contains(text, "v1") {
		t.Errorf("got %s", text)
	}
	if req.GetChapPassword() != "password-of-a" {
		t.Error("the request itself was changed")
	}
	nested := &targetpb.ListVolumesResponse{Volumes: []*targetpb.Volume{{Name: "v1", Exports: []*targetpb.Export{{InitiatorIqn: nodeA}}}}}
	if text := target.Strip(nested); !strings.Contains(text, nodeA) {
		t.Errorf("nested: %s", text)
	}
}
