package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/httpserve"
)

const (
	// path is what a role names in nonResourceURLs.
	path = "/metrics"
	// headerTimeout bounds how long a client may take to send a request's head,
	// idleTimeout how long it may keep a connection without using it: longer than
	// any usual time between two scrapes.
	headerTimeout, idleTimeout = 5 * time.Second, 5 * time.Minute
	// requestsAtOnce bounds the work that clients can cause at a time.
	requestsAtOnce = 4
)

// Handler answers with what can be gathered, even if not all can.
func Handler(ctx context.Context, source prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(source, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: errorLog{klog.FromContext(ctx)},
		MaxRequestsInFlight: requestsAtOnce,
	})
}

// Serve answers requests for /metrics with handler until ctx ends. It closes the listener.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	mux := http.NewServeMux()
	mux.Handle("GET "+path, handler)
	return httpserve.Run(ctx, listener, &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ErrorLog: httpserve.ErrorLog(func(reason string) {
			klog.FromContext(ctx).V(2).Info("Connection to the metrics endpoint failed", "reason", reason)
		}),
	})
}

// errorLog is the log of promhttp.
type errorLog struct{ klog.Logger }

// Println implements promhttp.Logger.
func (l errorLog) Println(v ...any) {
	l.Error(nil, "Metrics could not be gathered whole", "reason", fmt.Sprint(v...))
}
