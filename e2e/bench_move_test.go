//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// Measurements of warm moves, for docs/benchmarks.md. They take long: LABELS=bench.
var _ = Describe("A warm move, measured", Label("bench", "slow", "lab"), Serial, func() {
	for _, mib := range []int{64, 256, 1024} {
		It(fmt.Sprintf("keeps the hit ratio of a cache of %d MiB", mib), func(ctx SpecContext) {
			s := newSpace(ctx)
			warm, err := measureMove(ctx, s, "warm", "peer", mib)
			Expect(err).NotTo(HaveOccurred())
			cold, err := measureMove(ctx, s, "cold", "off", mib)
			Expect(err).NotTo(HaveOccurred())
			say("| %d MiB | %.3f | %.3f | %.3f | %s | %s |", mib, warm.before, warm.first/warm.before, cold.first/cold.before, warm.until(), cold.until())
			say("curve %d MiB warm: %v", mib, warm.curve)
			say("curve %d MiB cold: %v", mib, cold.curve)
			Expect(warm.first / warm.before).To(BeNumerically(">=", 0.95))
		}, NodeTimeout(20*time.Minute))
	}

	for _, mib := range []int{64, 256, 1024} {
		It(fmt.Sprintf("adds little to the time from the pod's deletion to its first byte, %d MiB", mib), func(ctx SpecContext) {
			s := newSpace(ctx)
			warm, cold, err := attachTimes(ctx, s, mib, 7)
			Expect(err).NotTo(HaveOccurred())
			say("| %d MiB | %s | %s | %s | %s |", mib, median(cold.total), median(warm.total), median(cold.stage), median(warm.stage))
			say("%d MiB, deletion to first byte: cold %v, warm %v", mib, cold.total, warm.total)
		}, NodeTimeout(20*time.Minute))
	}

	It("copies at the network's rate", func(ctx SpecContext) {
		s := newSpace(ctx)
		network, err := networkRate(ctx, nodeA, nodeB)
		Expect(err).NotTo(HaveOccurred())
		v, err := warmed(ctx, s, "rate", 256, map[string]string{"warmStart": "peer", "warmStartBandwidth": "100Gi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		cm, err := v.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		took := cm.Status.CompletionTime.Sub(cm.Status.StartTime.Time)
		say("network %.1f MiB/s; move without a limit: %d bytes, %s, %s", network, ptr.Deref(cm.Status.Progress.TotalBytes, 0), took, cm.Status.OutcomeMessage)
		Expect(v.stop(ctx)).To(Succeed())

		// What a plain read of the same device reaches while hardly anything is copied.
		slow, err := warmed(ctx, s, "slow", 256, slowly)
		Expect(err).NotTo(HaveOccurred())
		Expect(slow.restart(ctx, nodeB)).To(Succeed())
		for range 3 {
			rate, err := readRate(ctx, nodeB, hoststate.TopDevice(slow.Handle)+".source", 64)
			Expect(err).NotTo(HaveOccurred())
			copied, err := copyRate(ctx, nodeB, hoststate.TopDevice(slow.Handle)+".source", 64)
			Expect(err).NotTo(HaveOccurred())
			say("plain read of the exported device: %.1f MiB/s; dd of it to the SSD: %.1f MiB/s", rate, copied)
		}
		Expect(slow.stop(ctx)).To(Succeed())
	}, NodeTimeout(20*time.Minute))

	It("takes little from the foreground", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := warmed(ctx, s, "foreground", 1024, nil)
		Expect(err).NotTo(HaveOccurred())
		var before, beside, after []float64
		nodes := []string{nodeB, nodeA}
		for i := range 5 {
			generation := int64(i) + 2
			p99, err := v.p99(ctx, 6)
			Expect(err).NotTo(HaveOccurred())
			before = append(before, p99)
			Expect(v.restart(ctx, nodes[i%2])).To(Succeed())
			Expect(v.awaitCopying(ctx)).To(Succeed())
			from, err := v.hydrated(ctx)
			Expect(err).NotTo(HaveOccurred())
			p99, err = v.p99(ctx, 6)
			Expect(err).NotTo(HaveOccurred())
			beside = append(beside, p99)
			to, err := v.hydrated(ctx)
			Expect(err).NotTo(HaveOccurred(), "the copy was over before the reads were")
			Expect(to).To(BeNumerically(">", from), "nothing was copied beside the reads")
			_, err = v.awaitMoved(ctx, generation)
			Expect(err).NotTo(HaveOccurred())
			p99, err = v.p99(ctx, 6)
			Expect(err).NotTo(HaveOccurred())
			after = append(after, p99)
			say("foreground p99: before the move %.0f us, beside the copy %.0f us (%.1f%% of the cache was copied meanwhile), after it %.0f us", before[i], beside[i], 100*(to-from), after[i])
		}
		for _, p := range [][]float64{before, beside, after} {
			slices.Sort(p)
		}
		say("foreground p99, medians: before %.0f us, beside the copy %.0f us, after it %.0f us", before[2], beside[2], after[2])
		Expect(v.stop(ctx)).To(Succeed())

		// The same reads while hardly anything is copied: what the copy itself takes is the
		// difference between this and beside it.
		apart, err := warmed(ctx, s, "apart", 1024, slowly)
		Expect(err).NotTo(HaveOccurred())
		Expect(apart.restart(ctx, nodeB)).To(Succeed())
		from, err := apart.hydrated(ctx)
		Expect(err).NotTo(HaveOccurred())
		p99, err := apart.p99(ctx, 6)
		Expect(err).NotTo(HaveOccurred())
		to, err := apart.hydrated(ctx)
		Expect(err).NotTo(HaveOccurred())
		say("foreground p99 without a copy: %.0f us (%.1f%% of the cache was copied meanwhile)", p99, 100*(to-from))
		Expect(apart.stop(ctx)).To(Succeed())
	}, NodeTimeout(30*time.Minute))

	It("survives the death of its source at any moment", func(ctx SpecContext) {
		s := newSpace(ctx)
		// The load writes from 64 MiB to the end; what is before it never changes.
		const still, all = 64, 96
		v, err := warmed(ctx, s, "deaths", all, map[string]string{"warmStart": "peer", "warmStartBandwidth": "8Mi"})
		Expect(err).NotTo(HaveOccurred())
		want, err := v.checksum(ctx, 0, still)
		Expect(err).NotTo(HaveOccurred())
		written, err := v.checksum(ctx, still, all-still)
		Expect(err).NotTo(HaveOccurred())
		var pauses []time.Duration
		nodes := []string{nodeA, nodeB}
		const deaths = 50
		for i := range deaths {
			from, to := nodes[i%2], nodes[(i+1)%2]
			Expect(v.restart(ctx, to)).To(Succeed())
			Expect(v.verify(ctx, still, all-still, written)).To(Succeed(), "death %d, before it", i)
			load := v.beginLoad(ctx)
			time.Sleep(time.Duration(rand.Int64N(int64(8 * time.Second))))
			copied, err := v.hydrated(ctx)
			Expect(err).NotTo(HaveOccurred(), "death %d: nothing is being copied any more", i)
			kill := i%10 == 9
			if kill {
				Expect(powerOff(ctx, from)).To(Succeed())
			} else {
				Expect(k.Lab.Cut(ctx, from, to)).To(Succeed())
			}
			pause, err := load()
			Expect(err).NotTo(HaveOccurred(), "death %d", i)
			pauses = append(pauses, pause)
			Expect(v.verify(ctx, 0, still, want)).To(Succeed(), "death %d", i)
			written, err = v.checksum(ctx, still, all-still)
			Expect(err).NotTo(HaveOccurred())
			if kill {
				Expect(k.Lab.Start(ctx, from)).To(Succeed())
				Expect(k.AwaitDriver(ctx, late)).To(Succeed())
			} else {
				Expect(k.Lab.Heal(ctx)).To(Succeed())
			}
			cm, err := v.awaitMoved(ctx, int64(i)+2)
			Expect(err).NotTo(HaveOccurred())
			say("death %d, %.0f%% copied: longest I/O %s, then served from %s: %s", i, 100*copied, pause, cm.Status.Progress.ServedFrom, cm.Status.OutcomeMessage)
			Expect(v.warmUp(ctx)).To(Succeed())
		}
		slices.Sort(pauses)
		say("%d deaths, longest I/O: median %s, maximum %s", deaths, pauses[deaths/2], pauses[deaths-1])
	}, NodeTimeout(90*time.Minute))
})

// say prints a line of a result, also when the suite is not verbose.
func say(format string, args ...any) { fmt.Printf("BENCH "+format+"\n", args...) }

// warmed returns a running volume on node A whose whole cache is warm.
func warmed(ctx context.Context, s *space, name string, mib int, parameters map[string]string) (*vol, error) {
	v, err := s.volume(ctx, volumeSpec{
		name: name, mode: v1alpha1.CacheModeWritethrough, kind: block, size: strconv.Itoa(mib) + "Mi", cacheSize: "100%", parameters: parameters,
	})
	if err != nil {
		return nil, err
	}
	if err := v.start(ctx, nodeA); err != nil {
		return nil, err
	}
	if err := v.fillWhole(ctx); err != nil {
		return nil, err
	}
	return v, cluster.AwaitEvery(ctx, time.Millisecond, 10*time.Minute, func(ctx context.Context) (string, error) {
		// Each chunk is read as a whole, so that a round touches all of them.
		if _, err := v.run(ctx, "fio --name=warm --filename="+cluster.DevicePath+" --rw=randread --bs=128k --direct=1 --ioengine=libaio --iodepth=8 --minimal >/dev/null"); err != nil {
			return "", err
		}
		rate, err := v.second(ctx)
		if err == nil && rate < 0.97 {
			return fmt.Sprintf("hit ratio %.3f", rate), nil
		}
		return "", err
	})
}

// second reads all of the volume at random for a second and returns the hit ratio.
func (v *vol) second(ctx context.Context) (float64, error) {
	before, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	_, err = v.run(ctx, "fio --name=read --filename="+cluster.DevicePath+" --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=16 "+
		"--norandommap --randrepeat=0 --time_based --runtime=1 --minimal >/dev/null")
	if err != nil {
		return 0, err
	}
	after, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
	return after.Sub(before).ReadHitRate(), err
}

type moveResult struct {
	before, first float64
	curve         []float64
	// level is how many measurements it took to be within 5 points of before.
	level int
}

func (r moveResult) until() string {
	if r.level < 0 {
		return fmt.Sprintf("more than %d s", len(r.curve))
	}
	return fmt.Sprintf("%d s", r.level)
}

// measureMove moves a warm volume and measures the hit ratio second by second. The
// twin that never moved is the same volume before it moved.
func measureMove(ctx context.Context, s *space, name, from string, mib int) (moveResult, error) {
	r := moveResult{level: -1}
	v, err := warmed(ctx, s, name, mib, map[string]string{"warmStart": from})
	if err != nil {
		return r, err
	}
	if r.before, err = v.second(ctx); err != nil {
		return r, err
	}
	if err := v.restart(ctx, nodeB); err != nil {
		return r, err
	}
	for i := range 60 {
		rate, err := v.second(ctx)
		if err != nil {
			return r, err
		}
		r.curve = append(r.curve, float64(int(rate*1000))/1000)
		if i == 0 {
			r.first = rate
		}
		if rate >= r.before-0.05 {
			r.level = i
			break
		}
	}
	return r, v.stop(ctx)
}

// hydrated returns which part of the cache that is being filled is there, by the kernel's
// own count (Documentation/admin-guide/device-mapper/dm-clone.rst, "Status").
func (v *vol) hydrated(ctx context.Context) (float64, error) {
	out, err := k.Host.Run(ctx, v.node, "dmsetup status nf-"+v.Handle+".data")
	if err != nil {
		return 0, err
	}
	f := strings.Fields(out)
	if len(f) < 7 || f[2] != "clone" {
		return 0, fmt.Errorf("the data device of volume %s is no clone: %s", v.Handle, out)
	}
	var done, total float64
	if _, err := fmt.Sscanf(f[6], "%f/%f", &done, &total); err != nil || total == 0 {
		return 0, fmt.Errorf("status of a clone: %q", out)
	}
	return done / total, nil
}

// awaitCopying waits until the copy has begun, which lets the pod's start go first.
func (v *vol) awaitCopying(ctx context.Context) error {
	first, err := v.hydrated(ctx)
	if err != nil {
		return err
	}
	return cluster.AwaitEvery(ctx, 100*time.Millisecond, late, func(ctx context.Context) (string, error) {
		now, err := v.hydrated(ctx)
		if err == nil && now <= first {
			return fmt.Sprintf("%.1f%% are copied", 100*now), nil
		}
		return "", err
	})
}

type times struct{ total, stage []time.Duration }

// attachTimes measures moves: from the deletion of the pod to the first byte, and
// what the node plugin's stage takes of it. A volume that moves with its cache and one
// that starts cold take turns, so that both meet the same machine.
func attachTimes(ctx context.Context, s *space, mib, n int) (warm, cold times, err error) {
	w, err := warmed(ctx, s, fmt.Sprintf("time-warm-%d", mib), mib, map[string]string{"warmStart": "peer", "warmStartBandwidth": "100Gi"})
	if err != nil {
		return warm, cold, err
	}
	c, err := warmed(ctx, s, fmt.Sprintf("time-cold-%d", mib), mib, map[string]string{"warmStart": "off"})
	if err != nil {
		return warm, cold, err
	}
	nodes := []string{nodeB, nodeA}
	for i := range n {
		if err := c.timedMove(ctx, nodes[i%2], &cold); err != nil {
			return warm, cold, err
		}
		if err := w.timedMove(ctx, nodes[i%2], &warm); err != nil {
			return warm, cold, err
		}
		if _, err := w.awaitMoved(ctx, int64(i)+2); err != nil {
			return warm, cold, err
		}
	}
	if err := c.stop(ctx); err != nil {
		return warm, cold, err
	}
	return warm, cold, w.stop(ctx)
}

func (v *vol) timedMove(ctx context.Context, to string, t *times) error {
	began := time.Now()
	if err := v.restart(ctx, to); err != nil {
		return err
	}
	if _, err := v.run(ctx, "dd if="+cluster.DevicePath+" of=/dev/null bs=4k count=1 iflag=direct status=none"); err != nil {
		return err
	}
	t.total = append(t.total, time.Since(began))
	stage, err := v.stageTime(ctx)
	t.stage = append(t.stage, stage)
	return err
}

// stageTime is how long the node plugin took for the volume's last stage, from its
// log: from the request to the response.
func (v *vol) stageTime(ctx context.Context) (time.Duration, error) {
	plugin, err := k.NodePlugin(ctx, v.node)
	if err != nil {
		return 0, err
	}
	log, err := k.Clients.CoreV1().Pods(plugin.Namespace).GetLogs(plugin.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	took := time.Duration(0)
	for line := range strings.Lines(string(log)) {
		if !strings.Contains(line, "NodeStageVolume") || !strings.Contains(line, v.Handle) {
			continue
		}
		if _, rest, ok := strings.Cut(line, `duration="`); ok {
			text, _, _ := strings.Cut(rest, `"`)
			if d, err := time.ParseDuration(text); err == nil {
				took = d
			}
		}
	}
	if took == 0 {
		return 0, fmt.Errorf("the log of %s shows no stage of volume %s", plugin.Name, v.Handle)
	}
	return took, nil
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2].Round(time.Millisecond)
}

// p99 reads at random at a moderate rate and returns the 99th percentile of the
// latency in microseconds.
func (v *vol) p99(ctx context.Context, seconds int) (float64, error) {
	out, err := v.run(ctx, fmt.Sprintf("fio --name=read --filename=%s --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=4 --rate_iops=1000 "+
		"--norandommap --randrepeat=0 --time_based --runtime=%d --percentile_list=99 --output-format=json", cluster.DevicePath, seconds))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(out, `"99.000000" : `)
	if !ok {
		return 0, fmt.Errorf("fio printed no percentile: %.200s", out)
	}
	ns, err := strconv.ParseFloat(strings.TrimSpace(rest[:strings.IndexAny(rest, ",\n}")]), 64)
	return ns / 1000, err
}

// readRate reads a device of a node from its beginning, past every cache, in MiB/s.
func readRate(ctx context.Context, node, device string, mib int) (float64, error) {
	return timedCopy(ctx, node, "of=/dev/null", device, mib)
}

// copyRate is readRate with the bytes written to a new logical volume of the node's SSD:
// what a copy of one piece after the other reaches.
func copyRate(ctx context.Context, node, device string, mib int) (float64, error) {
	const name = "bench-copy"
	vg, err := k.Host.Run(ctx, node, "vgs --noheadings -o vg_name | tr -d ' ' | grep ^nearflash-")
	if err != nil {
		return 0, err
	}
	vg = strings.TrimSpace(vg)
	if _, err := k.Host.Run(ctx, node, fmt.Sprintf("lvcreate --yes --wipesignatures n --zero n --name %s --size %dM %s", name, mib, vg)); err != nil {
		return 0, err
	}
	rate, err := timedCopy(ctx, node, fmt.Sprintf("of=/dev/%s/%s oflag=direct", vg, name), device, mib)
	_, rmErr := k.Host.Run(context.WithoutCancel(ctx), node, fmt.Sprintf("lvremove --yes %s/%s", vg, name))
	return rate, errors.Join(err, rmErr)
}

// timedCopy copies the beginning of a device with dd(1), in MiB/s.
func timedCopy(ctx context.Context, node, output, device string, mib int) (float64, error) {
	out, err := k.Host.Run(ctx, node, fmt.Sprintf("set -e; a=$(cut -d' ' -f1 /proc/uptime); dd if=/dev/mapper/%s %s bs=1M count=%d iflag=direct 2>/dev/null; "+
		"b=$(cut -d' ' -f1 /proc/uptime); echo \"$a $b\"", device, output, mib))
	if err != nil {
		return 0, err
	}
	var from, to float64
	if _, err := fmt.Sscan(out, &from, &to); err != nil || to <= from {
		return 0, fmt.Errorf("times %q: %w", out, err)
	}
	return float64(mib) / (to - from), nil
}

// networkRate sends bytes from one node to another over TCP, in MiB/s.
func networkRate(ctx context.Context, from, to string) (float64, error) {
	const port, mib = 5599, 256
	plugin, err := k.NodePlugin(ctx, from)
	if err != nil {
		return 0, err
	}
	go func() {
		_, _ = k.Host.Run(ctx, from, fmt.Sprintf(`perl -MIO::Socket::INET -e '
my $s = IO::Socket::INET->new(LocalPort=>%d, Listen=>1, ReuseAddr=>1) or die; my $c = $s->accept; my $b = "x" x 1048576;
for (1..%d) { my $o = 0; while ($o < length $b) { my $n = syswrite($c, $b, length($b)-$o, $o) or die; $o += $n } }'`, port, mib))
	}()
	out, err := k.Host.Run(ctx, to, fmt.Sprintf(`perl -MIO::Socket::INET -e '
sub now { open(my $f, "<", "/proc/uptime") or die; return (split(" ", <$f>))[0] }
my $c; for (1..50) { $c = IO::Socket::INET->new(PeerAddr=>"%s", PeerPort=>%d) and last; select undef,undef,undef,0.1 } $c or die;
my ($t, $n, $b) = (now(), 0); while (my $r = sysread($c, $b, 1048576)) { $n += $r } printf "%%.2f", $n/1048576/(now()-$t)'`, plugin.Status.HostIP, port))
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(out), 64)
}
