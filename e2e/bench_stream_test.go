//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// Measurements of streams beside clones, for docs/benchmarks.md: LABELS='bench && streams'.
var _ = Describe("A move by each method, measured", Label("bench", "streams", "slow", "lab"), Serial, func() {
	unlimited := func(method string) map[string]string {
		return map[string]string{"warmStart": "peer", "warmStartMethod": method, "warmStartBandwidth": "100Gi"}
	}

	It("copies at the network's rate", func(ctx SpecContext) {
		s := newSpace(ctx)
		// TCP varies more than what it is compared with: it is measured before each move and after it.
		for _, method := range []string{"stream", "clone"} {
			v, err := warmed(ctx, s, "rate-"+method, 1024, unlimited(method))
			Expect(err).NotTo(HaveOccurred())
			var parts []float64
			for i, node := range []string{nodeB, nodeA, nodeB} {
				from := []string{nodeA, nodeB}[i%2]
				before, err := networkRate(ctx, from, node)
				Expect(err).NotTo(HaveOccurred())
				Expect(v.restart(ctx, node)).To(Succeed())
				cm, err := v.awaitMoved(ctx, int64(i)+2)
				Expect(err).NotTo(HaveOccurred())
				after, err := networkRate(ctx, from, node)
				Expect(err).NotTo(HaveOccurred())
				_, took, _ := strings.Cut(cm.Status.OutcomeMessage, ", ")
				d, err := time.ParseDuration(took)
				Expect(err).NotTo(HaveOccurred(), cm.Status.OutcomeMessage)
				rate := 1024 / d.Seconds()
				parts = append(parts, 100*rate/((before+after)/2))
				say("network %.1f MiB/s before, %.1f MiB/s after; %s of 1 GiB without a limit in %s: %.1f MiB/s, %.0f %%", before, after, method, d, rate, parts[i])
			}
			say("rate of a %s: %.0f %% of that of TCP, mean of %d moves", method, mean(parts), len(parts))
			Expect(v.stop(ctx)).To(Succeed())
		}
	}, NodeTimeout(20*time.Minute))

	// The lines that begin with "curve" are those of docs/move-hit-ratio.csv.
	It("has the hot part serve soon", func(ctx SpecContext) {
		s := newSpace(ctx)
		for _, m := range []struct {
			name       string
			parameters map[string]string
		}{
			{"clone", map[string]string{"warmStart": "peer", "warmStartMethod": "clone"}},
			{"stream", map[string]string{"warmStart": "peer", "warmStartMethod": "stream"}},
			{"hot set", map[string]string{"warmStart": "origin"}},
			{"cold", map[string]string{"warmStart": "off"}},
		} {
			before, curve, err := zipfianMove(ctx, s, m.name, m.parameters)
			Expect(err).NotTo(HaveOccurred())
			say("zipfian reads (theta 1.1) of 1 GiB, %s: before the move %.3f", m.name, before)
			for _, p := range curve {
				say("curve %s,%.1f,%.3f", m.name, p.second, p.part)
			}
		}
	}, NodeTimeout(50*time.Minute))

	It("does not keep the pod waiting", func(ctx SpecContext) {
		s := newSpace(ctx)
		tellStarts(ctx, func(name string, parameters map[string]string) *vol {
			v, err := warmed(ctx, s, name, 64, parameters)
			Expect(err).NotTo(HaveOccurred())
			return v
		})
	}, NodeTimeout(40*time.Minute))

	// A login by iSCSI may take a second or not, and more often does where a stage is prepared
	// (docs/benchmarks.md, Streams).
	It("does not keep the pod waiting, over a disk that no login brings", Label("origin"), func(ctx SpecContext) {
		s := newSpace(ctx)
		tellStarts(ctx, func(name string, parameters map[string]string) *vol {
			v, err := s.cachedOrigin(ctx, originDriver{class: pd.class, parameters: parameters},
				volumeSpec{name: name, mode: v1alpha1.CacheModeWritethrough, kind: block, cacheSize: "64Mi"}, nodeA)
			Expect(err).NotTo(HaveOccurred())
			v.warm(ctx)
			return v
		})
	}, NodeTimeout(40*time.Minute))

	It("takes little from the foreground", func(ctx SpecContext) {
		s := newSpace(ctx)
		beside, err := warmed(ctx, s, "beside", 1024, map[string]string{"warmStart": "peer", "warmStartMethod": "stream"})
		Expect(err).NotTo(HaveOccurred())
		cold, err := warmed(ctx, s, "apart", 1024, map[string]string{"warmStart": "off"})
		Expect(err).NotTo(HaveOccurred())
		Expect(beside.stop(ctx)).To(Succeed())
		Expect(cold.stop(ctx)).To(Succeed())
		var with, without []float64
		for i := range 5 {
			node := []string{nodeB, nodeA}[i%2]
			Expect(cold.start(ctx, node)).To(Succeed())
			p99, err := cold.p99(ctx, 6)
			Expect(err).NotTo(HaveOccurred())
			without = append(without, p99)
			Expect(cold.stop(ctx)).To(Succeed())
			Expect(beside.start(ctx, node)).To(Succeed())
			from, err := beside.filled(ctx)
			Expect(err).NotTo(HaveOccurred())
			p99, err = beside.p99(ctx, 6)
			Expect(err).NotTo(HaveOccurred())
			to, err := beside.filled(ctx)
			Expect(err).NotTo(HaveOccurred())
			with = append(with, p99)
			say("p99 of reads: cold volume beside nothing %.0f us; beside a stream %.0f us, of which %.0f MiB came at %.1f MiB/s",
				without[i], with[i], to.mib-from.mib, (to.mib-from.mib)/(to.at-from.at))
			_, err = beside.awaitMoved(ctx, int64(i)+2)
			Expect(err).NotTo(HaveOccurred())
			Expect(beside.stop(ctx)).To(Succeed())
		}
		say("p99 of reads, medians: cold volume beside nothing %.0f us, beside a stream %.0f us", middle(without), middle(with))
	}, NodeTimeout(40*time.Minute))
})

// tellStarts moves two volumes to and fro, twenty times each, and says how long their pods took to start.
// The cache of one follows by stream, the other begins cold. begin makes one, which runs with a warm cache.
func tellStarts(ctx context.Context, begin func(name string, parameters map[string]string) *vol) {
	GinkgoHelper()
	volumes, starts := map[string]*vol{}, map[string][]float64{}
	for name, parameters := range map[string]map[string]string{
		"stream": {"warmStart": "peer", "warmStartMethod": "stream"}, "cold": {"warmStart": "off"},
	} {
		volumes[name] = begin("start-"+name, parameters)
		Expect(volumes[name].stop(ctx)).To(Succeed())
	}
	for i := range 20 {
		for name, v := range volumes {
			began := time.Now()
			Expect(v.start(ctx, []string{nodeB, nodeA}[i%2])).To(Succeed())
			starts[name] = append(starts[name], time.Since(began).Seconds())
			say("start of the pod, %s: %.1f s", name, starts[name][i])
			if name == "stream" {
				_, err := v.awaitMoved(ctx, int64(i)+2)
				Expect(err).NotTo(HaveOccurred())
			}
			Expect(v.stop(ctx)).To(Succeed())
		}
	}
	for name, all := range starts {
		say("start of the pod after a move, %s: mean of %d %.2f s, median %.2f s, standard error %.2f s", name, len(all), mean(all), middle(all), deviation(all)/math.Sqrt(float64(len(all))))
	}
}

// deviation is the standard deviation of a sample.
func deviation(all []float64) float64 {
	sum, m := 0.0, mean(all)
	for _, f := range all {
		sum += (f - m) * (f - m)
	}
	return math.Sqrt(sum / float64(len(all)-1))
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, f := range all {
		sum += f
	}
	return sum / float64(len(all))
}

func middle(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

// filled is what was written to the SSD for a volume, at a time of its node in seconds.
type filled struct{ at, mib float64 }

// filled reads how much was written to the logical volume of a cache's data since it was made: by a
// copy, as long as the cache takes in nothing itself.
func (v *vol) filled(ctx context.Context) (f filled, err error) {
	out, err := k.Host.Run(ctx, v.node, fmt.Sprintf(
		`for d in /sys/block/dm-*; do read -r n <$d/dm/name; case $n in nf-*) ;; *-%s.data) read -r _ _ _ _ _ _ s _ <$d/stat; read -r t _ </proc/uptime; echo "$t $s";; esac; done`,
		strings.ReplaceAll(v.Handle, "-", "--")))
	if err != nil {
		return f, err
	}
	if _, err := fmt.Sscan(out, &f.at, &f.mib); err != nil {
		return f, fmt.Errorf("writes to the cache of volume %s: %q: %w", v.Handle, out, err)
	}
	f.mib /= 2048
	return f, nil
}

// served is the part of reads that did not reach the origin, in a second since the pod's start.
type served struct{ second, part float64 }

// zipfianMove moves a volume that zipfian reads have made warm, and returns the part of them that
// did not reach the origin: before, and in the two minutes after.
func zipfianMove(ctx context.Context, s *space, name string, parameters map[string]string) (before float64, curve []served, err error) {
	v, err := warmed(ctx, s, "zipf-"+strings.ReplaceAll(name, " ", "-"), 1024, parameters)
	if err != nil {
		return 0, nil, err
	}
	// The cache learns which of its chunks are hot; a hot set is written after two minutes.
	if _, err = v.zipfian(ctx, 130); err != nil {
		return 0, nil, err
	}
	if before, err = v.zipfian(ctx, 10); err != nil {
		return 0, nil, err
	}
	if err := v.restart(ctx, nodeB); err != nil {
		return 0, nil, err
	}
	began := time.Now()
	for time.Since(began) < 2*time.Minute {
		p := served{second: time.Since(began).Seconds()}
		if p.part, err = v.zipfian(ctx, 1); err != nil {
			return 0, nil, err
		}
		curve = append(curve, p)
	}
	return before, curve, v.stop(ctx)
}

// zipfian reads for some seconds, each time with the same blocks as the hottest, and returns the part that did not reach the origin.
func (v *vol) zipfian(ctx context.Context, seconds int) (float64, error) {
	before, err := hoststate.CountReads(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	_, err = v.run(ctx, fmt.Sprintf("fio --name=zipf --filename=%s --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=4 "+
		"--random_distribution=zipf:1.1:0.3 --norandommap --randrepeat=0 --time_based --runtime=%d --minimal >/dev/null", cluster.DevicePath, seconds))
	if err != nil {
		return 0, err
	}
	after, err := hoststate.CountReads(ctx, k.Host, v.node, v.Handle)
	return after.Sub(before).HitRate(), err
}
