package controller

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/status"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// callMetrics counts CSI calls; it is rpc.Recorder.
type callMetrics struct {
	registry *prometheus.Registry
	seconds  *prometheus.HistogramVec
}

func newCallMetrics() *callMetrics {
	m := &callMetrics{
		registry: prometheus.NewRegistry(),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nearflash_csi_call_duration_seconds",
			Help:    "Duration of CSI calls by method and gRPC status code.",
			Buckets: prometheus.ExponentialBuckets(0.01, 3, 9), // 10 ms to 66 s, the sidecars' timeout
		}, []string{"method", "code"}),
	}
	m.registry.MustRegister(m.seconds)
	return m
}

// RecordMetrics implements rpc.Recorder.
func (m *callMetrics) RecordMetrics(operation string, err error, d time.Duration) error {
	h, wrong := m.seconds.GetMetricWithLabelValues(operation, status.Code(err).String())
	if wrong != nil {
		return wrong
	}
	h.Observe(d.Seconds())
	return nil
}

// handler serves these metrics and those of the reconcilers and the process,
// which controller-runtime keeps.
func (m *callMetrics) handler() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{m.registry, ctrlmetrics.Registry}, promhttp.HandlerOpts{})
}
