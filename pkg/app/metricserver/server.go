// Package metricserver serves the metrics of a plugin the way controller-runtime
// serves its own: over TLS, to clients that show a token which the API server
// knows (TokenReview) and whose account it lets get /metrics
// (SubjectAccessReview).
package metricserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"github.com/nearflash/nearflash/pkg/metrics"
)

// Serve serves what source gathers until ctx ends. Clients are judged by the API
// server that api leads to. Without an address it serves nothing.
func Serve(ctx context.Context, cfg Config, api *rest.Config, source prometheus.Gatherer) error {
	if cfg.Address == "" {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return fmt.Errorf("metrics endpoint: %w", err)
	}
	if err := serve(ctx, cfg, api, source, listener); err != nil {
		return fmt.Errorf("metrics endpoint: %w", err)
	}
	return nil
}

// serve closes the listener in every case.
func serve(ctx context.Context, cfg Config, api *rest.Config, source prometheus.Gatherer, listener net.Listener) error {
	defer func() { _ = listener.Close() }() // the server has closed it already, unless it did not begin
	handler := metrics.Handler(ctx, source)
	if cfg.Secure {
		var err error
		if handler, err = onlyPermitted(ctx, api, handler); err != nil {
			return err
		}
		conf, err := tlsConfig(ctx, cfg.CertDir)
		if err != nil {
			return err
		}
		listener = tls.NewListener(listener, conf)
	}
	klog.FromContext(ctx).Info("Serving metrics", "address", listener.Addr().String(), "secure", cfg.Secure)
	return metrics.Serve(ctx, listener, handler)
}

// onlyPermitted lets a request pass if the API server does.
func onlyPermitted(ctx context.Context, api *rest.Config, handler http.Handler) (http.Handler, error) {
	client, err := rest.HTTPClientFor(api)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	filter, err := filters.WithAuthenticationAndAuthorization(api, client)
	if err != nil {
		return nil, err
	}
	log := klog.FromContext(ctx)
	return filter(log.WithSink(refusals{log.GetSink()}), handler)
}

// refusals is the log of the filter. The API server's text about a token may repeat it: klog's
// filter, which takes tokens out (pkg/app), is shown values, and no errors.
type refusals struct{ logr.LogSink }

// Error implements logr.LogSink.
func (s refusals) Error(err error, msg string, keysAndValues ...any) {
	if err != nil {
		keysAndValues = append(keysAndValues, "reason", err.Error())
	}
	s.LogSink.Error(nil, msg, keysAndValues...)
}

// tlsConfig returns a configuration with the certificate in a directory, or with
// one that is made now. controller-runtime takes the latter as well if a
// directory has no certificate; here that is an error, for whoever names a
// directory wants clients to verify what is in it.
func tlsConfig(ctx context.Context, dir string) (*tls.Config, error) {
	// Without HTTP/2, as the scaffolding of controller-runtime has it: a scrape
	// gains nothing by it.
	conf := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if dir == "" {
		certificate, key, err := certutil.GenerateSelfSignedCertKey("localhost", nil, nil)
		if err != nil {
			return nil, fmt.Errorf("self-signed certificate: %w", err)
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("self-signed certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
		return conf, nil
	}
	watcher, err := certwatcher.New(filepath.Join(dir, certFile), filepath.Join(dir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("certificate in %s: %w", dir, err)
	}
	conf.GetCertificate = watcher.GetCertificate
	go func() {
		if err := watcher.Start(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Certificate of the metrics endpoint is not watched any more")
		}
	}()
	return conf, nil
}
