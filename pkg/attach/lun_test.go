package attach

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestDecideLUN(t *testing.T) {
	cases := map[string]struct {
		plan       cachePlan
		known, now string
		want       lunStep
	}{
		"warm start":                        {planReuse, "naa.1", "naa.1", lunSame},
		"warm start, replaced":              {planReuse, "naa.1", "naa.2", lunCold},
		"warm start, says nothing any more": {planReuse, "naa.1", "", lunCold},
		"warm start of a version before":    {planReuse, "", "naa.2", lunSame},
		"LUN without identity":              {planReuse, "", "", lunSame},
		"unflushed writes":                  {planRecover, "naa.1", "naa.1", lunSame},
		"unflushed writes, replaced":        {planRecover, "naa.1", "naa.2", lunRefuse},
		"unflushed writes, says nothing":    {planRecover, "naa.1", "", lunRefuse},
		"unflushed, version before":         {planRecover, "", "naa.2", lunSame},
		"cold start":                        {planCreate, "naa.1", "naa.2", lunSame},
		"uncached":                          {planUncached, "naa.1", "naa.2", lunSame},
		"adopt: the kernel has the old one": {planAdopt, "naa.1", "naa.2", lunSame},
	}
	for name, tc := range cases {
		if got := decideLUN(tc.plan, false, tc.known, tc.now); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	if got := decideLUN(planRecover, true, "naa.1", "naa.2"); got != lunCold {
		t.Errorf("unflushed writes that were abandoned, replaced: %s, want %s", got, lunCold)
	}
	if got := decideLUN(planRecover, true, "naa.1", "naa.1"); got != lunSame {
		t.Errorf("unflushed writes that were abandoned: %s, want %s", got, lunSame)
	}
}

func TestCheckLUN(t *testing.T) {
	cases := map[string]struct {
		products []string
		static   bool
		want     error
	}{
		"of this generation":                  {products: []string{volume.LUNProduct(5)}},
		"of the generation before":            {products: []string{volume.LUNProduct(4)}},
		"somebody else's":                     {products: []string{"IBLOCK"}},
		"given away since":                    {products: []string{volume.LUNProduct(6)}, want: volume.ErrFenced},
		"given away since, seen on one path":  {products: []string{volume.LUNProduct(5), volume.LUNProduct(7)}, want: volume.ErrFenced},
		"static: its server knows no records": {products: []string{volume.LUNProduct(6)}, static: true},
	}
	for name, tc := range cases {
		err := checkLUN(&state.Entry{Fence: fence5, Static: tc.static}, transport.Origin{Products: tc.products})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
