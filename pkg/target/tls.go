package target

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// ServerTLS returns the TLS configuration of the service: TLS 1.3, and clients
// must show a certificate of the client CA. Whether its name is allowed is for
// NewGRPC to say. The files are read again for each new
// connection, so that renewed certificates need no restart. It fails if they
// cannot be used now.
func ServerTLS(c TLSConfig) (*tls.Config, error) {
	if _, err := loadServerTLS(c); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ClientAuth:         tls.RequireAndVerifyClientCert,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return loadServerTLS(c) },
	}, nil
}

func loadServerTLS(c TLSConfig) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("tls.certFile, tls.keyFile: %w", err)
	}
	pem, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("tls.clientCAFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls.clientCAFile: no certificate in %s", c.ClientCAFile)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		NextProtos:   []string{"h2"},
		// A resumed session would skip a CA that was taken away meanwhile.
		SessionTicketsDisabled: true,
	}, nil
}
