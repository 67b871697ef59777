package charttest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/dirtylimit"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ruleFile is a file of rules, in the form of Prometheus and of a PrometheusRule.
type ruleFile struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

// renderedRules is the spec of the PrometheusRule that the chart renders.
func renderedRules(t *testing.T) (text []byte, rules ruleFile) {
	t.Helper()
	object := rendered(t, "PrometheusRule", "--set", "metrics.alerts.enabled=true")
	text, err := yaml.Marshal(object.Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &rules); err != nil {
		t.Fatal(err)
	}
	return text, rules
}

// rendered returns the only object of a kind.
func rendered(t *testing.T, kind string, args ...string) *unstructured.Unstructured {
	t.Helper()
	objects := mustTemplate(t, args...)
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() != kind })
	if len(objects) != 1 {
		t.Fatalf("%d objects of kind %s, want 1", len(objects), kind)
	}
	return objects[0]
}

// promtool runs promtool in a folder and fails the test if it fails.
func promtool(t *testing.T, dir string, stdin []byte, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), cmp.Or(os.Getenv("PROMTOOL"), "promtool"), args...)
	command.Dir, command.Stdin = dir, bytes.NewReader(stdin)
	out, err := command.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%v: set PROMTOOL to Prometheus' promtool, as `make test-unit` does", err)
	}
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func writeFile(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAlerts runs alerts_test.yaml on the rules as they are rendered.
func TestAlerts(t *testing.T) {
	text, rules := renderedRules(t)
	checkAlerts(t, text, rules, "alerts_test.yaml")
}

// checkAlerts runs a file of tests on rules, and looks at the rules themselves.
func checkAlerts(t *testing.T, text []byte, rules ruleFile, testFile string) {
	t.Helper()
	tests, err := os.ReadFile(testFile)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "rules.yaml"), text)
	writeFile(t, filepath.Join(dir, "alerts_test.yaml"), tests)
	promtool(t, dir, nil, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
	promtool(t, dir, nil, "test", "rules", "alerts_test.yaml")
	checkRules(t, rules)
	checkCoverage(t, rules, tests)
}

// checkRules wants of every alert what somebody needs who is woken by it.
func checkRules(t *testing.T, rules ruleFile) {
	page, err := os.ReadFile(filepath.Join(chartDir, "..", "..", "..", "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			heading := "\n## " + rule.Alert + "\n"
			if !bytes.Contains(page, []byte(heading)) {
				t.Errorf("%s: docs/troubleshooting.md has no section %q", rule.Alert, strings.TrimSpace(heading))
			}
			if url := rule.Annotations["runbook_url"]; !strings.HasSuffix(url, "/docs/troubleshooting.md#"+strings.ToLower(rule.Alert)) {
				t.Errorf("%s: runbook_url %s", rule.Alert, url)
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" || rule.For == "" {
				t.Errorf("%s lacks summary, description, severity or for: %+v", rule.Alert, rule)
			}
			if strings.Contains(fmt.Sprint(rule), "${") {
				t.Errorf("%s has a parameter without a value: %+v", rule.Alert, rule)
			}
		}
	}
}

// checkCoverage wants every alert to fire in one test and to be silent in one.
func checkCoverage(t *testing.T, rules ruleFile, tests []byte) {
	var file struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string `json:"alertname"`
				ExpAlerts []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(tests, &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, at := range test.AlertRuleTest {
			if len(at.ExpAlerts) > 0 {
				fires[at.Alertname] = true
			} else {
				silent[at.Alertname] = true
			}
		}
	}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			if !fires[rule.Alert] || !silent[rule.Alert] {
				t.Errorf("%s: a test where it fires: %v, where it is silent: %v", rule.Alert, fires[rule.Alert], silent[rule.Alert])
			}
		}
	}
}

// TestThresholds wants every threshold of the values to be in the rules.
func TestThresholds(t *testing.T) {
	object := rendered(t, "PrometheusRule", valuesArgs("monitoring")...)
	text := fmt.Sprint(object.Object["spec"])
	for _, want := range []string{
		"dirty_age_seconds > 600", "< 0.3 *", "[30m])) > 100", "< 0.2", "capacity_bytes > 0.7", "wear_ratio > 1 or", "https://wiki.example.com/nearflash#nearflash",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the rules lack %q:\n%s", want, text)
		}
	}
}

// panel is a part of a Grafana dashboard.
type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	GridPos     struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Targets []target `json:"targets"`
}

// target is a query of a panel.
type target struct {
	RefID string `json:"refId"`
	Expr  string `json:"expr"`
	// Instant is set if the query is asked once, and not at every step of the time shown.
	Instant bool `json:"instant"`
}

// dashboardVariables replaces the variables of Grafana: everything is chosen.
var dashboardVariables = strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$namespace", ".*", "$pvc", ".*", "$node", ".*", "$top", strconv.Itoa(top))

// dashboard is the one that the chart renders.
func dashboard(t *testing.T) []panel {
	t.Helper()
	object := rendered(t, "ConfigMap", "--set", "metrics.dashboard.enabled=true")
	if object.GetLabels()["grafana_dashboard"] != "1" {
		t.Errorf("Grafana's sidecar does not find it: %v", object.GetLabels())
	}
	text, _, err := unstructured.NestedString(object.Object, "data", "nearflash.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID           string  `json:"uid"`
		SchemaVersion int     `json:"schemaVersion"`
		Panels        []panel `json:"panels"`
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	if d.UID != "nearflash" || d.SchemaVersion < 39 || len(d.Panels) == 0 {
		t.Fatalf("no dashboard of Grafana 11: uid %q, schema %d, %d panels", d.UID, d.SchemaVersion, len(d.Panels))
	}
	return d.Panels
}

// queries are those of the dashboard, with the variables of Grafana replaced.
func queries(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, p := range dashboard(t) {
		for _, target := range p.Targets {
			query := dashboardVariables.Replace(target.Expr)
			if strings.Contains(query, "$") {
				t.Errorf("panel %q: unknown variable in %s", p.Title, query)
			}
			all = append(all, query)
		}
	}
	return all
}

// TestDashboard wants every query to parse, and the panels to have a place.
func TestDashboard(t *testing.T) {
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for i, q := range queries(t) {
		rules = append(rules, rule{fmt.Sprintf("query:n%d", i), q})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "queries.yaml"), text)
	promtool(t, dir, nil, "check", "rules", "queries.yaml")
	ids, cells := map[int]string{}, map[[2]int]string{}
	for _, p := range dashboard(t) {
		if other, taken := ids[p.ID]; taken {
			t.Errorf("panels %q and %q have the same id", other, p.Title)
		}
		ids[p.ID] = p.Title
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("panel %q has no description or no query", p.Title)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, taken := cells[cell]; taken {
					t.Fatalf("panels %q and %q overlap", other, p.Title)
				}
				cells[cell] = p.Title
			}
		}
	}
}

var (
	// metricPattern finds a metric in a query, with its selector.
	metricPattern = regexp.MustCompile(`\b((?:nearflash|csi)_[a-z0-9_]+)(\{[^}]*\})?`)
	labelPattern  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
)

// seriesOf are the labels of what metrics are asked for, by its name.
func seriesOf(table []metrics.Metric) map[string][]string {
	exported := map[string][]string{}
	for _, m := range table {
		if m.Type == metrics.Histogram {
			exported[m.Name+"_bucket"] = append(slices.Clone(m.Labels), "le")
			continue
		}
		exported[m.Name] = m.Labels
	}
	return exported
}

// checkSeries wants a query to use only what is exported, and adds that to used.
func checkSeries(t *testing.T, exported map[string][]string, query string, used map[string]bool) {
	t.Helper()
	for _, m := range metricPattern.FindAllStringSubmatch(query, -1) {
		labels, ok := exported[m[1]]
		if !ok {
			t.Errorf("nobody exports %s, which is used in %s", m[1], query)
		}
		used[m[1]] = true
		for _, l := range labelPattern.FindAllStringSubmatch(m[2], -1) {
			if ok && !slices.Contains(labels, l[1]) {
				t.Errorf("%s has no label %s, which is used in %s", m[1], l[1], query)
			}
		}
	}
}

// TestMetricsExist wants dashboard and alerts to use only what is exported, with
// labels that it has, and the dashboard to show everything.
func TestMetricsExist(t *testing.T) {
	exported := seriesOf(metrics.Table())
	ours := slices.Sorted(maps.Keys(exported))
	for _, suffix := range []string{"bucket", "count"} {
		exported["csi_plugin_operations_seconds_"+suffix] = []string{"driver_name", "method_name", "grpc_status_code"}
	}
	shown := map[string]bool{}
	check := func(query string) { checkSeries(t, exported, query, shown) }
	for _, q := range queries(t) {
		check(q)
	}
	for _, name := range ours {
		if !shown[name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
	_, rules := renderedRules(t)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			check(rule.Expr)
		}
	}
}

// TestMetricsText gives what a node with a volume exports, and a controller, to promtool.
func TestMetricsText(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	ratio := observe.Ratio{Value: 0.5, Known: true}
	sample := observe.Sample{
		Volume: observe.Volume{ID: "pvc-1", PV: "pvc-1", Namespace: "shop", Claim: "db", Attached: true, Mode: volume.ModeWriteback, Cached: true},
		Cache:  &observe.Cache{Health: observe.Healthy, Mode: volume.ModeWriteback, SizeBytes: 1 << 30, DirtyBytes: 4096, DirtySince: now.Add(-time.Minute)},
		Hits:   observe.HitRatios{Read: ratio, Write: ratio, ReadTotal: ratio, WriteTotal: ratio},
		IO:     map[observe.Device]observe.IO{},
		Reuse:  &reuse.Summary{Windows: []reuse.WindowSummary{{Window: reuse.Day, Reads: 1}}},
	}
	for _, device := range observe.Devices() {
		sample.IO[device] = observe.IO{}
	}
	wear := int32(3)
	pool := metrics.Pool{Ready: true, Known: true, Devices: []metrics.PoolDevice{{Path: "/dev/nvme0n1", Health: v1alpha1.DevicePassed, WearPercent: &wear}}}
	registry, calls := prometheus.NewRegistry(), rpc.NewCallMetrics("csi.nearflash.io")
	collector := metrics.NewCollector("node-a",
		func(context.Context) observe.Snapshot {
			return observe.Snapshot{Time: now, Volumes: []observe.Sample{sample}}
		},
		func() metrics.Pool { return pool }, func() time.Time { return now })
	collector.Hydrations = func() []metrics.Hydration {
		return []metrics.Hydration{{Volume: sample.ID, TotalBytes: 2, HydratedBytes: 1, From: volume.FromPeer}}
	}
	collector.DirtyLimits = func() []dirtylimit.Use {
		return []dirtylimit.Use{{ID: sample.ID, Bytes: 2, Age: time.Minute, Activations: 1}}
	}
	collector.Scrubs = func() []scrub.Use { return []scrub.Use{{ID: sample.ID, CheckedBytes: 1}} }
	collector.Leases = func(context.Context) (map[volume.ID]volume.MoveID, error) { return nil, nil }
	registry.MustRegister(metrics.BuildInfo("node"), collector, clusterMetrics(now))
	calls.RecordMetrics("/csi.v1.Node/NodeStageVolume", nil, time.Second)
	// One family is of the CSI calls.
	checkText(t, prometheus.Gatherers{registry, calls.Gatherer()}, len(metrics.Table())+1)
}

// checkText gives what is exported to promtool, and wants so many metrics.
func checkText(t *testing.T, source prometheus.Gatherer, want int) {
	t.Helper()
	families, err := source.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != want {
		t.Errorf("%d metrics are exported, want all %d", len(families), want)
	}
	var text bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, t.TempDir(), text.Bytes(), "check", "metrics")
}

// clusterMetrics is what a controller exports that knows a volume which waits for a node, and one
// storage server.
func clusterMetrics(now time.Time) *metrics.Cluster {
	leads := make(chan struct{})
	close(leads)
	lost := v1alpha1.CachedVolume{Status: v1alpha1.CachedVolumeStatus{
		OwnerNode: "node-b", PersistentVolumeName: "pvc-2", DirtyState: v1alpha1.DirtyStatePossiblyDirty,
		Cache: v1alpha1.CacheStatus{DirtyBytes: ptr.To(int64(1)), ObservedTime: metav1.NewTime(now)},
	}}
	pool := v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	facts := metrics.ClusterFacts{Volumes: []v1alpha1.CachedVolume{lost}, Pools: []v1alpha1.CachePool{pool}, Ready: map[string]bool{"node-a": true}}
	c := metrics.NewCluster(leads, func(context.Context) (metrics.ClusterFacts, error) { return facts, nil }, func() time.Time { return now })
	c.Storage = func() []metrics.StorageServer {
		return []metrics.StorageServer{{Address: "192.0.2.1:9443", Up: true, CapacityBytes: 1, ServerNotAfter: now, ClientNotAfter: now}}
	}
	return c
}

// TestMetricsOff wants nothing of metrics to be left.
func TestMetricsOff(t *testing.T) {
	for name, args := range map[string][]string{
		"off":      {"--set", "metrics.enabled=false,metrics.podMonitor.enabled=true,metrics.alerts.enabled=true,metrics.dashboard.enabled=true"},
		"insecure": {"--set", "metrics.secure=false,metrics.certSecret=x"},
	} {
		out, err := helm(context.Background(), append([]string{"template", release, chartDir, "--kube-version", "1.36.0"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		unwanted := []string{"subjectaccessreviews", "metrics-reader", "metrics-cert", "Clients of /metrics"}
		if name == "off" {
			unwanted = append(unwanted, "metrics", "monitoring.coreos.com")
		} else if !bytes.Contains(out, []byte("--metrics-secure=false")) {
			t.Error("insecure: the programs are not told")
		}
		for _, word := range unwanted {
			if bytes.Contains(out, []byte(word)) {
				t.Errorf("%s: the rendered chart has %q", name, word)
			}
		}
	}
}
