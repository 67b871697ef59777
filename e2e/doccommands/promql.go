package doccommands

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const metricsReference = "docs/reference/metrics.md"

var (
	metricRow      = regexp.MustCompile("(?m)^\\| `(nearflash_[a-z0-9_]+)` \\| ([a-z]+) \\| ([^|]*) \\|")
	metricUse      = regexp.MustCompile(`(nearflash_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcherPattern = regexp.MustCompile(`([a-z_]+)\s*[=!]~?"`)
	byPattern      = regexp.MustCompile(`\b(?:by|without|on|ignoring) \(([^)]*)\)`)
)

// loadMetrics reads the names and labels of all metrics from the generated reference.
func (c *Checker) loadMetrics(f *facts) error {
	text, err := c.read(metricsReference)
	if err != nil {
		return err
	}
	f.metrics = map[string]map[string]bool{}
	for _, m := range metricRow.FindAllStringSubmatch(text, -1) {
		labels := map[string]bool{}
		for label := range strings.SplitSeq(m[3], ",") {
			labels[strings.Trim(label, " `")] = true
		}
		names := []string{m[1]}
		if m[2] == "histogram" {
			labels["le"] = true
			names = []string{m[1] + "_bucket", m[1] + "_sum", m[1] + "_count"}
		}
		for _, name := range names {
			f.metrics[name] = labels
		}
	}
	if len(f.metrics) == 0 {
		return fmt.Errorf("%s has no metrics in a form that is understood", metricsReference)
	}
	return nil
}

// promql checks a query: its metrics, their labels, and with promtool its form.
func (c *Checker) promql(query string) {
	known := map[string]bool{}
	for _, m := range metricUse.FindAllStringSubmatch(query, -1) {
		labels, ok := c.facts.metrics[m[1]]
		if !ok {
			c.problem("there is no metric %s", m[1])
			return
		}
		maps.Copy(known, labels)
		for _, matcher := range matcherPattern.FindAllStringSubmatch(m[2], -1) {
			if !labels[matcher[1]] {
				c.problem("%s has no label %s", m[1], matcher[1])
			}
		}
	}
	for _, m := range byPattern.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			if label = strings.TrimSpace(label); !known[label] {
				c.problem("no metric of the query has the label %s", label)
			}
		}
	}
	if err := c.promtool(query); err != nil {
		c.problem("promtool refuses this: %v", err)
	}
}

// promtool lets promtool check the query as that of a rule.
func (c *Checker) promtool(query string) error {
	dir, err := os.MkdirTemp("", "doccommands-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	rules := "groups:\n- name: x\n  rules:\n  - record: x\n    expr: |\n"
	lines := slices.Collect(strings.Lines(query))
	for _, line := range lines {
		rules += "      " + line
	}
	file := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		return err
	}
	if out, err := c.output(c.Promtool, "check", "rules", file); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
