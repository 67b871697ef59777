//go:build kernel

package kernel

import (
	"context"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

// released is a record of a volume that was released while its node was away: its controller
// ends the admission as soon as it hears that nothing is unflushed.
type released struct {
	fileRecords
	d *disk
}

func (r released) MarkClean(ctx context.Context, id volume.ID, f volume.Fence) error {
	if state := sessionState(r.d.m.t, r.d.target().IQN); state != "" {
		r.d.m.t.Errorf("the node says Clean with a session that is %s", state)
	}
	if err := r.fileRecords.MarkClean(ctx, id, f); err != nil {
		return err
	}
	return r.d.m.svc.UnexportVolume(ctx, string(id), "", "")
}

// TestKernelCleanEndsAdmission: a node that says Clean may lose its session at once, and a disk that
// is removed at that moment would hold the volume up for two minutes.
func TestKernelCleanEndsAdmission(t *testing.T) {
	m := newMachine(t, portal)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "clean", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	write(t, d.device(), pattern(1, mib), 0, true)
	n.Records = released{d.rec, d}
	d.unstage()
	n.Records = d.rec
	d.remove()
}
