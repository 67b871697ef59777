//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

const (
	accesses = "nearflash_volume_cache_accesses_total"
	durName  = "nearflash_volume_io_duration_seconds"
	opsName  = "nearflash_volume_io_operations_total"
	byteName = "nearflash_volume_io_bytes_total"
)

var _ = Describe("The metrics of a volume", Label("metrics", "lab"), func() {
	It("count exactly what a pod does", Label("turn-3"), func(ctx SpecContext) {
		s := newSpace(ctx)
		token := readerToken(ctx, s)
		v, err := s.volume(ctx, volumeSpec{name: "counted", mode: v1alpha1.CacheModeWritethrough, kind: block, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		before, err := v.fresh(ctx, token)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.touch(ctx, "iflag=direct of=/dev/null if="+cluster.DevicePath+" skip", 40)).To(Succeed())
		Expect(v.touch(ctx, "oflag=direct conv=notrunc if=/dev/zero of="+cluster.DevicePath+" seek", 24)).To(Succeed())
		after, err := v.fresh(ctx, token)
		Expect(err).NotTo(HaveOccurred())
		for _, c := range []struct {
			name, labels string
			want         float64
		}{
			{accesses, "operation=read", 40},
			{accesses, "operation=write", 24},
			{opsName, "device=volume,operation=read", 40},
			{opsName, "device=volume,operation=write", 24},
			{byteName, "device=volume,operation=read", 40 * 4096},
			{byteName, "device=volume,operation=write", 24 * 4096},
			{durName + "_count", "device=volume", 64},
			// Every write of a writethrough volume reaches the origin.
			{opsName, "device=origin,operation=write", 24},
		} {
			Expect(after.sum(c.name, c.labels)-before.sum(c.name, c.labels)).To(Equal(c.want), "%s{%s}", c.name, c.labels)
		}

		By("reading hot blocks")
		misses := "operation=read,result=miss"
		Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
			// A few reads now and then never make a block hot.
			_, err := v.run(ctx, "fio --name=heat --filename="+cluster.DevicePath+" --offset=1m --size=8m --rw=randread --bs=4k --direct=1 "+
				"--ioengine=libaio --iodepth=8 --norandommap --randrepeat=0 --time_based --runtime=2 --minimal >/dev/null")
			if err != nil {
				return "", err
			}
			a, err := v.fresh(ctx, token)
			if err != nil {
				return "", err
			}
			if err := v.touch(ctx, "iflag=direct of=/dev/null if="+cluster.DevicePath+" skip", 8); err != nil {
				return "", err
			}
			b, err := v.fresh(ctx, token)
			if err != nil {
				return "", err
			}
			if n := b.sum(accesses, misses) - a.sum(accesses, misses); n > 0 {
				return fmt.Sprintf("%v of 8 reads missed", n), nil
			}
			if n := b.sum(accesses, "operation=read,result=hit") - a.sum(accesses, "operation=read,result=hit"); n != 8 {
				return "", fmt.Errorf("%v hits of 8 reads and no miss", n)
			}
			return "", nil
		})).To(Succeed())
	}, NodeTimeout(specLimit))

	It("agree with fio on how long I/O takes", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		token := readerToken(ctx, s)
		v, err := s.volume(ctx, volumeSpec{name: "timed", mode: v1alpha1.CacheModeNone, kind: block})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		before, err := v.fresh(ctx, token)
		Expect(err).NotTo(HaveOccurred())
		out, err := v.run(ctx, "fio --name=timed --filename="+cluster.DevicePath+
			" --rw=randread --bs=4k --size=64m --io_size=8m --direct=1 --iodepth=1 --invalidate=0 --output-format=json")
		Expect(err).NotTo(HaveOccurred())
		after, err := v.fresh(ctx, token)
		Expect(err).NotTo(HaveOccurred())
		bounds, counts := after.histogram("device=volume")
		_, old := before.histogram("device=volume")
		for i := range counts {
			counts[i] -= old[i]
		}
		Expect(counts[len(counts)-1]).To(BeNumerically(">=", 2048), "reads of fio")
		percentiles, err := fioPercentiles(out)
		Expect(err).NotTo(HaveOccurred())
		for _, p := range []float64{50, 90, 95} {
			theirs, _ := slices.BinarySearch(bounds, percentiles[p])
			ours := slices.IndexFunc(counts, func(n float64) bool { return n >= p/100*counts[len(counts)-1] })
			// fio's clock begins before the system call.
			Expect(theirs-ours).To(BeNumerically("~", 0, 1),
				"p%v: fio says %v s, the histogram at most %v s", p, percentiles[p], bounds[min(ours, len(bounds)-1)])
		}
	}, NodeTimeout(specLimit))

	It("never go back: not when the plugin is killed, not when the node is", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		token := readerToken(ctx, s)
		v, err := s.volume(ctx, volumeSpec{name: "monotonic", mode: v1alpha1.CacheModeWriteback, kind: block, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		read := func(n int) figures {
			GinkgoHelper()
			Expect(v.touch(ctx, "iflag=direct of=/dev/null if="+cluster.DevicePath+" skip", n)).To(Succeed())
			f, err := v.fresh(ctx, token)
			Expect(err).NotTo(HaveOccurred())
			return f
		}
		before := read(30)

		By("killing the plugin")
		err = kill(ctx, nodeA, "nearflash-node")
		Expect(err).NotTo(HaveOccurred())
		Expect(v.awaitMetrics(ctx, token)).To(Succeed())
		after := read(20)
		Expect(after.notBehind(before)).To(Succeed())
		Expect(after.sum(accesses, "operation=read") - before.sum(accesses, "operation=read")).To(Equal(20.0))

		By("killing the node")
		Expect(k.Lab.Kill(ctx, nodeA)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		// What the API says of the pod is from before, for a while.
		Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
			if _, err := v.run(ctx, "true"); err != nil {
				return err.Error(), nil
			}
			return "", nil
		})).To(Succeed())
		Expect(v.awaitMetrics(ctx, token)).To(Succeed())
		last := read(10)
		Expect(last.notBehind(after)).To(Succeed())
		grown := last.sum(accesses, "operation=read") - after.sum(accesses, "operation=read")
		Expect(grown).To(BeNumerically(">=", 10))
		Expect(grown).To(BeNumerically("<", 10_000), "a counter that goes back must not look like one that wrapped")
	}, NodeTimeout(specLimit))
})

// touch has dd access n blocks, each in another MiB.
func (v *vol) touch(ctx context.Context, arguments string, n int) error {
	_, err := v.run(ctx, fmt.Sprintf("for i in $(seq %d); do dd bs=4k count=1 status=none %s=$((i * 256)); done", n, arguments))
	return err
}

// figures are the series of one volume.
type figures struct {
	families map[string]*dto.MetricFamily
	pv       string
}

// saved is for how long the plugin may serve totals that it has saved before.
const saved = 5 * time.Second

// fresh is a scrape that shows all that was done before.
func (v *vol) fresh(ctx context.Context, token string) (figures, error) {
	select {
	case <-time.After(saved + time.Second):
	case <-ctx.Done():
		return figures{}, ctx.Err()
	}
	return v.scrape(ctx, token)
}

// scrape reads the metrics of the node's plugin as Prometheus does.
func (v *vol) scrape(ctx context.Context, token string) (figures, error) {
	pod, err := k.NodePlugin(ctx, v.node)
	if err != nil {
		return figures{}, err
	}
	port := ""
	for _, p := range pod.Spec.Containers[0].Ports {
		if p.Name == "metrics" {
			port = strconv.Itoa(int(p.ContainerPort))
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(pod.Status.HostIP, port)+"/metrics", nil)
	if err != nil {
		return figures{}, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the plugin makes its own certificate
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return figures{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return figures{}, fmt.Errorf("metrics of node %s: %s", v.node, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	return figures{families, v.PV}, err
}

// awaitMetrics waits until the plugin answers and knows the volume.
func (v *vol) awaitMetrics(ctx context.Context, token string) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		f, err := v.scrape(ctx, token)
		if err != nil {
			return err.Error(), nil
		}
		if f.sum("nearflash_volume_cached", "") != 1 {
			return "the volume is not among the metrics, or not cached", nil
		}
		return "", nil
	})
}

// each calls f with the volume's metrics of a family that have the labels.
func (f figures) each(name, labels string, do func(*dto.Metric)) {
	want := map[string]string{"pv": f.pv}
	for _, pair := range strings.FieldsFunc(labels, func(r rune) bool { return r == ',' }) {
		key, value, _ := strings.Cut(pair, "=")
		want[key] = value
	}
	for _, m := range f.families[name].GetMetric() {
		found := 0
		for _, l := range m.GetLabel() {
			if value, asked := want[l.GetName()]; asked && value == l.GetValue() {
				found++
			}
		}
		if found == len(want) {
			do(m)
		}
	}
}

// sum adds up the values of the series with the labels. The name of a histogram
// ends with _count.
func (f figures) sum(name, labels string) float64 {
	total := 0.0
	family, isCount := strings.CutSuffix(name, "_count")
	f.each(family, labels, func(m *dto.Metric) {
		switch {
		case isCount:
			total += float64(m.GetHistogram().GetSampleCount())
		case m.Counter != nil:
			total += m.GetCounter().GetValue()
		default:
			total += m.GetGauge().GetValue()
		}
	})
	return total
}

// histogram returns the finite bounds, and the cumulated counts with that of
// infinity at the end.
func (f figures) histogram(labels string) (bounds, counts []float64) {
	f.each(durName, labels, func(m *dto.Metric) {
		for _, b := range m.GetHistogram().GetBucket() {
			if b.GetUpperBound() < 1e9 {
				bounds, counts = append(bounds, b.GetUpperBound()), append(counts, float64(b.GetCumulativeCount()))
			}
		}
		counts = append(counts, float64(m.GetHistogram().GetSampleCount()))
	})
	return bounds, counts
}

// notBehind fails if a counter or a bucket is lower than it was.
func (f figures) notBehind(before figures) error {
	compared := 0
	for name, family := range before.families {
		if family.GetType() == dto.MetricType_GAUGE || !strings.HasPrefix(name, "nearflash_volume_") {
			continue
		}
		var err error
		before.each(name, "", func(m *dto.Metric) {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key, compare := strings.Join(labels, ","), name
			if m.Histogram != nil {
				compare += "_count"
			}
			compared++
			if was, is := before.sum(compare, key), f.sum(compare, key); is < was {
				err = fmt.Errorf("%s{%s} went back from %v to %v", compare, key, was, is)
			}
		})
		if err != nil {
			return err
		}
	}
	if compared < 10 {
		return fmt.Errorf("only %d series were there to compare", compared)
	}
	return nil
}

// fioPercentiles reads the percentiles of the completion latency in seconds.
func fioPercentiles(text string) (map[float64]float64, error) {
	var report struct {
		Jobs []struct {
			Read struct {
				Clat struct {
					Percentile map[string]float64 `json:"percentile"`
				} `json:"clat_ns"`
			} `json:"read"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil || len(report.Jobs) != 1 {
		return nil, fmt.Errorf("output of fio: %w: %s", err, text)
	}
	out := map[float64]float64{}
	for name, ns := range report.Jobs[0].Read.Clat.Percentile {
		p, err := strconv.ParseFloat(name, 64)
		if err != nil {
			return nil, err
		}
		out[p] = ns / 1e9
	}
	return out, nil
}
