package transport

import (
	"context"
	"fmt"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Mux is the Transport of a node that has several kinds of origins: the kind of the source
// chooses.
type Mux struct {
	// ISCSI attaches LUNs, CSI the volumes of other CSI drivers. What is nil refuses.
	ISCSI, CSI Transport
	// NoISCSI says why ISCSI is nil, if it should not be.
	NoISCSI error
}

var _ Transport = Mux{}

// of is the transport of a target.
func (m Mux) of(t Target) (Transport, error) {
	chosen := m.ISCSI
	if t.CSI != nil {
		chosen = m.CSI
	}
	if t.CSI == nil && chosen == nil && m.NoISCSI != nil {
		return nil, fmt.Errorf("%s: %w", t, m.NoISCSI)
	}
	if chosen == nil {
		return nil, fmt.Errorf("%w: %s: this node attaches nothing of that kind", ErrInvalid, t)
	}
	return chosen, nil
}

// Connect implements Transport.
func (m Mux) Connect(ctx context.Context, t Target, cred *volume.Credentials) (Origin, error) {
	chosen, err := m.of(t)
	if err != nil {
		return Origin{}, err
	}
	return chosen.Connect(ctx, t, cred)
}

// Disconnect implements Transport.
func (m Mux) Disconnect(ctx context.Context, t Target) error {
	chosen, err := m.of(t)
	if err != nil {
		return err
	}
	return chosen.Disconnect(ctx, t)
}

// Lookup implements Transport.
func (m Mux) Lookup(ctx context.Context, t Target) (Origin, bool, error) {
	chosen, err := m.of(t)
	if err != nil {
		return Origin{}, false, err
	}
	return chosen.Lookup(ctx, t)
}

// Rescan implements Transport.
func (m Mux) Rescan(ctx context.Context, t Target, cred *volume.Credentials) error {
	chosen, err := m.of(t)
	if err != nil {
		return err
	}
	return chosen.Rescan(ctx, t, cred)
}

// Marks implements Transport.
func (m Mux) Marks(ctx context.Context, t Target) (Marks, error) {
	chosen, err := m.of(t)
	if err != nil {
		return nil, err
	}
	return chosen.Marks(ctx, t)
}
