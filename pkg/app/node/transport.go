package node

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi"
)

// usesISCSI reports whether a volume's origin is a LUN, or may be.
func usesISCSI(entries *journal.Store[state.Entry]) bool {
	list, err := entries.List()
	return err != nil || slices.ContainsFunc(list, func(e state.Entry) bool { return e.Source.CSI == nil })
}

// readInitiator reads the node's initiator name, once: sessions have it for as long as they last.
// A node of other CSI drivers' volumes that has no such file, and nothing to leave, needs none.
// Whatever else is wrong with it is a finding: volumes of other kinds go on.
func (p *plugin) readInitiator(entries *journal.Store[state.Entry]) {
	if p.cfg.MakeInitiatorName {
		if p.noInitiator = preflight.MakeInitiatorName(p.cfg.InitiatorNameFile); p.noInitiator != nil {
			return
		}
	}
	p.initiator, p.noInitiator = p.host.preflight.InitiatorName()
	if p.cfg.Origins && errors.Is(p.noInitiator, fs.ErrNotExist) && !usesISCSI(entries) {
		p.noInitiator = nil
	}
}

// initiatorFound is an error once there is a name and the plugin began without: it has to begin anew.
func (p *plugin) initiatorFound() error {
	if p.initiator != "" {
		return nil
	}
	name, err := p.host.preflight.InitiatorName()
	if err != nil {
		return nil // that is a finding, and told as such
	}
	return fmt.Errorf("the node has the iSCSI initiator name %s now, which the plugin reads when it starts; it ends, to be started again", name)
}

// transports attach the origins of this node's volumes.
func (p *plugin) transports() transport.Transport {
	m := transport.Mux{NoISCSI: p.noInitiator}
	if p.initiator != "" {
		m.ISCSI = p.host.iscsi(p.initiator)
	}
	if p.cfg.Origins {
		m.CSI = csi.New(csi.Config{Kubelet: p.cfg.kubelet()})
	}
	return m
}
