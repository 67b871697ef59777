package attach_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestRemapBesideSilence: a copy that does not answer, of this volume or of another one, does
// not keep a peer that is lost from being replaced.
func TestRemapBesideSilence(t *testing.T) {
	own, other := "nf-"+string(volumeID)+".data", "nf-"+string(otherHydration)+".data"
	for name, clones := range map[string]func(real map[string]devmapper.CloneStatus) (map[string]devmapper.CloneStatus, error){
		"another one": func(real map[string]devmapper.CloneStatus) (map[string]devmapper.CloneStatus, error) {
			real[other] = devmapper.CloneStatus{Silent: true}
			return real, nil
		},
		"its own": func(map[string]devmapper.CloneStatus) (map[string]devmapper.CloneStatus, error) {
			return map[string]devmapper.CloneStatus{own: {Silent: true}}, nil
		},
		"nothing is known": func(map[string]devmapper.CloneStatus) (map[string]devmapper.CloneStatus, error) {
			return nil, errors.New("no answer")
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newWarmLife(t, volume.ModeWritethrough, "")
			l.moved()
			endOther := l.b.hydrationBeside()
			l.a.powerLoss()
			d, read := l.b.podDevice(), make(chan error, 1)
			go func() { read <- l.differs(d) }()
			dm := l.b.DM
			l.b.UseDM(&silent{Client: dm, clones: clones})
			ctx, cancel := context.WithTimeout(l.ctx, time.Minute)
			ran := make(chan struct{})
			go func() {
				l.b.Hydrations().Run(ctx)
				close(ran)
			}()
			select {
			case err := <-read:
				l.must("the pod reads", err)
			case <-time.After(hydrationSoon):
				t.Error("the pod waits for a source node that is lost")
			}
			cancel()
			<-ran
			l.b.UseDM(dm)
			endOther()
		})
	}
}

// hydrationSoon is less than the pause between two looks at the journal, which would find
// whatever a look at the kernel has missed, and long on a machine that has much to do.
const hydrationSoon = 12 * time.Second

// TestSilentClone: the cache above a copy that does not answer is left alone: no table could
// be swapped.
func TestSilentClone(t *testing.T) {
	l := newWarmLife(t, volume.ModeWritethrough, "")
	l.moved()
	l.b.UseDM(&silent{Client: &failed{Client: l.b.DM, top: "nf-" + string(volumeID)}, clones: func(map[string]devmapper.CloneStatus) (map[string]devmapper.CloneStatus, error) {
		return map[string]devmapper.CloneStatus{"nf-" + string(volumeID) + ".data": {Silent: true}}, nil
	}})
	l.b.CacheFaults().Devices = l.b.DM
	l.must("failover", l.b.CacheFaults().Pass(l.ctx))
	if e := l.b.entry(); !e.Cached() {
		t.Errorf("the journal has mode %s", e.Mode)
	}
}

// TestLeaveBesideSilence: a volume leaves in the middle of its hydration, while another one's copy
// does not answer: it asks its own alone.
func TestLeaveBesideSilence(t *testing.T) {
	l := newWarmLife(t, volume.ModeWritethrough, "")
	l.moved()
	l.b.UseDM(&silent{Client: l.b.DM, clones: func(map[string]devmapper.CloneStatus) (map[string]devmapper.CloneStatus, error) {
		return nil, errors.New("no answer")
	}})
	l.must("unstage", l.b.Unstage(l.ctx, volumeID, staging))
}

// silent is a kernel some of whose clones do not answer.
type silent struct {
	devmapper.Client
	clones func(real map[string]devmapper.CloneStatus) (map[string]devmapper.CloneStatus, error)
}

func (s *silent) CloneStatusAll(ctx context.Context) (map[string]devmapper.CloneStatus, error) {
	real, err := s.Client.CloneStatusAll(ctx)
	if err != nil {
		return nil, err
	}
	return s.clones(real)
}
