package charttest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/pkg/metrics"
)

// targetDir has what storage servers are installed with: no part of the chart, but the rules
// for them are held to the same as the chart's.
var targetDir = filepath.Join(chartDir, "..", "..", "target")

// TestTargetAlerts runs the tests of the storage servers' rules, which use only what the servers
// export.
func TestTargetAlerts(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(targetDir, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rules ruleFile
	if err := yaml.UnmarshalStrict(text, &rules); err != nil {
		t.Fatal(err)
	}
	checkAlerts(t, text, rules, filepath.Join(targetDir, "alerts_test.yaml"))
	used := map[string]bool{}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			checkSeries(t, seriesOf(metrics.TargetTable()), rule.Expr, used)
		}
	}
	if len(used) == 0 {
		t.Error("the rules use no metric")
	}
}

// TestTargetMetricsText gives what a storage server exports to promtool: all of its table.
func TestTargetMetricsText(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	facts := metrics.TargetFacts{
		ServerID: "storage-1", Epoch: ptr.To(""), Ended: now, Took: time.Second, Complete: true,
		Group: &metrics.TargetGroup{CapacityBytes: 2, FreeBytes: 1}, Pool: &metrics.TargetPool{CapacityBytes: 1}, Volumes: &metrics.TargetVolumes{}, Exports: ptr.To(0),
		Certificates: map[string]time.Time{"server": now},
	}
	calls := metrics.NewTargetCalls()
	calls.WithLabelValues("Health", "OK").Observe(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewTarget(func() *metrics.TargetFacts { return &facts }), calls)
	checkText(t, registry, len(metrics.TargetTable()))
}
