package reservation

import (
	"errors"
	"testing"
)

func TestKey(t *testing.T) {
	a1, a2, b1 := KeyOf("a", 1), KeyOf("a", 2), KeyOf("b", 1)
	if a1 == a2 || a1 == b1 || a1 == 0 {
		t.Errorf("keys %s, %s, %s", a1, a2, b1)
	}
	for _, k := range []Key{a1, a2, b1} {
		if !k.Ours() {
			t.Errorf("%s is not ours", k)
		}
	}
	if Key(1).Ours() || Key(1).SameVolume(1) {
		t.Error("a key of somebody else's is ours")
	}
	if !a2.Later(a1) || a1.Later(a2) || a1.Later(a1) || b1.Later(a1) || KeyOf("b", 9).Later(a1) {
		t.Error("order of owners")
	}
	if got := KeyOf("a", 7).Generation(); got != 7 {
		t.Errorf("generation %d", got)
	}
	if a1.String() != "0x6e66ca9781000001" {
		t.Errorf("the form of keys has changed: nodes of two versions would not know each other's: %s", a1)
	}
}

func TestParse(t *testing.T) {
	keys, need, err := parseKeys([]byte{0, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 7, 1})
	if err != nil || len(keys) != 1 || keys[0] != 7 || need != 24 {
		t.Errorf("keys %v, need %d, %v", keys, need, err)
	}
	answer := make([]byte, 24)
	if _, found, err := parseReservation(answer); found || err != nil {
		t.Errorf("no reservation: found %t, %v", found, err)
	}
	answer[7], answer[15], answer[21] = 16, 9, 5
	if h, found, err := parseReservation(answer); !found || err != nil || h != (Held{9, WriteExclusiveRegistrantsOnly}) {
		t.Errorf("reservation %+v, found %t, %v", h, found, err)
	}
	for name, c := range map[string]struct {
		b  []byte
		ok bool
	}{
		"all types":    {[]byte{0, 8, 0, 0x80, 0xea, 1, 0, 0}, true},
		"not the type": {[]byte{0, 8, 0, 0x80, 0xca, 1, 0, 0}, false},
		"no mask":      {[]byte{0, 8, 0, 0, 0, 0, 0, 0}, true},
	} {
		if ok, err := parseCapabilities(c.b); err != nil || ok != c.ok {
			t.Errorf("%s: %t, %v", name, ok, err)
		}
	}
	_, _, errKeys := parseKeys([]byte{0, 0, 0, 1, 0, 0, 0, 9})
	_, _, errHeld := parseReservation([]byte{0, 0, 0, 1, 0, 0, 0, 16})
	_, errCan := parseCapabilities([]byte{0, 8})
	for _, err := range []error{errKeys, errHeld, errCan} {
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%v, want ErrMalformed", err)
		}
	}
}

func TestJudge(t *testing.T) {
	fixed := func(key, code, qualifier byte) []byte {
		return []byte{0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier}
	}
	for name, c := range map[string]struct {
		status byte
		sense  []byte
		err    error
		again  bool
	}{
		"good":                       {0, nil, nil, false},
		"conflict":                   {0x18, nil, ErrConflict, false},
		"busy":                       {8, nil, ErrPath, true},
		"unit attention":             {2, fixed(6, 0x2a, 5), ErrPath, true},
		"unit attention, descriptor": {2, []byte{0x72, 6, 0x29, 0}, ErrPath, true},
		"no such command":            {2, fixed(5, 0x20, 0), ErrUnsupported, false},
		"no such action":             {2, fixed(5, 0x24, 0), ErrUnsupported, false},
		"no such LUN":                {2, fixed(5, 0x25, 0), ErrPath, false},
		"bad parameter":              {2, fixed(5, 0x26, 0), ErrMalformed, false},
		"not ready":                  {2, fixed(2, 4, 1), ErrPath, false},
		"no sense":                   {2, nil, ErrPath, false},
		"unknown status":             {0x77, nil, ErrPath, false},
	} {
		o := judge(c.status, parseSense(c.sense))
		if !errors.Is(o.err, c.err) || o.again != c.again {
			t.Errorf("%s: %v, again %t", name, o.err, o.again)
		}
	}
}

// FuzzParse: no answer of a LUN makes a parser fail otherwise than by its error.
func FuzzParse(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{0x72, 6, 0x29, 0})
	f.Add([]byte{0, 8, 0, 0x80, 0xea, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, need, err := parseKeys(b)
		if err == nil && (len(keys)*8 > len(b) || need > maxAnswer) {
			t.Errorf("%d keys of %d bytes, need %d", len(keys), len(b), need)
		}
		if h, found, err := parseReservation(b); err == nil && !found && h != (Held{}) {
			t.Errorf("reservation %+v that is not there", h)
		}
		if _, err := parseCapabilities(b); err == nil && len(b) < 8 {
			t.Error("capabilities of too few bytes")
		}
		parseSense(b)
	})
}
