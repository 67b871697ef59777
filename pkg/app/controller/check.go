package controller

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/kube"
)

const (
	// checkPause is the pause between two looks; pollLimit is how long one may take.
	checkPause, pollLimit = 2 * time.Second, 30 * time.Second
	// leaseSlack is by how much the clocks of a leader and of the check may differ.
	leaseSlack = 30 * time.Second
)

// checkedLeases are held when the controller and each of its sidecars work. The
// sidecars name theirs after the driver (csi-lib-utils, leaderelection.sanitizeName).
func checkedLeases() []string {
	name := strings.ReplaceAll(driver.Name, ".", "-")
	return []string{leaseName, name, "external-attacher-leader-" + name, "external-resizer-" + name}
}

// Check is the command behind `helm test`: it reports whether the parts of an
// installation have found each other. It changes nothing.
type Check struct {
	// Out is where its findings go.
	Out io.Writer

	namespace, daemonSet string
	timeout              time.Duration
}

// AddFlags defines the flags of nearflash-controller check.
func (c *Check) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.namespace, "namespace", "", "`namespace` of the installation")
	fs.StringVar(&c.daemonSet, "daemonset", "", "`name` of the node plugin's DaemonSet there")
	fs.DurationVar(&c.timeout, "timeout", 2*time.Minute, "how long to wait until everything is well")
}

// Validate reports everything that is wrong with the flags at once.
func (c *Check) Validate() error {
	var errs []error
	if c.namespace == "" {
		errs = append(errs, errors.New("--namespace is required"))
	}
	if c.daemonSet == "" {
		errs = append(errs, errors.New("--daemonset is required"))
	}
	if c.timeout < 0 {
		errs = append(errs, fmt.Errorf("--timeout %s: accepted are 0 (look once) and more", c.timeout))
	}
	return errors.Join(errs...)
}

// Run looks until nothing is wrong, or the time has run out. It fails then, and
// says what is wrong.
func (c *Check) Run(ctx context.Context) error {
	if err := c.Validate(); err != nil {
		return err
	}
	config, err := kube.Config()
	if err != nil {
		return err
	}
	scheme, err := kube.NewScheme()
	if err != nil {
		return err
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	return c.wait(ctx, api)
}

// wait looks at the installation again and again.
func (c *Check) wait(ctx context.Context, api client.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+pollLimit)
	defer cancel()
	deadline := time.Now().Add(c.timeout)
	for {
		found := &findings{}
		c.inspect(ctx, api, found)
		if len(found.wrong) == 0 || !time.Now().Before(deadline) {
			return c.report(found)
		}
		select {
		case <-ctx.Done():
			return errors.Join(c.report(found), ctx.Err())
		case <-time.After(checkPause):
		}
	}
}

// findings are what one look has found: what is wrong, what is well, and what an
// administrator should know although it is no fault of the installation.
type findings struct {
	wrong, well, notes []string
}

func (f *findings) problem(format string, args ...any) {
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

func (f *findings) ok(format string, args ...any) {
	f.well = append(f.well, fmt.Sprintf(format, args...))
}

func (f *findings) add(format string, args ...any) {
	f.notes = append(f.notes, fmt.Sprintf(format, args...))
}

// report prints the findings.
func (c *Check) report(f *findings) error {
	var out strings.Builder
	for _, part := range []struct {
		word  string
		lines []string
	}{{"ok", f.well}, {"note", f.notes}, {"WRONG", f.wrong}} {
		for _, line := range part.lines {
			fmt.Fprintf(&out, "%-6s %s\n", part.word, line)
		}
	}
	if _, err := io.WriteString(c.Out, out.String()); err != nil {
		return err
	}
	if n := len(f.wrong); n > 0 {
		return fmt.Errorf("%d of %d checks failed: see docs/troubleshooting.md, or `kubectl nearflash doctor`", n, n+len(f.well))
	}
	return nil
}

// inspect asks the API server for everything once.
func (c *Check) inspect(ctx context.Context, api client.Reader, f *findings) {
	checkDriver(ctx, api, f)
	checkDefinitions(ctx, api, f)
	for _, name := range checkedLeases() {
		c.checkLease(ctx, api, name, f)
	}
	c.checkNodes(ctx, api, f)
}

func checkDriver(ctx context.Context, api client.Reader, f *findings) {
	var object storagev1.CSIDriver
	switch err := api.Get(ctx, client.ObjectKey{Name: driver.Name}, &object); {
	case err != nil:
		f.problem("CSIDriver %s: %v", driver.Name, err)
	case object.Spec.AttachRequired == nil || !*object.Spec.AttachRequired:
		f.problem("CSIDriver %s has attachRequired false: nothing would keep two nodes from writing to one volume", driver.Name)
	default:
		f.ok("CSIDriver %s, volumes are attached before they are staged", driver.Name)
	}
}

func checkDefinitions(ctx context.Context, api client.Reader, f *findings) {
	lists := []client.ObjectList{
		&v1alpha1.CachedVolumeList{}, &v1alpha1.CachePoolList{}, &v1alpha1.CacheMigrationList{}, &v1alpha1.CacheHotSetList{},
	}
	for _, list := range lists {
		name := strings.TrimPrefix(fmt.Sprintf("%T", list), "*v1alpha1.")
		if err := api.List(ctx, list, client.Limit(1)); err != nil {
			f.problem("%s: %v; apply the chart's crds/", name, err)
			continue
		}
		f.ok("%s is served", name)
	}
}

// checkLease wants a leader that still renews its lease.
func (c *Check) checkLease(ctx context.Context, api client.Reader, name string, f *findings) {
	var lease coordinationv1.Lease
	if err := api.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, &lease); err != nil {
		f.problem("lease %s: %v; does the controller pod run?", name, err)
		return
	}
	s := lease.Spec
	switch {
	case s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || s.LeaseDurationSeconds == nil:
		f.problem("lease %s has no holder: that container of the controller pod does not work", name)
	case time.Since(s.RenewTime.Time) > time.Duration(*s.LeaseDurationSeconds)*time.Second+leaseSlack:
		f.problem("lease %s of %s was last renewed %s ago", name, *s.HolderIdentity, time.Since(s.RenewTime.Time).Round(time.Second))
	default:
		f.ok("lease %s is held by %s", name, *s.HolderIdentity)
	}
}

// checkNodes wants the node plugin ready wherever it should run, known to the
// kubelet there, and its CachePool reported.
func (c *Check) checkNodes(ctx context.Context, api client.Reader, f *findings) {
	var set appsv1.DaemonSet
	if err := api.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: c.daemonSet}, &set); err != nil {
		f.problem("DaemonSet %s: %v", c.daemonSet, err)
		return
	}
	switch s := set.Status; {
	case s.ObservedGeneration < set.Generation:
		f.problem("DaemonSet %s has not been looked at by Kubernetes yet", c.daemonSet)
	case s.DesiredNumberScheduled == 0:
		f.problem("DaemonSet %s is for no node: see node.nodeSelector and node.tolerations", c.daemonSet)
	case s.NumberReady < s.DesiredNumberScheduled:
		f.problem("the node plugin is ready on %d of %d nodes: see the first lines of its log on the others", s.NumberReady, s.DesiredNumberScheduled)
	default:
		f.ok("the node plugin is ready on %d of %d nodes", s.NumberReady, s.DesiredNumberScheduled)
	}
	var pools v1alpha1.CachePoolList
	if err := api.List(ctx, &pools); err != nil {
		f.problem("CachePools: %v", err)
		return
	}
	nodes, err := c.pluginNodes(ctx, api, &set)
	if err != nil {
		f.problem("pods of DaemonSet %s: %v", c.daemonSet, err)
		return
	}
	for _, node := range nodes {
		checkRegistration(ctx, api, node, f)
		checkPool(node, pools.Items, f)
	}
}

// pluginNodes are the nodes where a pod of the DaemonSet is ready, in order.
func (c *Check) pluginNodes(ctx context.Context, api client.Reader, set *appsv1.DaemonSet) ([]string, error) {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(c.namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, err
	}
	var nodes []string
	for _, pod := range pods.Items {
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if ready && pod.Spec.NodeName != "" {
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

func checkRegistration(ctx context.Context, api client.Reader, node string, f *findings) {
	var object storagev1.CSINode
	if err := api.Get(ctx, client.ObjectKey{Name: node}, &object); err != nil {
		f.problem("CSINode %s: %v", node, err)
		return
	}
	if !kube.Registered(&object, driver.Name) {
		f.problem("the kubelet of node %s does not know %s: is node.kubeletDir its root directory?", node, driver.Name)
		return
	}
	f.ok("the kubelet of node %s knows the driver", node)
}

// checkPool wants a CachePool. What it says of SSDs and kernel is told and is no
// failure: volumes attach without a cache there.
func checkPool(node string, pools []v1alpha1.CachePool, f *findings) {
	i := slices.IndexFunc(pools, func(p v1alpha1.CachePool) bool { return p.Name == node })
	if i < 0 {
		f.problem("node %s has no CachePool: its plugin cannot reach the API server, or may not", node)
		return
	}
	f.ok("node %s has a CachePool", node)
	for _, kind := range []string{v1alpha1.ConditionPreflight, v1alpha1.ConditionHostTools, v1alpha1.ConditionReady} {
		condition := meta.FindStatusCondition(pools[i].Status.Conditions, kind)
		if condition != nil && condition.Status != metav1.ConditionTrue {
			f.add("CachePool %s: %s is %s (%s): %s", node, kind, condition.Status, condition.Reason, condition.Message)
		}
	}
}
