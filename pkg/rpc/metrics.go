package rpc

import (
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// CallMetrics is a Recorder by the conventions of CSI: the histogram
// csi_plugin_operations_seconds of csi-lib-utils, with driver, method and gRPC
// status as labels.
type CallMetrics struct{ manager metrics.CSIMetricsManager }

var _ Recorder = CallMetrics{}

// NewCallMetrics returns CallMetrics of a driver, without any call.
func NewCallMetrics(driverName string) CallMetrics {
	return CallMetrics{metrics.NewCSIMetricsManagerWithOptions(driverName,
		metrics.WithSubsystem(metrics.SubsystemPlugin),
		metrics.WithProcessStartTime(false), // the process collector has it
	)}
}

// RecordMetrics implements Recorder.
func (m CallMetrics) RecordMetrics(operation string, err error, d time.Duration) {
	m.manager.RecordMetrics(operation, err, d)
}

// Gatherer returns what gathers the histogram.
func (m CallMetrics) Gatherer() prometheus.Gatherer { return m.manager.GetRegistry() }
