//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// Measurements of streams beside clones, for docs/benchmarks.md: LABELS='bench && streams'.
var _ = Describe("A move by each method, measured", Label("bench", "streams", "slow", "lab"), Serial, func() {
	It("copies at the network's rate", func(ctx SpecContext) {
		s := newSpace(ctx)
		for _, method := range []string{"clone", "stream"} {
			network, err := networkRate(ctx)
			Expect(err).NotTo(HaveOccurred())
			v, err := warmed(ctx, s, "rate-"+method, 256, map[string]string{"warmStart": "peer", "warmStartMethod": method, "warmStartBandwidth": "100Gi"})
			Expect(err).NotTo(HaveOccurred())
			Expect(v.restart(ctx, nodeB)).To(Succeed())
			cm, err := v.awaitMoved(ctx, 2)
			Expect(err).NotTo(HaveOccurred())
			say("network %.1f MiB/s; %s without a limit: %d bytes, %s", network, method, ptr.Deref(cm.Status.Progress.TotalBytes, 0), cm.Status.OutcomeMessage)
			Expect(v.stop(ctx)).To(Succeed())
		}
	}, NodeTimeout(20*time.Minute))

	It("has the hot part serve soon", func(ctx SpecContext) {
		s := newSpace(ctx)
		for name, parameters := range map[string]map[string]string{
			"clone":  {"warmStart": "peer", "warmStartMethod": "clone"},
			"stream": {"warmStart": "peer", "warmStartMethod": "stream"},
			"cold":   {"warmStart": "off"},
		} {
			curve, err := zipfianMove(ctx, s, name, parameters)
			Expect(err).NotTo(HaveOccurred())
			say("zipfian reads (theta 1.1) of 256 MiB, %s: before %.3f, then second by second %v", name, curve[0], curve[1:])
		}
	}, NodeTimeout(20*time.Minute))
})

// zipfianMove moves a warm volume whose reads are zipfian, and returns the part of them that
// did not reach the origin: before, and second by second after.
func zipfianMove(ctx context.Context, s *space, name string, parameters map[string]string) ([]float64, error) {
	v, err := warmed(ctx, s, "zipf-"+name, 256, parameters)
	if err != nil {
		return nil, err
	}
	before, err := v.zipfian(ctx, 10)
	if err != nil {
		return nil, err
	}
	if err := v.restart(ctx, nodeB); err != nil {
		return nil, err
	}
	curve := []float64{before}
	for range 15 {
		rate, err := v.zipfian(ctx, 1)
		if err != nil {
			return nil, err
		}
		curve = append(curve, float64(int(rate*1000))/1000)
	}
	return curve, v.stop(ctx)
}

// zipfian reads for some seconds and returns the part that did not reach the origin.
func (v *vol) zipfian(ctx context.Context, seconds int) (float64, error) {
	before, err := hoststate.CountReads(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	_, err = v.run(ctx, fmt.Sprintf("fio --name=zipf --filename=%s --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=4 "+
		"--random_distribution=zipf:1.1 --norandommap --randrepeat=0 --time_based --runtime=%d --minimal >/dev/null", cluster.DevicePath, seconds))
	if err != nil {
		return 0, err
	}
	after, err := hoststate.CountReads(ctx, k.Host, v.node, v.Handle)
	return after.Sub(before).HitRate(), err
}
