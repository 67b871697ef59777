package rescue

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/reservation/reservationtest"
	"github.com/nearflash/nearflash/pkg/volume"
)

type oneLUN struct{ path reservation.LUN }

func (u oneLUN) LUN(string) reservation.LUN { return u.path }

// TestAdmit: a LUN that is still reserved for the lost node takes the rescuer's writes,
// and nobody else's, also afterwards; of a later owner's nothing is written.
func TestAdmit(t *testing.T) {
	var c Cache
	c.ID, c.Fence = "v", volume.Fence{UID: "u", Generation: 3}
	for _, held := range []int64{0, 3, 4} {
		var target reservationtest.Target
		lost, here := target.Nexus("lost"), target.Nexus("here")
		if held > 0 {
			if _, err := reservation.Take(t.Context(), []reservation.Path{{LUN: lost}}, reservation.KeyOf("u", held)); err != nil {
				t.Fatal(err)
			}
		}
		err := admit(t.Context(), oneLUN{here}, c, "/dev/sda")
		if held == 4 {
			if !errors.Is(err, ErrRefused) || here.Write(t.Context()) == nil {
				t.Errorf("a later owner's LUN: %v", err)
			}
			continue
		}
		if err != nil || here.Write(t.Context()) != nil {
			t.Errorf("reserved for generation %d: %v", held, err)
		}
		if free := target.Nexus("earlier").Write(t.Context()) == nil; free != (held == 0) {
			t.Errorf("reserved for generation %d: another writes afterwards: %t", held, free)
		}
	}
	bare := reservationtest.Target{Unsupported: true}
	if err := admit(t.Context(), oneLUN{bare.Nexus("here")}, c, "/dev/sda"); err != nil {
		t.Error(err)
	}
}
