package node

import (
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
)

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
