package charttest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/testutil/loopback"
)

// The cluster whose dashboard must be readable. Each series has samples for so many steps of two
// minutes.
const (
	manyNodes, manyVolumes = 200, 2000
	steps                  = 6
	step                   = 2 * time.Minute
	// top is the value of the dashboard's variable.
	top = 10
)

// begin is when the time shown begins.
var begin = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// Two nodes, and one volume on each: with one everything is as bad, or as much, as anywhere, so that
// it must be shown; with the other nothing is, so that it must not.
const (
	worst = iota
	idle
	usual
	// late is a usual one, but for what is wrong with it in the last step and never before.
	late = 4
)

// special are the names of these volumes, of their claims and of the nodes.
var special = map[int]string{worst: "worst", idle: "idle", late: "late"}

// subject is what exports a series: a volume, a node, or anything else (usual).
type subject struct {
	number int
	labels []string
}

// restarted tells whether the plugin was in the middle of the time shown. Its pod has
// another name then, and each of its series ends and goes on as another one.
func (s subject) restarted() bool { return s.number%4 == 0 }

func label(name, value string) string { return fmt.Sprintf("%s=%q", name, value) }

// subjects are all that export a metric.
func subjects(m metrics.Metric) []subject {
	name := func(kind string, i int) string {
		if name, ok := special[i]; ok {
			return name
		}
		return fmt.Sprintf("%s-%04d", kind, i)
	}
	var all []subject
	switch {
	case slices.Contains(m.Labels, "pv"):
		for i := range manyVolumes {
			labels := []string{label("pv", name("pv", i)), label("namespace", name("team", i%20)), label("pvc", name("data", i)), label("node", name("node", i%manyNodes))}
			if slices.Contains(m.Labels, "volume") {
				labels = append(labels, label("volume", name("volume", i)))
			}
			all = append(all, subject{i, labels})
		}
	case slices.Contains(m.Labels, "node"):
		for i := range manyNodes {
			all = append(all, subject{i, []string{label("node", name("node", i))}})
		}
	default:
		all = append(all, subject{number: usual})
	}
	return all
}

// choices are the values of labels, one series for each.
var choices = map[string][]string{
	"operation": {"read", "write"}, "result": {"hit", "miss"}, "level": {"writethrough", "draining"}, "window": {"5m", "total", "day"}, "fraction": {"0.1", "0.25"},
	"device": {"volume", "ssd", "origin"}, "le": {"0.001", "0.01", "0.1", "+Inf"}, "mode": {"writeback"}, "health": {"Healthy"},
	"from": {"peer"}, "outcome": {"completed", "ended", "failed"}, "address": {"192.0.2.1:9443", "192.0.2.2:9443"}, "certificate": {"server", "client"},
	"component": {"node", "controller"}, "version": {"v1"}, "commit": {"c"}, "go_version": {"go1"},
	"driver_name": {"csi.nearflash.io"}, "method_name": methods(), "grpc_status_code": {"OK", "Internal"},
}

// methods are the methods of CSI, of which there are more than a panel shows.
func methods() []string {
	var all []string
	for i := range 2 * top {
		all = append(all, fmt.Sprintf("/csi.v1.Node/Call%d", i))
	}
	return all
}

// variants are all sets of those labels of a metric that are not its subject's.
func variants(names []string) []map[string]string {
	all := []map[string]string{{}}
	for _, name := range names {
		values, chosen := choices[name]
		if !chosen {
			continue
		}
		var longer []map[string]string
		for _, labels := range all {
			for _, value := range values {
				more := maps.Clone(labels)
				more[name] = value
				longer = append(longer, more)
			}
		}
		all = longer
	}
	return all
}

// noise is a number from 1 to 1000 that is another one for each thing.
func noise(of ...any) float64 {
	h := fnv.New32a()
	fmt.Fprint(h, of...)
	return float64(h.Sum32()%1000 + 1)
}

// wrong tells whether a yes or no is the bad one. It is, now and then, of every fourth volume and node.
func wrong(name string, s subject, i int) bool {
	now := noise(name, s.number, s.labels, i) <= 500
	switch {
	case s.labels == nil:
		return now
	case s.number == worst:
		return true
	case s.number == late:
		return i == steps-1
	}
	return s.number%4 == 0 && now && i < steps-1
}

// figure is the value of a gauge, or by how much a counter grows.
func figure(name string, s subject, labels map[string]string, i int) float64 {
	level, random := 1.0, noise(name, s.number, labels, i)
	switch s.number {
	case worst:
		level = 1e3
	case idle:
		level = 1e-3
	}
	truth := func(good bool) float64 { return map[bool]float64{true: 1}[good] }
	switch name = strings.TrimPrefix(name, "nearflash_"); name {
	case "ALERTS", "volume_info", "volume_hydration_info":
		return 1
	case "pool_capacity_bytes", "volume_cache_size_bytes", "volume_hydration_size_bytes":
		return 1e6
	case "pool_ready", "pool_device_healthy", "node_plugin_registered", "node_pool_ready", "pass_success", "volume_cached", "volume_healthy", "storage_server_up", "storage_server_healthy",
		"controller_leads", "controller_cluster_visible":
		return truth(!wrong(name, s, i))
	case "unflushed_volume_node_lost":
		return truth(wrong(name, s, i))
	case "pool_free_bytes", "pool_retained_bytes", "volume_hydration_done_bytes":
		// The less, the worse.
		return map[int]float64{worst: 0, idle: 4.9e5}[min(s.number, usual)] + truth(s.number >= usual)*400*random
	case "volume_cache_accesses_total":
		// Nothing that idle reads hits, but it hardly reads.
		return level * random * map[string]float64{"hit": truth(s.number != idle), "miss": max(level, 1)}[labels["result"]]
	case "volume_io_time_seconds_total":
		return level * random * map[string]float64{"origin": 10, "ssd": 0.1}[labels["device"]]
	case "volume_io_duration_seconds_bucket", "csi_plugin_operations_seconds_bucket":
		return requests(s, labels, i)
	}
	return level * random
}

// requests is by how much a bucket grows: worst has slow requests alone, idle quick ones.
func requests(s subject, labels map[string]string, i int) float64 {
	sum := 0.0
	for band, bound := range choices["le"][:3] {
		if s.number >= usual || s.number == idle && band == 0 || s.number == worst && band == 2 {
			sum += noise(s.number, labels["device"], labels["method_name"], bound, i)
		}
		if bound == labels["le"] {
			break
		}
	}
	return sum
}

// promFile is what promtool makes a database of, and prometheus answers from.
type promFile struct{ bytes.Buffer }

// add writes all series of a metric by one of its names.
func (f *promFile) add(m metrics.Metric, name string) {
	names := m.Labels
	if strings.HasSuffix(name, "_bucket") {
		names = append(slices.Clone(names), "le")
	}
	sets := variants(names)
	for _, s := range subjects(m) {
		for _, labels := range sets {
			text := slices.Clone(s.labels)
			for _, key := range slices.Sorted(maps.Keys(labels)) {
				text = append(text, label(key, labels[key]))
			}
			if name == "ALERTS" {
				text = append(text, alertLabels(s)...)
			}
			f.series(m.Type, name, s, text, labels)
		}
	}
}

// series writes the samples of a series.
func (f *promFile) series(kind metrics.Type, name string, s subject, text []string, labels map[string]string) {
	sum := 0.0
	for i := range steps {
		value := figure(name, s, labels, i)
		if kind != metrics.Gauge {
			sum += value
			value = sum
		}
		pod := "before"
		if s.restarted() && i >= steps/2 {
			pod = "after"
		}
		fmt.Fprintf(f, "%s{%s} %g %d\n", name, strings.Join(append(slices.Clone(text), label("pod", pod)), ","), value, begin.Add(time.Duration(i)*step).Unix())
	}
}

// alertLabels are those of an alert that there is of every volume: of worst a critical one, and
// of idle one that does not fire.
func alertLabels(s subject) []string {
	state, severity := "firing", "warning"
	switch s.number {
	case worst:
		severity = "critical"
	case idle:
		state = "pending"
	}
	return []string{label("alertname", "NearflashVolumeUnhealthy"), label("alertstate", state), label("severity", severity)}
}

// manySeries are the series of a large cluster, in the format of OpenMetrics.
func manySeries() []byte {
	var f promFile
	for _, m := range metrics.Table() {
		name := m.Name
		if m.Type == metrics.Histogram {
			name += "_bucket"
		}
		f.add(m, name)
	}
	calls := metrics.Metric{Type: metrics.Histogram, Labels: []string{"driver_name", "method_name", "grpc_status_code"}}
	f.add(calls, "csi_plugin_operations_seconds_bucket")
	f.add(calls, "csi_plugin_operations_seconds_count")
	f.add(metrics.Metric{Type: metrics.Gauge, Labels: []string{"pv"}}, "ALERTS")
	f.WriteString("# EOF\n")
	return f.Bytes()
}

// promServer runs a Prometheus on a database until the test ends, and returns its address.
// promtool could not answer: its own engine loads 10,000 samples for a query at most.
func promServer(t *testing.T, dir string) string {
	t.Helper()
	address := loopback.FreeAddress(t)
	writeFile(t, filepath.Join(dir, "prometheus.yaml"), nil)
	// What is not exported any more is gone at the next step.
	command := exec.Command(filepath.Join(filepath.Dir(cmp.Or(os.Getenv("PROMTOOL"), "promtool")), "prometheus"),
		"--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address="+address, "--query.lookback-delta=1m")
	var log bytes.Buffer
	command.Dir, command.Stdout, command.Stderr = dir, &log, &log
	if err := command.Start(); err != nil {
		t.Fatalf("%v: set PROMTOOL to a promtool that is beside its prometheus, as `make test-unit` does", err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended by itself
		_ = command.Wait()         // with the error of having been killed
		if t.Failed() {
			t.Logf("prometheus: %s", log.String())
		}
	})
	url := "http://" + address
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := get(ctx, url+"/-/ready")
		return err == nil, nil
	}); err != nil {
		t.Fatalf("prometheus does not get ready: %v", err)
	}
	return url
}

// get returns what is at an address.
func get(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it is only read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, text)
	}
	return text, nil
}

// lines are the labels of all series that a panel shows of a query in the time shown.
func lines(t *testing.T, address string, q target) []map[string]string {
	t.Helper()
	end := begin.Add((steps - 1) * step).Unix()
	values := url.Values{"query": {dashboardVariables.Replace(q.Expr)}}
	path := "/api/v1/query_range?"
	if q.Instant {
		path = "/api/v1/query?"
		values.Set("time", fmt.Sprint(end))
	} else {
		values.Set("start", fmt.Sprint(begin.Unix()))
		values.Set("end", fmt.Sprint(end))
		values.Set("step", fmt.Sprint(step.Seconds()))
	}
	text, err := get(t.Context(), address+path+values.Encode())
	if err != nil {
		t.Fatalf("%s: %v", q.Expr, err)
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string `json:"metric"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Fatal(err)
	}
	var all []map[string]string
	for _, r := range answer.Data.Result {
		all = append(all, r.Metric)
	}
	return all
}

// onlyWrong finds queries for what is wrong with nodes.
var onlyWrong = regexp.MustCompile(`(== 0|> 0) and bottomk`)

// checkLines wants the lines of a query to be as many as are chosen at most, and of volumes and
// nodes those that matter most.
func checkLines(t *testing.T, query string, shown []map[string]string) {
	t.Helper()
	if len(shown) == 0 || len(shown) > top {
		t.Errorf("%d series, want 1 to %d", len(shown), top)
		return
	}
	names := func(key string) []string {
		var all []string
		for _, labels := range shown {
			if name, ok := labels[key]; ok {
				all = append(all, name)
			}
		}
		return all
	}
	// The name of a PersistentVolume is in all tables, that of a claim in all legends.
	of := slices.Concat(names("pvc"), names("pv"))
	if len(of) == 0 {
		of = names("node")
	}
	if len(of) > 0 && (!slices.Contains(of, special[worst]) || slices.Contains(of, special[idle])) {
		t.Errorf("%v, want %s among them and not %s", of, special[worst], special[idle])
	}
	if onlyWrong.MatchString(query) && !slices.Contains(of, special[late]) {
		t.Errorf("%v, want %s among them: it is wrong at the end", of, special[late])
	}
}

// TestDashboardOfManyVolumes wants no query of the dashboard to draw more lines than are chosen, at
// all steps of the time shown together, and each to show what matters most. Some plugins were
// restarted meanwhile.
func TestDashboardOfManyVolumes(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "series"), manySeries())
	promtool(t, dir, nil, "tsdb", "create-blocks-from", "openmetrics", "--quiet", "series", "data")
	address := promServer(t, dir)
	for _, p := range dashboard(t) {
		for _, q := range p.Targets {
			t.Run(p.Title+" "+q.RefID, func(t *testing.T) { checkLines(t, q.Expr, lines(t, address, q)) })
		}
	}
}
