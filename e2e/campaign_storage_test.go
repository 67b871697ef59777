//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"

	"github.com/nearflash/nearflash/e2e/cluster"
)

// storageRefuses has the storage server's disk of the volume answer every request with an
// error for a moment; then the volume is attached anew.
func storageRefuses(ctx context.Context, w *witness) error {
	// The name of a logical volume's device doubles hyphens.
	_, err := k.Host.Run(ctx, cluster.StorageMachine, fmt.Sprintf(`set -e
name=$(dmsetup ls | awk '{print $1}' | grep -E -- '-%s$')
before=$(dmsetup table "$name")
swap() {
  dmsetup load "$name" --table "$1"
  dmsetup resume --noflush --nolockfs "$name"
}
swap "0 $(dmsetup table "$name" | awk '{n += $2} END {print n}') error"
sleep 0.3
swap "$before"`, strings.ReplaceAll(w.Volume.Handle, "-", "--")))
	if err != nil {
		return err
	}
	if err := w.rest(ctx); err != nil {
		return err
	}
	return w.again(ctx, w.node)
}
