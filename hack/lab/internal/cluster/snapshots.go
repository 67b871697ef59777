package cluster

import (
	"context"
	"os"

	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// snapshotController is the program's name, and that of its process.
const snapshotController = "snapshot-controller"

// startSnapshots gives the cluster what a cluster with snapshots has once: their API and its
// controller. It runs with the administrator's rights: what it may do is not the driver's
// affair.
func (l *Lab) startSnapshots(ctx context.Context, s state, definitions []string) error {
	for _, args := range [][]string{
		{"apply", "--server-side"},
		// Until then there is no kind of the name.
		{"wait", "--for=condition=Established", "--timeout=60s"},
	} {
		for _, path := range definitions {
			args = append(args, "--filename="+path)
		}
		if err := l.kubectl(ctx, s, nil, args...); err != nil {
			return err
		}
	}
	return l.startProcess(ctx, proc.Spec{
		Name: snapshotController, Path: s.Bin[snapshotController], Dir: l.Paths.Root, Log: l.Paths.Log(snapshotController),
		Args: []string{
			"--kubeconfig=" + l.Paths.Kubeconfig(pki.Admin), "--leader-election=false", "--v=4",
			// Tests wait for what is tried again: by default up to five minutes.
			"--retry-interval-max=5s",
		},
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.Paths.Root},
	})
}
