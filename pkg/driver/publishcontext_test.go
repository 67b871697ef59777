package driver

import (
	"errors"
	"maps"
	"reflect"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestPublishContext(t *testing.T) {
	fence := volume.Fence{UID: "u", Generation: 3, Node: "n"}
	origin := &volume.CSISource{Driver: "d.example", Handle: "h", PV: "pv", Admission: "a",
		Attributes: map[string]string{"k": "v"}, Attachment: map[string]string{"device": "/dev/x"}, CapacityBytes: 8 << 30}
	for name, p := range map[string]volume.Publication{
		"a LUN":                            {Fence: fence, Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{"192.0.2.1:3260", "192.0.2.2:3260"}, IQN: "iqn.2026-11.io.example:v", LUN: 2}}},
		"a LUN with an account of its own": {Fence: fence, LoginKey: "public", Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.io.example:v"}}},
		"a volume of another driver":       {Fence: fence, Source: volume.Source{CSI: origin}},
	} {
		c := encodePublication(p)
		got, err := decodePublication(c)
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, p)
		}
		for key := range c {
			less := maps.Clone(c)
			delete(less, key)
			// A controller of before says nothing of keys.
			if _, err := decodePublication(less); !errors.Is(err, volume.ErrInvalid) && key != keyLogin {
				t.Errorf("%s without %s: %v", name, key, err)
			}
		}
	}
	for _, text := range []string{"", "{", "{}", `{"driver":"d","handle":"h","pv":"p"}`, `{"driver":"d","handle":"h","admission":"a"}`, `{"driver":"d","pv":"p","admission":"a"}`, `{"handle":"h","pv":"p","admission":"a"}`} {
		c := map[string]string{keyGeneration: "1", keyUID: "u", keyNode: "n", keyOrigin: text}
		if _, err := decodePublication(c); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("origin %q: %v", text, err)
		}
	}
}
