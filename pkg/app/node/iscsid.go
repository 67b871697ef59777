package node

import (
	"context"
	"flag"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/preflight"
)

// ISCSID is the command "nearflash-node iscsid": open-iscsi's daemon for a host that has none.
type ISCSID struct {
	// InitiatorNameFile is where the node's initiator name is, or is made.
	InitiatorNameFile string
	// daemon and become are for tests; zero and nil are the real ones.
	daemon openiscsi.Daemon
	become func(name string, args ...string) error
}

// AddFlags defines the flags of the command.
func (d *ISCSID) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&d.InitiatorNameFile, "initiator-name-file", "/etc/iscsi/initiatorname.iscsi", "`file` with the node's iSCSI initiator name, which is made if there is none")
}

// Run becomes iscsid. It fails while another one answers: the kernel talks to one of them, and
// iscsiadm to the other.
func (d *ISCSID) Run(ctx context.Context) error {
	if d.become == nil {
		d.become = hostexec.Become
	}
	if d.daemon.Listens(ctx) == nil {
		return fmt.Errorf("an iscsid runs on this node: stop and disable it (systemctl disable --now iscsid.socket iscsid), or let nearflash use it (node.iscsid.run: host or nsenter)")
	}
	if err := preflight.MakeInitiatorName(d.InitiatorNameFile); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Becoming iscsid", "initiatorNameFile", d.InitiatorNameFile)
	klog.Flush()
	return d.become("iscsid", "--foreground", "--initiatorname", d.InitiatorNameFile)
}
