package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearflash/nearflash/pkg/version"
)

// BuildInfo is nearflash_build_info of a component: node, controller or target.
func BuildInfo(component string) prometheus.Collector {
	m := buildInfo()
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, m.Labels)
	vec.WithLabelValues(component, version.Version, version.Commit, runtime.Version()).Set(1)
	return vec
}
