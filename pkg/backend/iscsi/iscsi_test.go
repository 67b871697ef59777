package iscsi_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/backend/iscsi"
	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lio/liotest"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/target/lvol/lvoltest"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	portal    = "192.0.2.1:3260"
	initiator = "iqn.1993-08.org.debian:01:a"
)

// TestConformance runs the suite of all backends over gRPC with mutual TLS
// against the storage server's own code, on LVM and LIO in memory.
func TestConformance(t *testing.T) {
	backendtest.Conformance(t, func(t *testing.T) backend.Backend {
		s := startServer(t)
		return s.backend(t, s.config("controller"))
	})
}

func TestSnapshotConformance(t *testing.T) {
	backendtest.SnapshotConformance(t, func(t *testing.T) backendtest.Store {
		s := startServer(t)
		return s.backend(t, s.config("controller"))
	})
}

// used is a server whose volume an initiator is using: LIO in memory has no
// sessions.
type used struct{ iscsi.API }

func (used) GetVolume(context.Context, string) (targetclient.Volume, error) {
	return targetclient.Volume{Generation: 4, SizeBytes: 1 << 30, Exports: []targetclient.Export{{InitiatorIQN: initiator, Generation: 3, LoggedIn: true}}}, nil
}

func TestLoggedIn(t *testing.T) {
	access, err := iscsi.New(used{}).Access(t.Context(), "v")
	want := backend.Access{Generation: 4, SizeBytes: 1 << 30, Exports: []backend.Export{{Initiator: initiator, Generation: 3, LoggedIn: true}}}
	if err != nil || access.Generation != want.Generation || access.SizeBytes != want.SizeBytes || !slices.Equal(access.Exports, want.Exports) {
		t.Errorf("got %+v, %v; want %+v", access, err, want)
	}
}

// leading is a server that answers with a target of its choice.
type leading struct {
	iscsi.API
	iqn string
}

func (l leading) ExportVolume(context.Context, targetclient.ExportRequest) (targetclient.Connection, error) {
	return targetclient.Connection{Portals: []string{portal}, TargetIQN: l.iqn}, nil
}

// TestLeadsToItsVolume: a storage server that somebody has taken over cannot have a node use the session
// of another volume, on another server.
func TestLeadsToItsVolume(t *testing.T) {
	for iqn, fine := range map[string]bool{
		"iqn.2026-11.io.nearflash:s1:v:g3":      true,
		"iqn.2026-11.io.nearflash:s1:v":         true, // of before generations
		"iqn.2026-11.io.nearflash:s2:other:g3":  false,
		"iqn.2026-11.io.nearflash:s2:other":     false,
		"iqn.2026-11.io.nearflash:s2:other:v":   false,
		"iqn.2026-11.io.nearflash:v:other:g3":   false,
		"iqn.2003-01.org.example:disk":          false,
		"iqn.2026-11.io.nearflash:s2:x:other:v": false,
		"":                                      false,
	} {
		source, err := iscsi.New(leading{iqn: iqn}).Export(t.Context(), "v", backendtest.Grant(initiator, 3))
		switch {
		case fine && (err != nil || source.IQN != iqn):
			t.Errorf("%q: %+v, %v", iqn, source, err)
		case !fine && (!errors.Is(err, volume.ErrBackend) || source.IQN != ""):
			t.Errorf("%q was taken: %+v, %v", iqn, source, err)
		}
	}
}

// TestCheck tells a server that is away from one that does not trust us: the
// remedies differ.
func TestCheck(t *testing.T) {
	s := startServer(t)
	otherName := s.config("controller")
	otherName.ServerName = "another.example"
	away := s.config("controller")
	away.Address = "127.0.0.1:1"
	cases := map[string]struct {
		config     targetclient.Config
		want       error
		wantRemedy string
	}{
		"right":               {config: s.config("controller")},
		"client not allowed":  {config: s.config("foreign"), want: volume.ErrAuth, wantRemedy: "tls.allowedClientNames"},
		"server's other name": {config: otherName, want: volume.ErrAuth, wantRemedy: "--target-server-name"},
		"nobody there":        {config: away, want: volume.ErrUnavailable, wantRemedy: "--target-address"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := s.backend(t, tc.config)
			if err := b.Check(t.Context()); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if _, err := b.Report(t.Context()); !errors.Is(err, tc.want) {
				t.Errorf("report: %v, want %v", err, tc.want)
			}
			err := preflight.StorageServer(tc.config.Address, b.Check(t.Context()))
			if (err == nil) != (tc.want == nil) || err != nil && !strings.Contains(err.Error(), tc.wantRemedy) {
				t.Errorf("preflight: %v, want it to name %s", err, tc.wantRemedy)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.backend(t, s.config("controller")).Access(ctx, "v"); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("cancelled call: %v, want ErrUnavailable", err)
	}
}

// broken is a server that answers and is not well.
type broken struct{ iscsi.API }

func (broken) Health(context.Context) (targetclient.Health, error) {
	return targetclient.Health{ServerID: "s1", Problems: []string{"thin pool is full", "portal is down"}}, nil
}

func TestUnhealthy(t *testing.T) {
	err := iscsi.New(broken{}).Check(t.Context())
	if !errors.Is(err, volume.ErrBackend) || !strings.Contains(err.Error(), "thin pool is full; portal is down") {
		t.Errorf("got %v, want ErrBackend with the problems", err)
	}
}

func (broken) GetCapacity(context.Context, targetclient.Provisioning) (targetclient.Capacity, error) {
	return targetclient.Capacity{TotalBytes: 100, UsedBytes: 99, MetadataPercent: 25}, nil
}

func (broken) CertificatesEnd() (server, client time.Time) { return time.Time{}, time.Time{} }

// TestReport: a server that is not well reports that, and its room; one that is away nothing.
func TestReport(t *testing.T) {
	r, err := iscsi.New(broken{}).Report(t.Context())
	if err != nil || len(r.Problems) != 2 || r.CapacityBytes != 100 || r.UsedBytes != 99 || r.MetadataRatio != 0.25 {
		t.Errorf("got %+v, %v", r, err)
	}
	s := startServer(t)
	r, err = s.backend(t, s.config("controller")).Report(t.Context())
	soon := time.Now().Add(2 * time.Hour)
	for _, end := range []time.Time{r.ServerNotAfter, r.ClientNotAfter} {
		if left := end.Sub(soon); err != nil || left > 0 || left < -4*time.Hour {
			t.Errorf("a certificate of an hour ends %s (%v)", end, err)
		}
	}
	away := s.config("controller")
	away.Address = "127.0.0.1:1"
	if r, err = s.backend(t, away).Report(t.Context()); !errors.Is(err, volume.ErrUnavailable) || !r.ServerNotAfter.IsZero() {
		t.Errorf("of a server that is away: %+v, %v", r, err)
	}
}

// roomless is a server that answers, and does not know its room.
type roomless struct{ broken }

func (roomless) GetCapacity(context.Context, targetclient.Provisioning) (targetclient.Capacity, error) {
	return targetclient.Capacity{}, errors.New("thin pool does not zero")
}

// TestReportWithoutCapacity: who answers is there, whatever is wrong.
func TestReportWithoutCapacity(t *testing.T) {
	r, err := iscsi.New(roomless{}).Report(t.Context())
	if err != nil || len(r.Problems) != 2 || r.CapacityBytes != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	r, err = iscsi.New(wellButRoomless{}).Report(t.Context())
	if err != nil || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "does not zero") {
		t.Errorf("got %+v, %v", r, err)
	}
}

// wellButRoomless finds nothing wrong with itself.
type wellButRoomless struct{ roomless }

func (wellButRoomless) Health(context.Context) (targetclient.Health, error) {
	return targetclient.Health{ServerID: "s1", Healthy: true}, nil
}

func TestProvisioning(t *testing.T) {
	s := startServer(t)
	err := s.backend(t, s.config("controller")).Create(t.Context(), "v", backend.Request{SizeBytes: 8 << 20, Provisioning: "thicker"})
	if !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

// server is a running nearflash-target without a real disk.
type server struct {
	address string
	dir     string
}

func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{dir: t.TempDir()}
	s.issueAll(t, "server", "controller", "foreign")
	store, err := exportstate.Open(filepath.Join(s.dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	lvm := lvoltest.New(64)
	cfg := target.Config{
		ServerID: "s1", VolumeGroup: lvoltest.VG, ThinPool: lvoltest.Pool, DefaultProvisioning: target.Thin, MaxOvercommit: 2, Portals: []string{portal},
	}
	vols, err := lvol.Open(t.Context(), lvol.Config{VolumeGroup: cfg.VolumeGroup, ThinPool: cfg.ThinPool, MaxOvercommit: cfg.MaxOvercommit}, lvm, lvm)
	if err != nil {
		t.Fatal(err)
	}
	svc := target.NewService(t.Context(), cfg, vols, store, lio.NewTree(liotest.New()))
	t.Cleanup(svc.Close)
	g, err := target.NewGRPC(logr.Discard(), target.TLSConfig{
		CertFile: s.file("server.pem"), KeyFile: s.file("server-key.pem"), ClientCAFile: s.file("ca.pem"), AllowedClientNames: []string{"controller"},
	}, target.NewServer(svc, "v9"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.Serve(listener) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	s.address = listener.Addr().String()
	return s
}

func (s *server) file(name string) string { return filepath.Join(s.dir, name) }

func (s *server) config(who string) targetclient.Config {
	return targetclient.Config{Address: s.address, CertFile: s.file(who + ".pem"), KeyFile: s.file(who + "-key.pem"), CAFile: s.file("ca.pem")}
}

func (s *server) backend(t *testing.T, c targetclient.Config) *iscsi.Backend {
	t.Helper()
	client, err := targetclient.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return iscsi.New(client)
}

// issueAll writes a CA and certificates that it signed.
func (s *server) issueAll(t *testing.T, names ...string) {
	t.Helper()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	caKey := s.issue(t, "ca", ca, ca, nil)
	for i, name := range names {
		s.issue(t, name, &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 2)), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}, ca, caKey)
	}
}

// issue writes name.pem and name-key.pem; without a signer's key the certificate
// signs itself.
func (s *server) issue(t *testing.T, name string, cert, parent *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		name, kind string
		der        []byte
	}{{name + ".pem", "CERTIFICATE", der}, {name + "-key.pem", "PRIVATE KEY", keyDER}} {
		if err := os.WriteFile(s.file(f.name), pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}
