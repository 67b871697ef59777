// Package health serves the probes of a plugin. Kubelet asks them in plain text
// and without a token, and they tell nothing that has to be kept: metrics are
// served elsewhere (package metricserver).
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/httpserve"
	"github.com/nearflash/nearflash/pkg/rpc"
)

const (
	// CheckTimeout bounds one check; it is below the 5 s of the chart's probes.
	CheckTimeout = 4 * time.Second
	// headerTimeout bounds how long a client may take to send a request's head.
	headerTimeout = 5 * time.Second
)

// Check says what is wrong, nil if nothing is.
type Check func(context.Context) error

// Serve serves /healthz, which asks the CSI services at endpoint, and /readyz
// until ctx ends. Without an address it serves nothing.
func Serve(ctx context.Context, address, endpoint string, ready Check) error {
	if address == "" {
		return nil
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("health endpoint: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", probe("Liveness", func(ctx context.Context) error { return askCSI(ctx, endpoint) }))
	mux.Handle("GET /readyz", probe("Readiness", ready))
	if err := httpserve.Run(ctx, listener, &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}); err != nil {
		return fmt.Errorf("health endpoint: %w", err)
	}
	return nil
}

// probe answers with 200 or with 503 and the reason.
func probe(name string, check Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), CheckTimeout)
		defer cancel()
		log := klog.FromContext(ctx)
		text := "ok\n"
		if err := check(ctx); err != nil {
			log.Info("Probe failed", "probe", name, "reason", err.Error())
			text = err.Error() + "\n"
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if _, err := io.WriteString(w, text); err != nil {
			log.V(4).Info("Probe's answer not sent", "probe", name, "reason", err.Error())
		}
	})
}

// askCSI makes sure that the CSI services answer on their socket.
func askCSI(ctx context.Context, endpoint string) error {
	path, err := rpc.SocketPath(endpoint)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	_, err = csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		err = fmt.Errorf("CSI services on %s: %w", path, err)
	}
	return errors.Join(err, conn.Close())
}
