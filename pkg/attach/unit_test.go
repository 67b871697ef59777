package attach

import "testing"

func TestDecideUnit(t *testing.T) {
	cases := map[string]struct {
		plan       cachePlan
		known, now string
		want       unitStep
	}{
		"warm start":                        {planReuse, "naa.1", "naa.1", unitSame},
		"warm start, replaced":              {planReuse, "naa.1", "naa.2", unitCold},
		"warm start, says nothing any more": {planReuse, "naa.1", "", unitCold},
		"warm start of a version before":    {planReuse, "", "naa.2", unitSame},
		"unit without identity":             {planReuse, "", "", unitSame},
		"unflushed writes":                  {planRecover, "naa.1", "naa.1", unitSame},
		"unflushed writes, replaced":        {planRecover, "naa.1", "naa.2", unitRefuse},
		"unflushed writes, says nothing":    {planRecover, "naa.1", "", unitRefuse},
		"unflushed, version before":         {planRecover, "", "naa.2", unitSame},
		"cold start":                        {planCreate, "naa.1", "naa.2", unitSame},
		"uncached":                          {planUncached, "naa.1", "naa.2", unitSame},
		"adopt: the kernel has the old one": {planAdopt, "naa.1", "naa.2", unitSame},
	}
	for name, tc := range cases {
		if got := decideUnit(tc.plan, false, tc.known, tc.now); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	if got := decideUnit(planRecover, true, "naa.1", "naa.2"); got != unitCold {
		t.Errorf("unflushed writes that were given up, replaced: %s, want %s", got, unitCold)
	}
	if got := decideUnit(planRecover, true, "naa.1", "naa.1"); got != unitSame {
		t.Errorf("unflushed writes that were given up: %s, want %s", got, unitSame)
	}
}
