package targetclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// reloading makes the TLS configuration anew for every connection, so that
// certificates renewed on disk are used without a restart.
type reloading struct {
	credentials.TransportCredentials

	cfg  Config
	ends *ends
}

// ends are when the certificates of the last connection end, as Unix seconds; 0 without one.
type ends struct{ server, client atomic.Int64 }

// note notes the certificates of a connection that is being made: the server's once it is
// verified.
func (e *ends) note(t *tls.Config) {
	own := t.Certificates[0].Leaf
	e.client.Store(own.NotAfter.Unix())
	t.VerifyConnection = func(c tls.ConnectionState) error {
		e.server.Store(c.PeerCertificates[0].NotAfter.Unix())
		return nil
	}
}

func newCredentials(c Config) *reloading {
	// Each handshake makes a configuration of its own; this one only says that it is TLS.
	t := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: c.ServerName}
	return &reloading{TransportCredentials: credentials.NewTLS(t), cfg: c, ends: &ends{}}
}

func loadTLS(c Config) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("client certificate for the storage server: %w", err)
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("CA of the storage server: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA of the storage server: no certificate in %s", c.CAFile)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: pool, ServerName: c.ServerName,
	}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (r *reloading) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, err := loadTLS(r.cfg)
	if err != nil {
		return nil, nil, err
	}
	r.ends.note(t)
	return credentials.NewTLS(t).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (r *reloading) Clone() credentials.TransportCredentials {
	return &reloading{TransportCredentials: r.TransportCredentials.Clone(), cfg: r.cfg, ends: r.ends}
}
