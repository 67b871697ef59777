//go:build e2e

package e2e

import (
	"context"
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/nearflash/nearflash/e2e/checker"
)

// labDisastersOver are the kinds of disaster of volumes over disks of another CSI driver: two of its
// own, and those of the others that do not need the storage server, snapshots, or a cluster of before,
// to which the other driver's cloud does not go back.
func labDisastersOver() map[string]labDisaster {
	out := map[string]labDisaster{
		"other driver's controller killed, move": {false, originLost("controller"), checker.LossNothing},
		"other driver's attacher killed, move":   {false, originLost("attacher"), checker.LossNothing},
		"other driver's node plugin killed":      {true, killProcess("csi-driver"), checker.LossNothing},
	}
	for _, kind := range []string{
		"node killed under load", "node plugin killed", "node plugin killed in unstage", "node plugin killed in stage", "controller killed, move",
		"move", "node killed in unstage", "node killed in stage", "node killed in a move", "source node cut off in a move",
		"source node cut off in a move, one way", "node cut off from API", "node cut off from API, one way", "API cut off from node, one way",
		"API server killed", "control plane killed, move", "clock of a node set", "node abandoned with consent",
	} {
		d := labDisasters[kind]
		do := d.do
		d.do = func(ctx context.Context, w *witness) error { return attended(ctx, w, do) }
		out[kind] = d
	}
	return out
}

// originLost moves the volume, and kills a process of the other driver's controller in the middle.
func originLost(process string) func(context.Context, *witness) error {
	return func(ctx context.Context, w *witness) error {
		return attended(ctx, w, func(ctx context.Context, w *witness) error {
			done := make(chan error, 1)
			go func() { done <- moved(ctx, w) }()
			time.Sleep(time.Duration(w.r.IntN(5000)) * time.Millisecond)
			return errors.Join(k.Lab.KillOrigin(ctx, process), <-done)
		})
	}
}

// attended is a disaster while what ends of the other driver's controller is started again and again, as
// a kubelet would: a sidecar ends when it finds that its driver or the API server was away.
func attended(ctx context.Context, w *witness, disaster func(context.Context, *witness) error) error {
	done := make(chan error, 1)
	go func() { done <- disaster(ctx, w) }()
	var err error
	for {
		select {
		case end := <-done:
			return errors.Join(end, err, k.Lab.StartOrigin(ctx))
		case <-time.After(2 * time.Second):
			err = errors.Join(err, k.Lab.StartOrigin(ctx))
		}
	}
}

var _ = Describe("A campaign of disasters over another CSI driver", Label("campaign-origin", "origin", "slow", "lab"), Serial, func() {
	It("breaks no promise and leaves nothing behind", func(ctx SpecContext) {
		run := newLabCampaign(ctx, labDisastersOver())
		run.over(ctx, func(mode checker.Mode) (*witness, error) { return newWitnessOver(ctx, run.s, pd, mode, run.seed) })
	}, NodeTimeout(6*time.Hour))
})
