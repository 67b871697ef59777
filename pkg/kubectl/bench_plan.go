package kubectl

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/bench"
	"github.com/nearflash/nearflash/pkg/quantity"
)

// plan reads what is needed of the cluster. Temporary classes are made later, when the run has an
// identity.
func (o *benchOptions) plan(ctx context.Context) (*bench.Plan, error) {
	p := &bench.Plan{
		Namespace: o.namespace, Image: o.image, Size: resource.MustParse(o.size), Runtime: o.runtime, WarmLimit: o.warmLimit, Depth: o.depth, Keep: o.keep,
	}
	var err error
	if o.database() {
		memory := int64(0)
		if o.memory != "" {
			if memory, err = quantity.Bytes(o.memory); err != nil {
				return nil, err
			}
		}
		p.Database = bench.PlanDatabase(p.Size.Value(), o.depth, memory)
	} else if p.Profiles, err = o.chosenProfiles(); err != nil {
		return nil, err
	}
	if o.claim != "" {
		return p, o.planClaim(ctx, p)
	}
	if p.Subjects, err = o.subjects(ctx); err != nil {
		return nil, err
	}
	return p, o.planNodes(ctx, p)
}

func (o *benchOptions) chosenProfiles() ([]bench.Profile, error) {
	names := o.profiles
	if len(names) == 0 && o.jobFile == "" {
		names = bench.Names()[:1]
	}
	var out []bench.Profile
	for _, n := range names {
		p, _ := bench.Named(n) // Validate has seen to it that there is one
		out = append(out, p)
	}
	if o.jobFile != "" {
		text, err := os.ReadFile(o.jobFile)
		if err != nil {
			return nil, fmt.Errorf("--job-file %s: %w: accepted is a job file of fio", o.jobFile, err)
		}
		p, err := bench.ParseJobFile(filepath.Base(o.jobFile), string(text))
		if err != nil {
			return nil, fmt.Errorf("--job-file %s: %w", o.jobFile, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// planClaim plans to read a claim that exists, on the node that has it.
func (o *benchOptions) planClaim(ctx context.Context, p *bench.Plan) error {
	for _, profile := range p.Profiles {
		if profile.Writes {
			return fmt.Errorf("profile %s writes, and --claim is only read: accepted are those that read", profile.Name)
		}
	}
	v, err := o.resolve(ctx, o.claim)
	if err != nil {
		return err
	}
	if v.Claim == "" || v.ClaimNamespace != o.namespace {
		return fmt.Errorf("--claim %s: there is no such claim in namespace %s: a pod reads only claims of its own", o.claim, o.namespace)
	}
	block := v.PV != nil && v.PV.Spec.VolumeMode != nil && *v.PV.Spec.VolumeMode == corev1.PersistentVolumeBlock
	switch {
	case block && o.claimFile != "":
		return fmt.Errorf("--claim-file %s: claim %s is a block device without files: leave it out", o.claimFile, v.Claim)
	case !block && o.claimFile == "":
		return fmt.Errorf("claim %s has a filesystem: name a large file of it with --claim-file, such as data/base", v.Claim)
	case o.node != "" && v.attached() && v.node() != o.node:
		return fmt.Errorf("--node %s: claim %s is in use on node %s: leave --node out", o.node, v.Claim, v.node())
	}
	p.Node = v.node()
	if p.Node == "" {
		if err := o.planNodes(ctx, p); err != nil {
			return err
		}
	}
	p.Subjects = []bench.Subject{{Name: v.Claim, Claim: v.Claim, File: o.claimFile, Mode: v.Spec.CacheMode}}
	return nil
}

// subjects are the volumes to make, those without a cache first.
func (o *benchOptions) subjects(ctx context.Context) ([]bench.Subject, error) {
	var out []bench.Subject
	if len(o.modes) == 0 && len(o.classes) == 0 {
		o.modes = modes[:2]
	}
	if len(o.modes) > 0 {
		template, err := o.template(ctx)
		if err != nil {
			return nil, err
		}
		for _, mode := range bench.Modes() {
			if slices.Contains(o.modes, mode) {
				out = append(out, bench.Subject{Name: mode, Mode: v1alpha1.CacheMode(mode), Temporary: template})
			}
		}
		return out, nil
	}
	for _, n := range o.classes {
		class, err := o.benchClass(ctx, n)
		if err != nil {
			return nil, err
		}
		if p := class.ReclaimPolicy; p != nil && *p != corev1.PersistentVolumeReclaimDelete {
			return nil, fmt.Errorf("--class %s keeps the volumes of claims that are deleted (reclaimPolicy %s): measure it as a template, with --mode %s", n, *p, bench.ModeOf(class))
		}
		out = append(out, bench.Subject{Name: n, Mode: bench.ModeOf(class), Class: n})
	}
	slices.SortStableFunc(out, func(a, b bench.Subject) int {
		return slices.Index(bench.Modes(), string(a.Mode)) - slices.Index(bench.Modes(), string(b.Mode))
	})
	return out, nil
}

// derive makes the temporary classes of a run that has an identity now.
func (o *benchOptions) derive(p *bench.Plan) error {
	for i := range p.Subjects {
		s := &p.Subjects[i]
		if s.Temporary == nil {
			continue
		}
		class, err := bench.Derive(s.Temporary, p.Namespace, p.Run, s.Mode, o.cacheSizeOf(s.Mode))
		if err != nil {
			return err
		}
		s.Temporary, s.Class = class, class.Name
	}
	return nil
}

func (o *benchOptions) cacheSizeOf(mode v1alpha1.CacheMode) string {
	if mode == v1alpha1.CacheModeNone {
		return ""
	}
	return o.cacheSize
}

// template is the class that temporary ones are made of.
func (o *benchOptions) template(ctx context.Context) (*storagev1.StorageClass, error) {
	if len(o.classes) == 1 {
		return o.benchClass(ctx, o.classes[0])
	}
	var list storagev1.StorageClassList
	if err := o.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list StorageClasses: %w", err)
	}
	var names []string
	var ours []*storagev1.StorageClass
	for i := range list.Items {
		if c := &list.Items[i]; c.Provisioner == driverName && c.Labels[bench.Label] == "" {
			names, ours = append(names, c.Name), append(ours, c)
		}
	}
	switch len(ours) {
	case 0:
		return nil, fmt.Errorf("there is no StorageClass with the provisioner %s that temporary ones could be made of: make one, or name a claim with --claim", driverName)
	case 1:
		return ours[0], nil
	}
	return nil, fmt.Errorf("--class is missing: name the one of %s that temporary classes are made of", strings.Join(names, ", "))
}

func (o *benchOptions) benchClass(ctx context.Context, n string) (*storagev1.StorageClass, error) {
	var class storagev1.StorageClass
	err := o.client.Get(ctx, client.ObjectKey{Name: n}, &class)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("--class %s: there is no such StorageClass: accepted are those with the provisioner %s", n, driverName)
	case err != nil:
		return nil, fmt.Errorf("read StorageClass %s: %w", n, err)
	case class.Provisioner != driverName:
		return nil, fmt.Errorf("--class %s has the provisioner %s: accepted are those with %s", n, class.Provisioner, driverName)
	}
	return &class, nil
}

// planNodes chooses the nodes: those whose pools are ready, most room first.
func (o *benchOptions) planNodes(ctx context.Context, p *bench.Plan) error {
	pools, err := o.pools(ctx, nil)
	if err != nil {
		return err
	}
	slices.SortStableFunc(pools, func(a, b v1alpha1.CachePool) int { return b.Status.Free.Cmp(a.Status.Free) })
	var names []string
	for i := range pools {
		if meta.IsStatusConditionPresentAndEqual(pools[i].Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionTrue) {
			names = append(names, pools[i].Name)
		}
	}
	for flag, node := range map[string]string{"node": o.node, "to": o.to} {
		if node != "" && !slices.Contains(names, node) {
			return fmt.Errorf("--%s %s has no pool of SSDs that is ready: accepted are %s; `%s doctor` says what is wrong", flag, node, orNone(strings.Join(names, ", ")), name)
		}
	}
	p.Node = o.node
	for _, n := range names {
		if p.Node == "" && n != o.to {
			p.Node = n
		}
	}
	if p.Node == "" {
		return fmt.Errorf("no node has a pool of SSDs that is ready: `%s doctor` says what is wrong", name)
	}
	if !o.move {
		return nil
	}
	p.Other = o.to
	for _, n := range names {
		if p.Other == "" && n != p.Node {
			p.Other = n
		}
	}
	if p.Other == "" {
		return fmt.Errorf("--move: there is no other node with a pool of SSDs that is ready than %s: leave --move out", p.Node)
	}
	return nil
}
