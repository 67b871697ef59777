//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// benchSet is what a measurement over an origin reads and writes, in MiB. All of it fits
// into the cache.
const benchSet = 64

// Measurements of a cache over Ceph RBD, for docs/benchmarks.md: all in one run, since the
// machine's other work shows in each.
var _ = Describe("A cache over Ceph RBD, measured", Label("bench", "origin-ceph", "slow", "lab"), Serial, func() {
	It("beside RBD alone, and after a move", func(ctx SpecContext) {
		s := newSpace(ctx)
		say("| case | IOPS | p50 us | p99 us | hits |")
		alone, err := s.originVolume(ctx, cephRBD, "alone", nodeA, true)
		Expect(err).NotTo(HaveOccurred())
		Expect(alone.fill(ctx)).To(Succeed())
		Expect(alone.tell(ctx, "RBD alone, read", "randread")).To(Succeed())
		Expect(alone.tell(ctx, "RBD alone, write", "randwrite")).To(Succeed())

		through := s.warmOver(ctx, cephRBD, "through", v1alpha1.CacheModeWritethrough)
		Expect(through.tell(ctx, "cached, read", "randread")).To(Succeed())
		Expect(through.tell(ctx, "cached writethrough, write", "randwrite")).To(Succeed())
		back := s.warmOver(ctx, cephRBD, "back", v1alpha1.CacheModeWriteback)
		Expect(back.tell(ctx, "cached writeback, write", "randwrite")).To(Succeed())
		Expect(back.stop(ctx)).To(Succeed())
		Expect(alone.tell(ctx, "RBD alone, read again", "randread")).To(Succeed())
		Expect(alone.stop(ctx)).To(Succeed())

		// The lab's kernel has no tracepoints: what an image fails is counted where it is a disk of
		// SCSI. Of others nobody knows, so that the old node keeps no cache.
		through.tellMove(ctx, "after a move without the old node's cache")
		Expect(through.stop(ctx)).To(Succeed())
		scsi, err := s.originClass(ctx, cephRBD, "scsi", cephSCSI)
		Expect(err).NotTo(HaveOccurred())
		for _, method := range []v1alpha1.WarmStartMethod{v1alpha1.WarmStartClone, v1alpha1.WarmStartStream} {
			scsi.parameters = maps.Clone(scsi.parameters)
			scsi.parameters["warmStartMethod"] = string(method)
			v := s.warmOver(ctx, scsi, string(method), v1alpha1.CacheModeWritethrough)
			Expect(v.tell(ctx, "as a disk of SCSI, cached, read", "randread")).To(Succeed())
			v.tellMove(ctx, fmt.Sprintf("as a disk of SCSI, after a warm move by %s", method))
			cm, err := v.awaitMoved(ctx, 2)
			Expect(err).NotTo(HaveOccurred())
			Expect(cm.Spec.SourceNode).To(Equal(nodeA))
			Expect(v.stop(ctx)).To(Succeed())
		}
	}, NodeTimeout(30*time.Minute))
})

// tellMove moves a volume to node B and prints what each of the first seconds there is like.
func (v *vol) tellMove(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(v.restart(ctx, nodeB)).To(Succeed())
	for second := range 5 {
		f, err := v.measure(ctx, "randread", 16, 1)
		Expect(err).NotTo(HaveOccurred())
		say("| %s, second %d | %.0f | %.0f | %.0f | %.3f |", name, second+1, f.iops, f.p50, f.p99, f.hits)
	}
}

// warmOver returns a running volume on node A whose working set is in its cache.
func (s *space) warmOver(ctx context.Context, o originDriver, name string, mode v1alpha1.CacheMode) *vol {
	GinkgoHelper()
	v, err := s.cachedOrigin(ctx, o, volumeSpec{name: name, mode: mode, kind: block, cacheSize: "256Mi"}, nodeA)
	Expect(err).NotTo(HaveOccurred())
	Expect(v.fill(ctx)).To(Succeed())
	Expect(cluster.AwaitEvery(ctx, time.Millisecond, 2*late, func(ctx context.Context) (string, error) {
		// Each chunk is read as a whole, so that a round touches all of them.
		if _, err := v.run(ctx, v.fio("randread", 8)+" --bs=128k --minimal >/dev/null"); err != nil {
			return "", err
		}
		f, err := v.measure(ctx, "randread", 16, 1)
		if err == nil && f.hits < 0.99 {
			return fmt.Sprintf("hit ratio %.3f", f.hits), nil
		}
		return "", err
	})).To(Succeed())
	return v
}

func (v *vol) fio(kind string, depth int) string {
	return fmt.Sprintf("fio --name=%s --filename=%s --size=%dm --rw=%s --direct=1 --ioengine=libaio --iodepth=%d", kind, v.path(), benchSet, kind, depth)
}

// fill writes the working set: what was never written Ceph answers without reading anything.
func (v *vol) fill(ctx context.Context) error {
	_, err := v.run(ctx, v.fio("write", 4)+" --bs=1m --end_fsync=1 --minimal >/dev/null")
	return err
}

// fioFigures are those of a measurement: latencies in microseconds, hits as a fraction of 1.
type fioFigures struct{ iops, p50, p99, hits float64 }

// measure reads or writes blocks of 4 KiB at random for some seconds. Hits are those of
// reads; a volume without a cache has none.
func (v *vol) measure(ctx context.Context, kind string, depth, seconds int) (fioFigures, error) {
	read := func() (hoststate.Counters, error) {
		if strings.HasPrefix(v.Handle, image("")) {
			return hoststate.Counters{}, nil
		}
		return hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
	}
	before, err := read()
	if err != nil {
		return fioFigures{}, err
	}
	out, err := v.run(ctx, v.fio(kind, depth)+" --bs=4k --norandommap --randrepeat=0 --time_based --percentile_list=50:99 --output-format=json --runtime="+strconv.Itoa(seconds))
	if err != nil {
		return fioFigures{}, err
	}
	after, err := read()
	if err != nil {
		return fioFigures{}, err
	}
	f, err := parseFio(out)
	f.hits = after.Sub(before).ReadHitRate()
	return f, err
}

// tell prints a line of results: the rate with 16 requests under way, latencies with one.
func (v *vol) tell(ctx context.Context, name, kind string) error {
	deep, err := v.measure(ctx, kind, 16, 4)
	if err != nil {
		return err
	}
	one, err := v.measure(ctx, kind, 1, 4)
	if err == nil {
		say("| %s | %.0f | %.0f | %.0f | %.3f |", name, deep.iops, one.p50, one.p99, deep.hits)
	}
	return err
}

// parseFio reads the result of one job (fio(1), "JSON output").
func parseFio(out string) (fioFigures, error) {
	type direction struct {
		IOPS    float64 `json:"iops"`
		Latency struct {
			Percentile map[string]float64 `json:"percentile"`
		} `json:"clat_ns"`
	}
	var report struct {
		Jobs []struct {
			Read  direction `json:"read"`
			Write direction `json:"write"`
		} `json:"jobs"`
	}
	// It says before that which caches it may not drop.
	out = out[max(0, strings.Index(out, "{")):]
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Jobs) != 1 {
		return fioFigures{}, fmt.Errorf("not the result of one fio job (%w): %.200s", err, out)
	}
	d := report.Jobs[0].Read
	if d.IOPS == 0 {
		d = report.Jobs[0].Write
	}
	if d.IOPS == 0 || len(d.Latency.Percentile) != 2 {
		return fioFigures{}, fmt.Errorf("fio did nothing: %.200s", out)
	}
	return fioFigures{iops: d.IOPS, p50: d.Latency.Percentile["50.000000"] / 1000, p99: d.Latency.Percentile["99.000000"] / 1000}, nil
}
