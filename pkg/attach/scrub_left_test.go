package attach_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

// guardLeft has the order of a guard that goes on.
type guardLeft struct{ id volume.ID }

func (*guardLeft) Judge(context.Context, scrub.Order) (scrub.Result, error) {
	return scrub.Result{}, errors.ErrUnsupported
}

func (g *guardLeft) Left(context.Context) ([]volume.ID, error) { return []volume.ID{g.id}, nil }

func (g *guardLeft) Recover(_ context.Context, id volume.ID) error {
	if id == g.id {
		return hostexec.ErrRuns
	}
	return nil
}

// TestStepsAwaitGuard: nothing is done to a volume while a guard goes on, whatever has become of the
// command that began it: its writes would come after those of the pod.
func TestStepsAwaitGuard(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	want := l.a.devices()
	left := &guardLeft{id: volumeID}
	l.a.Judge = left
	if err := l.a.Stage(l.ctx, req); !errors.Is(err, volume.ErrUnavailable) || !errors.Is(err, hostexec.ErrRuns) {
		t.Errorf("stage: %v, want ErrUnavailable", err)
	}
	if err := l.a.Unstage(l.ctx, volumeID, staging); !errors.Is(err, volume.ErrUnavailable) || len(l.a.devices()) != len(want) {
		t.Errorf("unstage: %v, want ErrUnavailable; %v", err, l.a.devices())
	}
	left.id = ""
	l.must("stage", l.a.Stage(l.ctx, req))
}
