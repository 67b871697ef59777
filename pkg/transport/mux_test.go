package transport_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// named is a Transport that says who it is.
type named string

var errNamed = errors.New("from here")

func (n named) Connect(context.Context, transport.Target, *volume.Credentials) (transport.Origin, error) {
	return transport.Origin{WWID: string(n)}, nil
}
func (n named) Disconnect(context.Context, transport.Target) error { return errNamed }
func (n named) Lookup(context.Context, transport.Target) (transport.Origin, bool, error) {
	return transport.Origin{WWID: string(n)}, true, nil
}
func (n named) Rescan(context.Context, transport.Target, *volume.Credentials) error { return errNamed }
func (n named) Marks(context.Context, transport.Target) (transport.Marks, error) {
	return transport.Marks{string(n): {}}, nil
}

func TestMux(t *testing.T) {
	lun := transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{IQN: "iqn.2026-11.io.example:x"}}}
	other := transport.Target{Source: volume.Source{CSI: &volume.CSISource{Driver: "d"}}}
	both := transport.Mux{ISCSI: named("iscsi"), CSI: named("csi")}
	cases := map[string]struct {
		mux  transport.Mux
		at   transport.Target
		want string // "" is refused
	}{
		"a LUN": {both, lun, "iscsi"}, "a volume": {both, other, "csi"},
		"a LUN without iSCSI": {transport.Mux{CSI: named("csi")}, lun, ""}, "a volume without CSI": {transport.Mux{ISCSI: named("iscsi")}, other, ""},
	}
	for name, tc := range cases {
		ctx := t.Context()
		o, connect := tc.mux.Connect(ctx, tc.at, nil)
		l, found, lookup := tc.mux.Lookup(ctx, tc.at)
		m, marks := tc.mux.Marks(ctx, tc.at)
		disconnect, rescan := tc.mux.Disconnect(ctx, tc.at), tc.mux.Rescan(ctx, tc.at, nil)
		if tc.want == "" {
			for _, err := range []error{connect, lookup, marks, disconnect, rescan} {
				if !errors.Is(err, transport.ErrInvalid) {
					t.Errorf("%s: %v", name, err)
				}
			}
			continue
		}
		_, marked := m[tc.want]
		if connect != nil || o.WWID != tc.want || lookup != nil || !found || l.WWID != tc.want || marks != nil || !marked ||
			!errors.Is(disconnect, errNamed) || !errors.Is(rescan, errNamed) {
			t.Errorf("%s: %v, %v, %v", name, o, l, m)
		}
	}
}

// TestMuxSaysWhy: who cannot attach a LUN says what is missing, and attaches the others.
func TestMuxSaysWhy(t *testing.T) {
	reason := errors.New("no initiator name")
	m := transport.Mux{CSI: named("csi"), NoISCSI: reason}
	if _, err := m.Connect(t.Context(), transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{IQN: "iqn.2026-11.io.example:x"}}}, nil); !errors.Is(err, reason) {
		t.Errorf("a LUN: %v", err)
	}
	if _, err := m.Connect(t.Context(), transport.Target{Source: volume.Source{CSI: &volume.CSISource{Driver: "d"}}}, nil); err != nil {
		t.Errorf("a volume: %v", err)
	}
}
