package reservation

import "testing"

var (
	own     = KeyOf("v", 5)
	earlier = KeyOf("v", 4)
	later   = KeyOf("v", 6)
	renamed = KeyOf("w", 9)
	foreign = Key(0x1234)
)

func held(k Key) Held { return Held{k, WriteExclusiveRegistrantsOnly} }

func TestDecideTake(t *testing.T) {
	for name, c := range map[string]struct {
		f    Facts
		step Step
		who  Key
	}{
		"free":                         {Facts{}, StepReserve, 0},
		"own registration alone":       {Facts{Keys: []Key{own}}, StepReserve, 0},
		"earlier registration alone":   {Facts{Keys: []Key{earlier}}, StepReserve, 0},
		"held by an earlier session":   {Facts{Keys: []Key{own}, Held: held(own), Found: true}, StepPreempt, own},
		"held by the owner before":     {Facts{Keys: []Key{earlier}, Held: held(earlier), Found: true}, StepPreempt, earlier},
		"held for another record":      {Facts{Keys: []Key{renamed}, Held: held(renamed), Found: true}, StepPreempt, renamed},
		"held by a later owner":        {Facts{Keys: []Key{later}, Held: held(later), Found: true}, StepLater, later},
		"later registration":           {Facts{Keys: []Key{own, later}, Held: held(own), Found: true}, StepLater, later},
		"held by somebody else":        {Facts{Keys: []Key{foreign}, Held: held(foreign), Found: true}, StepForeign, foreign},
		"registered by somebody else":  {Facts{Keys: []Key{foreign, earlier}, Held: held(earlier), Found: true}, StepForeign, foreign},
		"held by all of somebody else": {Facts{Keys: []Key{foreign}, Held: Held{0, 7}, Found: true}, StepForeign, 0},
		"another type":                 {Facts{Keys: []Key{earlier}, Held: Held{earlier, 3}, Found: true}, StepForeign, earlier},
	} {
		c.f.Own = own
		if step, who := DecideTake(c.f); step != c.step || who != c.who {
			t.Errorf("%s: %s %s, want %s %s", name, step, who, c.step, c.who)
		}
	}
}

func TestDecideWatch(t *testing.T) {
	for name, c := range map[string]struct {
		f    Facts
		e    Entitled
		step Step
		who  Key
	}{
		"all well":                           {Facts{Keys: []Key{own}, Held: held(own), Found: true, Paths: 1}, EntitledUnknown, StepNothing, 0},
		"more registrations than paths":      {Facts{Keys: []Key{own, own}, Held: held(own), Found: true, Paths: 1}, EntitledYes, StepNothing, 0},
		"a path is not registered":           {Facts{Keys: []Key{own}, Held: held(own), Found: true, Paths: 2}, EntitledYes, StepRegister, own},
		"perhaps a spare's registration":     {Facts{Keys: []Key{own}, Held: held(own), Found: true, Paths: 2}, EntitledUnknown, StepNothing, 0},
		"an earlier owner came back":         {Facts{Keys: []Key{own, earlier}, Held: held(own), Found: true, Paths: 1}, EntitledYes, StepPurge, earlier},
		"a later owner begins":               {Facts{Keys: []Key{own, later}, Held: held(own), Found: true, Paths: 1}, EntitledYes, StepNothing, 0},
		"a later owner has it":               {Facts{Keys: []Key{later}, Held: held(later), Found: true, Paths: 1}, EntitledUnknown, StepLost, later},
		"somebody else has it":               {Facts{Keys: []Key{own, foreign}, Held: held(foreign), Found: true, Paths: 1}, EntitledYes, StepLost, foreign},
		"forgotten":                          {Facts{Paths: 1}, EntitledYes, StepReserve, 0},
		"forgotten, the record is silent":    {Facts{Paths: 1}, EntitledUnknown, StepNothing, 0},
		"forgotten, another owner":           {Facts{Paths: 1}, EntitledNo, StepLost, 0},
		"registered alone":                   {Facts{Keys: []Key{own}, Paths: 1}, EntitledYes, StepReserve, 0},
		"registered alone, another owner":    {Facts{Keys: []Key{own}, Paths: 1}, EntitledNo, StepNothing, 0},
		"registered alone, record is silent": {Facts{Keys: []Key{own}, Paths: 1}, EntitledUnknown, StepNothing, 0},
	} {
		c.f.Own = own
		if step, who := DecideWatch(c.f, c.e); step != c.step || who != c.who {
			t.Errorf("%s: %s %s, want %s %s", name, step, who, c.step, c.who)
		}
	}
}

func TestDecideReturn(t *testing.T) {
	for name, c := range map[string]struct {
		f    Facts
		e    Entitled
		had  bool
		step Step
		who  Key
	}{
		"held by the session of before":     {Facts{Keys: []Key{own}, Held: held(own), Found: true}, EntitledUnknown, true, StepPreempt, own},
		"a later owner has it":              {Facts{Keys: []Key{later}, Held: held(later), Found: true}, EntitledYes, true, StepLost, later},
		"an earlier owner has it":           {Facts{Keys: []Key{earlier}, Held: held(earlier), Found: true}, EntitledYes, true, StepLost, earlier},
		"somebody has it, and we never had": {Facts{Keys: []Key{later}, Held: held(later), Found: true}, EntitledYes, false, StepLater, later},
		"forgotten":                         {Facts{}, EntitledYes, true, StepReserve, 0},
		"forgotten, the record is silent":   {Facts{}, EntitledUnknown, true, StepNothing, 0},
		"forgotten, another owner":          {Facts{}, EntitledNo, true, StepLost, 0},
		"registered, the record is silent":  {Facts{Keys: []Key{own}}, EntitledUnknown, true, StepReserve, 0},
		"never reserved":                    {Facts{}, EntitledUnknown, false, StepReserve, 0},
	} {
		c.f.Own = own
		if step, who := DecideReturn(c.f, c.e, c.had); step != c.step || who != c.who {
			t.Errorf("%s: %s %s, want %s %s", name, step, who, c.step, c.who)
		}
	}
}
