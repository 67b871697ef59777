package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// BenchmarkScale measures what the node plugins of a cluster ask of its API server and of etcd:
//
//	go test ./pkg/app/node -run '^$' -bench 'Scale|HotSets' -benchtime 1x -timeout 60m
//
// The API server has its own defaults, etcd does not wait for its disk.
func BenchmarkScale(b *testing.B) {
	for _, size := range []struct{ nodes, volumes int }{{50, 2}, {500, 2}} {
		b.Run(fmt.Sprintf("%d nodes", size.nodes), func(b *testing.B) {
			for range b.N {
				measure(b, size.nodes, size.volumes)
			}
		})
	}
}

const minute = time.Minute

func measure(b *testing.B, nodes, volumes int) {
	admin, processes := apiserver.StartAsIs(b)
	f := newFleet(b, admin, volumes)
	g := &gauge{fleet: f, processes: processes}
	f.grow(nodes)
	g.phase("first start of all plugins", func() { f.start(f.members...); f.settled() })
	g.phase("all volumes staged", func() { f.attach(0, nodes); f.settled() })
	time.Sleep(minute) // first reports
	g.phase("at rest", func() { time.Sleep(2 * minute) })
	for _, percent := range []int64{50, 100} {
		f.busy(percent)
		time.Sleep(minute)
		g.phase(fmt.Sprintf("%d %% of the volumes busy", percent), func() { time.Sleep(minute) })
	}
	f.busy(0)
	time.Sleep(minute)
	g.phase("all plugins started anew at once", func() { f.end(f.members...); f.start(f.members...); f.settled() })
	g.phase("the minute after that", func() { time.Sleep(minute) })
	g.phase("the API server killed and started anew", func() {
		processes.RestartServer(f.serves)
		time.Sleep(minute)
	})
	for _, what := range []string{requestOfUser, reportOfNode, poolChange, hotSetChange, moveBetween} {
		b.Logf("%s: events %v", what, f.told(what))
	}
	f.end(f.members...)
}

// busy has some percent of each node's volumes busy.
func (f *fleet) busy(percent int64) {
	for _, m := range f.members {
		m.machine.load.percent.Store(percent)
	}
}

// gauge tells what phases of a run cost.
type gauge struct {
	*fleet
	processes *apiserver.Processes
}

// standing is what has been used so far.
type standing struct {
	server, etcd time.Duration
	metrics      map[string]float64
}

func (g *gauge) stand() standing {
	return standing{server: g.processes.CPU(apiserver.Server), etcd: g.processes.CPU(apiserver.Etcd), metrics: g.scrape()}
}

// phase does something, and logs what the nodes have asked for meanwhile, and what it has cost.
func (g *gauge) phase(name string, do func()) {
	g.t.Helper()
	g.take()
	before, began := g.stand(), time.Now()
	do()
	took, counts, after := time.Since(began), g.take(), g.stand()
	text := &strings.Builder{}
	fmt.Fprintf(text, "%s: %v\n", name, took.Round(10*time.Millisecond))
	fmt.Fprintf(text, "  requests %s\n", list(counts.Requests))
	fmt.Fprintf(text, "  events   %s\n", list(counts.Events))
	fmt.Fprintf(text, "  sent %.1f KiB, received %.1f KiB, of that by watches %.1f KiB; %d refused\n", kib(counts.Sent), kib(counts.Received), kib(counts.Watched), counts.Refused)
	server, etcd := after.server-before.server, after.etcd-before.etcd
	if server < 0 {
		server, before.metrics = after.server, nil // it is a new one
	}
	fmt.Fprintf(text, "  processor: API server %v, etcd %v; resident: API server %d MiB, etcd %d MiB\n", server, etcd,
		g.processes.Resident(apiserver.Server)/mib, g.processes.Resident(apiserver.Etcd)/mib)
	for _, what := range slices.Sorted(maps.Keys(after.metrics)) {
		was, is := before.metrics[what], after.metrics[what]
		switch {
		case strings.HasPrefix(what, storageSize):
			fmt.Fprintf(text, "  database %.1f MiB, of before %.1f\n", is/mib, was/mib)
		case is > was:
			fmt.Fprintf(text, "  %s %g\n", what, is-was)
		}
	}
	g.t.Log(text.String())
}

func kib(n int64) float64 { return float64(n) / 1024 }

// Metrics of the API server.
const (
	storageSize = "apiserver_storage_size_bytes"
	dispatched  = "apiserver_flowcontrol_dispatched_requests_total"
	rejected    = "apiserver_flowcontrol_rejected_requests_total"
	waited      = "apiserver_flowcontrol_request_wait_duration_seconds"
	admission   = "apiserver_validating_admission_policy_check_duration_seconds"
)

// scrape reads what the API server says of itself: the database's size, which levels of priority
// requests of plugins have, and what they waited.
func (g *gauge) scrape() map[string]float64 {
	g.t.Helper()
	text, err := g.set.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(g.ctx).Raw()
	if err != nil {
		g.t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		g.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, name := range []string{storageSize, dispatched, rejected, waited, admission} {
		for _, m := range families[name].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["flow_schema"] == "exempt" || labels["flow_schema"] == "probes" {
				continue // the test's own, and the API server's
			}
			key := strings.Join([]string{name, labels["flow_schema"], labels["priority_level"], labels["reason"], labels["policy"]}, " ")
			out[key] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if h := m.GetHistogram(); h != nil {
				out[key+" seconds"] += h.GetSampleSum()
				out[key+" count"] += float64(h.GetSampleCount())
			}
		}
	}
	return out
}

// serves reports whether the API server answers.
func (f *fleet) serves() bool {
	_, err := f.set.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(f.ctx).Raw()
	return err == nil
}

func list(n map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(n)) {
		out = append(out, fmt.Sprintf("%s %d", k, n[k]))
	}
	return strings.Join(out, ", ")
}
