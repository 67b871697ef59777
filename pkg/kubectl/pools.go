package kubectl

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

type poolsOptions struct {
	*Factory
	session
	output

	nodes []string
}

func newPools(f *Factory) *cobra.Command {
	o := &poolsOptions{Factory: f, output: newOutput(true)}
	cmd := &cobra.Command{
		Use:   "pools [NODE...]",
		Short: "List the SSD pools of the nodes",
		Long: `List the SSD pools of the nodes.

RETAINED is the space of caches whose volumes have left the node; it is given up when a volume there needs it. WEAR is how much of its rated
endurance the most worn device has used, HEALTH what the devices say of themselves; both are "-" if they say nothing. NAMESPACE-SHARE is how much of the pool the caches of one namespace may take.`,
		Example:           `  kubectl nearflash pools -o wide`,
		ValidArgsFunction: f.completePools,
		RunE:              run(o),
	}
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *poolsOptions) Complete(args []string) error {
	o.nodes = args
	if err := o.complete(); err != nil {
		return err
	}
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *poolsOptions) Validate() error {
	for _, node := range o.nodes {
		if node == "" || strings.Contains(node, "/") {
			return fmt.Errorf("%q does not name a node: `kubectl get nodes` lists them", node)
		}
	}
	return nil
}

// Run implements options.
func (o *poolsOptions) Run(ctx context.Context) error {
	pools, err := o.pools(ctx, o.nodes)
	if err != nil {
		return err
	}
	if !o.table() {
		objs := make([]client.Object, 0, len(pools))
		for i := range pools {
			objs = append(objs, &pools[i])
		}
		return o.list(o.client, o.Out, objs)
	}
	if len(pools) == 0 {
		return o.nothing("pools", true, "")
	}
	head := []string{"NODE", "DEVICES", "CAPACITY", "FREE", "RETAINED", "REDUNDANCY", "WEAR", "HEALTH", "READY", "REASON"}
	if o.wide {
		head = append(head, "NAMESPACE-SHARE", "VOLUME-GROUP", "PATHS", "INITIATOR")
	}
	var rows [][]string
	for i := range pools {
		rows = append(rows, o.row(&pools[i]))
	}
	return table(o.Out, head, rows)
}

// pools returns the pools of some nodes, or all.
func (s *session) pools(ctx context.Context, nodes []string) ([]v1alpha1.CachePool, error) {
	if len(nodes) == 0 {
		var list v1alpha1.CachePoolList
		if err := s.client.List(ctx, &list); err != nil {
			if meta.IsNoMatchError(err) {
				return nil, errNoCRD()
			}
			return nil, fmt.Errorf("list CachePools: %w", err)
		}
		return list.Items, nil
	}
	var out []v1alpha1.CachePool
	for _, node := range nodes {
		var pool v1alpha1.CachePool
		err := s.client.Get(ctx, client.ObjectKey{Name: node}, &pool)
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("node %s has no CachePool: `%s pools` lists those there are, `%s doctor` says what is wrong on a node", node, name, name)
		case meta.IsNoMatchError(err):
			return nil, errNoCRD()
		case err != nil:
			return nil, fmt.Errorf("read CachePool %s: %w", node, err)
		}
		out = append(out, pool)
	}
	return out, nil
}

func (o *poolsOptions) row(p *v1alpha1.CachePool) []string {
	ready, reason := none, none
	if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		ready, reason = string(c.Status), c.Reason
	}
	row := []string{
		p.Name, usedDevices(p), bytesOf(p.Status.Capacity), bytesOf(p.Status.Free), bytesOf(p.Status.Retained),
		orNone(string(p.Spec.Redundancy)), wear(p), health(p), ready, reason,
	}
	if !o.wide {
		return row
	}
	var paths []string
	for _, d := range p.Status.Devices {
		paths = append(paths, d.Path)
	}
	share := none
	if n := p.Spec.NamespaceSharePercent; n > 0 {
		share = fmt.Sprintf("%d%%", n)
	}
	return append(row, share, orNone(p.Status.VolumeGroup), orNone(strings.Join(paths, ",")), orNone(p.Status.InitiatorIQN))
}

// usedDevices is how many of the matched devices are used: "2", or "1/2".
func usedDevices(p *v1alpha1.CachePool) string {
	used := 0
	for _, d := range p.Status.Devices {
		if d.Message == "" {
			used++
		}
	}
	if all := len(p.Status.Devices); used != all {
		return fmt.Sprintf("%d/%d", used, all)
	}
	return fmt.Sprint(used)
}

func bytesOf(q resource.Quantity) string { return quantity.Text(q.Value()) }

// wear is that of the most worn device.
func wear(p *v1alpha1.CachePool) string {
	var most *int32
	for _, d := range p.Status.Devices {
		if d.WearPercent != nil && (most == nil || *d.WearPercent > *most) {
			most = d.WearPercent
		}
	}
	if most == nil {
		return none
	}
	return number(most) + "%"
}

// health is Failing if one device says so.
func health(p *v1alpha1.CachePool) string {
	worst := none
	for _, d := range p.Status.Devices {
		switch {
		case d.Health == v1alpha1.DeviceFailing:
			return string(d.Health)
		case d.Health != "":
			worst = string(d.Health)
		}
	}
	return worst
}
