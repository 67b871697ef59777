//go:build kernel

package kernel

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelInitiatorNames: nodes that share a kernel share its iscsid, and a volume
// that is exported to one of them lets that one in alone.
func TestKernelInitiatorNames(t *testing.T) {
	m := newMachine(t)
	const id, own, other = "named", "iqn.2026-11.io.nearflash.test:node-b", "iqn.2026-11.io.nearflash.test:node-c"
	_, err := m.svc.CreateVolume(t.Context(), id, 16*mib, target.Thin)
	mustPass(t, "create", err)
	c, err := m.svc.ExportVolume(t.Context(), id, own, target.Account{Username: chapUser, Password: chapWord}, 1)
	mustPass(t, "export", err)
	at := transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: c.Portals, IQN: c.IQN, LUN: int(c.LUN)}}}
	cred := &volume.Credentials{Username: chapUser, Password: chapWord}
	for _, name := range []string{"", other} {
		i := iscsi.New(hostexec.New(), iscsi.Config{InitiatorName: name})
		if _, err := i.Connect(t.Context(), at, cred); !errors.Is(err, transport.ErrAuth) {
			t.Errorf("initiator %q was let in, or kept out for another reason: %v", name, err)
		}
		mustPass(t, "give up", i.Disconnect(t.Context(), at))
	}
	i := iscsi.New(hostexec.New(), iscsi.Config{InitiatorName: own})
	o, err := i.Connect(t.Context(), at, cred)
	mustPass(t, "connect", err)
	if o.SizeBytes != 16*mib {
		t.Errorf("origin %+v", o)
	}
	mustPass(t, "disconnect", i.Disconnect(t.Context(), at))
	mustPass(t, "unexport", m.svc.UnexportVolume(t.Context(), id, "", ""))
	mustPass(t, "delete", m.svc.DeleteVolume(t.Context(), id))
}
