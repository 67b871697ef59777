package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

const (
	// guestDisks is how many disks can be plugged into a guest.
	guestDisks = 14
	// limitLabel is by which the Persistent Disk driver is told how many disks a node takes.
	limitLabel = "node-restriction.kubernetes.io/gke-volume-attach-limit-override"
)

// limitsFile has what machines of the cloud take, where that is less.
func (l *Lab) limitsFile() string { return filepath.Join(l.Paths.Origin(), "disks", "limits.json") }

func (l *Lab) originLimits() (map[string]int, error) {
	limits := map[string]int{}
	b, err := os.ReadFile(l.limitsFile())
	if errors.Is(err, os.ErrNotExist) {
		return limits, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &limits)
	}
	if err != nil {
		return nil, fmt.Errorf("limits of disks: %w", err)
	}
	return limits, nil
}

// LimitOrigin has the cloud attach no more disks to a machine, and the driver report that.
func (l *Lab) LimitOrigin(ctx context.Context, node string, disks int) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if s.Origin == nil || s.Origin.Name != OriginPD {
		return fmt.Errorf("%w: limits are of %s", ErrOrigin, OriginPD)
	}
	if !slices.ContainsFunc(plan.Workers(), func(g plan.Node) bool { return g.Name == node }) || disks < 1 || disks > guestDisks {
		return fmt.Errorf("%w: limit of %d disks for %q: accepted are 1 to %d for a worker", ErrOrigin, disks, node, guestDisks)
	}
	limits, err := l.originLimits()
	if err != nil {
		return err
	}
	limits[node] = disks
	b, err := json.Marshal(limits)
	if err != nil {
		return fmt.Errorf("limits of disks: %w", err)
	}
	// The cloud reads it at each attachment: never half of it.
	fresh := l.limitsFile() + ".new"
	if err := errors.Join(os.WriteFile(fresh, b, 0o644), os.Rename(fresh, l.limitsFile())); err != nil {
		return fmt.Errorf("limits of disks: %w", err)
	}
	if err := l.labelLimits(ctx, s); err != nil {
		return err
	}
	// The driver says it to kubelet when it registers.
	return l.kubectl(ctx, s, nil, "delete", "pods", "--namespace", originNamespace, "--selector", "app="+s.Origin.kind().node, "--field-selector", "spec.nodeName="+node)
}

// labelLimits tells the driver by labels of the nodes.
func (l *Lab) labelLimits(ctx context.Context, s state) error {
	limits, err := l.originLimits()
	if err != nil {
		return err
	}
	for _, g := range plan.Workers() {
		limit, found := limits[g.Name]
		if !found {
			limit = guestDisks
		}
		if err := l.kubectl(ctx, s, nil, "label", "--overwrite", "node", g.Name, fmt.Sprintf("%s=%d", limitLabel, limit)); err != nil {
			return err
		}
	}
	return nil
}
