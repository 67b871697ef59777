package node

import (
	"slices"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
)

// usesISCSI reports whether a volume's origin is a LUN, or may be.
func usesISCSI(entries *journal.Store[state.Entry]) bool {
	list, err := entries.List()
	return err != nil || slices.ContainsFunc(list, func(e state.Entry) bool { return e.Source.CSI == nil })
}

// transports attach the origins of this node's volumes.
func (p *plugin) transports(run hostexec.Runner) transport.Transport {
	var m transport.Mux
	if p.initiator != "" {
		m.ISCSI = iscsi.New(run, iscsi.Config{InitiatorName: p.initiator})
	}
	if p.cfg.Origins {
		m.CSI = csi.New(csi.Config{Kubelet: p.cfg.kubelet()})
	}
	return m
}
