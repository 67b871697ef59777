package rpc

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// CallMetrics is a Recorder that keeps a histogram of the calls, to be registered
// with Prometheus.
type CallMetrics struct{ *prometheus.HistogramVec }

var _ Recorder = CallMetrics{}

// NewCallMetrics returns CallMetrics without any call.
func NewCallMetrics() CallMetrics {
	return CallMetrics{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "nearflash_csi_call_duration_seconds",
		Help:    "Duration of CSI calls by method and gRPC status code.",
		Buckets: prometheus.ExponentialBuckets(0.01, 3, 9), // 10 ms to 66 s, the sidecars' timeout
	}, []string{"method", "code"})}
}

// RecordMetrics implements Recorder.
func (m CallMetrics) RecordMetrics(operation string, err error, d time.Duration) error {
	h, wrong := m.GetMetricWithLabelValues(operation, status.Code(err).String())
	if wrong != nil {
		return wrong
	}
	h.Observe(d.Seconds())
	return nil
}
