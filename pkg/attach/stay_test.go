package attach

import (
	"os"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestStay: a note covers its ownership and those before, a file that cannot be read covers
// everything, and a first ownership needs none.
func TestStay(t *testing.T) {
	a := New(Config{Warm: WarmConfig{Dir: t.TempDir()}}, Deps{Pool: withoutPool{}})
	at := func(uid string, generation int64) volume.Fence {
		return volume.Fence{UID: uid, Generation: generation, Node: "b"}
	}
	want := func(what string, f volume.Fence, want bool) {
		t.Helper()
		if got := a.stayedBefore("v", f); got != want {
			t.Errorf("%s: stayed before %t, want %t", what, got, want)
		}
	}
	note := func(f volume.Fence) {
		t.Helper()
		if err := a.recordStay("v", f); err != nil {
			t.Fatal(err)
		}
	}
	note(at("u", 1))
	want("the first ownership", at("u", 1), false)
	note(at("u", 5))
	note(at("u", 5))
	want("the same", at("u", 5), true)
	want("an earlier one", at("u", 4), true)
	want("a later one", at("u", 6), false)
	want("another volume", at("w", 5), false)
	note(at("w", 2))
	want("the volume that has the name now", at("w", 2), true)
	if err := os.WriteFile(a.stayFile("v"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("not known", at("w", 9), true)
	note(at("w", 9))
	want("known again", at("w", 10), false)
}

func TestStayOver(t *testing.T) {
	const ttl = 72 * time.Hour
	now := time.Now()
	rec := func(uid string, generation int64) *volume.Volume {
		return &volume.Volume{Fence: volume.Fence{UID: uid, Generation: generation}}
	}
	for name, tc := range map[string]struct {
		rec  *volume.Volume
		age  time.Duration
		ttl  time.Duration
		want bool
	}{
		"the record's own":         {rec("u", 5), 100 * ttl, ttl, false},
		"a record out of a backup": {rec("u", 3), 100 * ttl, ttl, false},
		"a later ownership":        {rec("u", 6), 0, ttl, true},
		"no record":                {nil, ttl, ttl, false},
		"no record, long ago":      {nil, ttl + 1, ttl, true},
		"no record, kept for ever": {nil, stayRest, 0, false},
		"the same, very long ago":  {nil, stayRest + 1, 0, true},
		"another UID":              {rec("w", 9), 0, ttl, false},
		"another UID, long ago":    {rec("w", 9), ttl + 1, ttl, true},
	} {
		if got := stayOver(stay{UID: "u", Generation: 5, At: now.Add(-tc.age)}, tc.rec, now, tc.ttl); got != tc.want {
			t.Errorf("%s: over %t, want %t", name, got, tc.want)
		}
	}
}
