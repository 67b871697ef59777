package target

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// refusalTime is how long a client has to read why it is refused before its connection ends.
const refusalTime = time.Second

// client is who is at the other end of a connection.
type client struct {
	credentials.TLSInfo

	// end ends the connection once its client can have read an answer.
	end func()
}

// clientOf returns the client of a call.
func clientOf(ctx context.Context) (c client, ok bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return c, false
	}
	c, ok = p.AuthInfo.(client)
	return c, ok && len(c.State.PeerCertificates) > 0
}

// clientName is the common name in the client's certificate.
func clientName(ctx context.Context) string {
	c, ok := clientOf(ctx)
	if !ok {
		return ""
	}
	return c.State.PeerCertificates[0].Subject.CommonName
}

// endable are credentials of TLS for connections that a call can end.
type endable struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (e endable) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := e.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	shown, ok := info.(credentials.TLSInfo)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("a handshake of TLS gave %T", info), conn.Close())
	}
	return conn, client{TLSInfo: shown, end: func() {
		time.AfterFunc(refusalTime, func() { _ = conn.Close() }) // the client may have gone
	}}, nil
}

// Clone implements credentials.TransportCredentials.
func (e endable) Clone() credentials.TransportCredentials {
	return endable{e.TransportCredentials.Clone()}
}

// trusted makes sure that a certificate which was good at the handshake still is: that it has not
// ended, and that its CA is in the file of now.
func (f tlsFiles) trusted(shown []*x509.Certificate) error {
	pool, err := f.clientCAs()
	if err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	// As crypto/tls does at the handshake.
	_, err = shown[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return &untrustedError{err}
	}
	return nil
}

// untrustedError says what is wrong with a client's certificate.
type untrustedError struct{ err error }

// Error implements error.
func (e *untrustedError) Error() string { return "the client's certificate: " + e.err.Error() }

// Unwrap returns what crypto/x509 says.
func (e *untrustedError) Unwrap() error { return e.err }

// clientCAs are those of the file of now.
func (f tlsFiles) clientCAs() (*x509.CertPool, error) {
	ca, err := os.ReadFile(f.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.caKey, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s: no certificate in %s", f.caKey, f.ClientCAFile)
	}
	return pool, nil
}

// judgeClients judges the client's certificate at each call: a connection may be older than a CA
// that was taken away, and outlive the certificate. It ends such a connection, so that a client
// whose certificate was renewed shows the new one. It reads a small file, and verifies one or two
// signatures; most calls run commands of LVM.
func judgeClients(f tlsFiles) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		c, ok := clientOf(ctx)
		if !ok {
			return nil, status.Error(codes.Unauthenticated, "the client has shown no certificate")
		}
		untrusted := (*untrustedError)(nil)
		switch err := f.trusted(c.State.PeerCertificates); {
		case errors.As(err, &untrusted):
			c.end()
			return nil, status.Error(codes.Unauthenticated, err.Error())
		case err != nil:
			// A connection that is made now would fail for the same reason.
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		return handler(ctx, req)
	}
}

// allowClients refuses clients by the name in their certificate. It answers with a
// status and does not fail the handshake: of TLS 1.3 a client's half may be done
// by then, and all it would see is a connection that breaks.
func allowClients(allowed []string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if name := clientName(ctx); len(allowed) > 0 && !slices.Contains(allowed, name) {
			return nil, status.Errorf(codes.PermissionDenied, "client %q is not in tls.allowedClientNames", name)
		}
		return handler(ctx, req)
	}
}
