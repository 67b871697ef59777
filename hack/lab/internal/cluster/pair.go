package cluster

import (
	"bytes"
	"context"
	"fmt"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// activate is what docs/how-to/storage-server-pair.md says of the first start.
const activate = `set -e
vgchange --activate y $1
mkdir -p /var/lib/nearflash-target
mount /dev/$1/$2 /var/lib/nearflash-target
ip address add $3/$4 dev vec0
arping -U -c 1 -I vec0 $3
systemctl start nearflash-target
`

// activatePair makes the first server of a new pair the active one. Later, who is active is
// the affair of whoever uses the lab.
func (l *Lab) activatePair(ctx context.Context, s state) error {
	var out bytes.Buffer
	argv := []string{"bash", "-c", activate, "activate", plan.VolumeGroup, agentapi.StateVolume, plan.PairIP, fmt.Sprint(plan.PrefixBits)}
	code, err := l.agent(plan.Storage(), s.Token).Exec(ctx, agentapi.ExecRequest{Argv: argv}, &out, &out)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit status %d: %s", code, out.Bytes())
	}
	if err != nil {
		return fmt.Errorf("activate %s: %w", plan.Storage().Name, err)
	}
	l.say("%s: active, at %s", plan.Storage().Name, plan.PairIP)
	return nil
}
