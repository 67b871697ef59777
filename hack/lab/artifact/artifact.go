package artifact

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Group names a set of artifacts that are used together.
type Group string

const (
	// Envtest is what API tests need: kube-apiserver, etcd and kubectl in one directory.
	Envtest Group = "envtest"
	// Helm is the helm program.
	Helm Group = "helm"
	// Prometheus is prometheus and promtool.
	Prometheus Group = "prometheus"
	// Kernel is the guest kernel and a root file system without container images:
	// what tests of one kernel need.
	Kernel Group = "kernel"
	// Cluster is everything a lab cluster needs, the groups above but Prometheus
	// included.
	Cluster Group = "cluster"
	// Images are the project's own images as complete archives for any engine.
	Images Group = "images"
)

// Groups returns all groups.
func Groups() []Group { return []Group{Envtest, Helm, Prometheus, Kernel, Cluster, Images} }

// Options say what is needed and where it is kept.
type Options struct {
	// CacheDir is shared by all checkouts of a user; empty means DefaultCacheDir.
	CacheDir string
	// Checkout is the root of the source tree.
	Checkout string
	// Groups are what must be there on return. None means nothing.
	Groups []Group
	// Progress is told about everything that takes longer than a moment; it must
	// be safe for concurrent use. nil means silence.
	Progress func(format string, args ...any)
	// CheckContent verifies the hash of every file, which takes seconds. Without
	// it the content of a file whose size, mode and time are as recorded is taken
	// for good.
	CheckContent bool
}

// Set is where the artifacts are. Fields of groups that were not asked for are
// empty. All files are read-only for the caller.
type Set struct {
	// Bin maps the name of a program to its path: kube-apiserver, kubectl, etcd
	// (Envtest); helm (Helm); prometheus, promtool (Prometheus); those of Envtest
	// and Helm and kube-controller-manager, kube-scheduler, kubelet (Cluster).
	Bin map[string]string
	// Kernel is the User-Mode Linux program (Kernel, Cluster).
	Kernel string
	// NodeRoot is an ext4 image with the software of a guest but no container
	// image and no kubelet, a backing file for a COW root (Kernel, Cluster).
	NodeRoot string
	// NodeBase is NodeRoot with kubelet, containerd's configuration and all images
	// that do not come from this checkout (Cluster).
	NodeBase string
	// DriverImages are archives of the images built from this checkout (Cluster).
	// They leave out the layer that NodeBase has: only `ctr -n k8s.io images import`
	// in a guest with that root can load them.
	DriverImages []string
	// FullImages are complete archives of the images built from this checkout (Images).
	FullImages []string
}

// Ensure returns the artifacts of the asked groups, verified. What is absent or
// damaged is made; Debian trees, Go programs and the guest that unpacks images
// are worked on at the same time.
//
// It fails with ErrHostTool or ErrMirror, which state the remedy, with the
// context's error, or with what a build command said.
func Ensure(ctx context.Context, opt Options) (*Set, error) {
	b, err := newBuilder(opt)
	if err != nil {
		return nil, err
	}
	p, err := b.plan(opt.Groups)
	if err != nil {
		return nil, err
	}
	if err := b.store.ensureHostTools(ctx, p.tools); err != nil {
		return nil, err
	}
	if err := b.store.sweep(); err != nil {
		return nil, err
	}
	if err := p.run(ctx, b.store); err != nil {
		return nil, err
	}
	return p.set(opt.Groups), nil
}

// builder makes artifacts for one checkout.
type builder struct {
	checkout string
	store    *store
}

func newBuilder(opt Options) (*builder, error) {
	cache := opt.CacheDir
	if cache == "" {
		var err error
		if cache, err = DefaultCacheDir(); err != nil {
			return nil, err
		}
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	checkout, err := filepath.Abs(opt.Checkout)
	if err != nil {
		return nil, err
	}
	if !exists(filepath.Join(checkout, "hack", "tools")) {
		return nil, fmt.Errorf("%s is not a checkout: it has no hack/tools", checkout)
	}
	progress := opt.Progress
	if progress == nil {
		progress = func(string, ...any) {}
	}
	return &builder{checkout: checkout, store: &store{root: cache, progress: progress, checkContent: opt.CheckContent}}, nil
}

// task is one artifact of a plan.
type task struct {
	recipe recipe
	// needs are the artifacts that the build reads.
	needs []*task
	// dir is valid once done is closed without the plan having failed.
	dir  string
	done chan struct{}
}

func newTask(r recipe, needs ...*task) *task {
	return &task{recipe: r, needs: needs, done: make(chan struct{})}
}

func (t *task) file(name string) string { return filepath.Join(t.dir, name) }

// run makes the artifact once everything it needs is there.
func (t *task) run(ctx context.Context, s *store) error {
	for _, need := range t.needs {
		if err := need.wait(ctx); err != nil {
			return err
		}
	}
	dir, err := s.ensure(ctx, t.recipe)
	if err != nil {
		return err
	}
	t.dir = dir
	close(t.done)
	return nil
}

func (t *task) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// plan is what is to be made. The steps of a lane run one after the other, the
// lanes side by side: one keeps the processors busy, one the network, and one
// waits for both.
type plan struct {
	// tools are what the user of the artifacts calls. What builds call is
	// installed only when something is built.
	tools []hostTool

	envtest, kube, sidecars       *task
	helm, prometheus              *task
	nodeRoot, nodeTools, workload *task
	kernel, nodeBase              *task
	driverImages, fullImages      *imageStep

	goLane, debianLane, guestLane []step
}

type step func(ctx context.Context) error

func (p *plan) run(ctx context.Context, s *store) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, lane := range [][]step{p.goLane, p.debianLane, p.guestLane} {
		g.Go(func() error {
			for _, run := range lane {
				if err := run(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// plan lists the artifacts of the groups in the order in which the longest
// chain (kubelet and sidecars, then the node base) ends first.
func (b *builder) plan(groups []Group) (*plan, error) {
	for _, g := range groups {
		if !slices.Contains(Groups(), g) {
			return nil, fmt.Errorf("unknown artifact group %q, known are %v", g, Groups())
		}
	}
	cluster := slices.Contains(groups, Cluster)
	want := func(g Group) bool { return cluster || slices.Contains(groups, g) }
	p := &plan{}
	if want(Envtest) {
		if err := b.planPrograms(p, &p.envtest, "envtest", envtestPrograms()); err != nil {
			return nil, err
		}
	}
	if want(Kernel) {
		b.planKernel(p)
	}
	if cluster || slices.Contains(groups, Images) {
		p.nodeTools = newTask(b.layerRecipe("node-tools", nodeToolsTree()))
		p.addTask(&p.debianLane, p.nodeTools, b.store)
	}
	if cluster {
		if err := b.planCluster(p); err != nil {
			return nil, err
		}
	}
	if slices.Contains(groups, Images) {
		p.fullImages = b.fullImages(p.nodeTools)
		p.goLane = append(p.goLane, p.fullImages.run)
	}
	if want(Helm) {
		if err := b.planPrograms(p, &p.helm, "helm", helmPrograms()); err != nil {
			return nil, err
		}
	}
	if slices.Contains(groups, Prometheus) {
		if err := b.planPrograms(p, &p.prometheus, "prometheus", prometheusPrograms()); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *plan) addTask(lane *[]step, t *task, s *store) {
	*lane = append(*lane, func(ctx context.Context) error { return t.run(ctx, s) })
}

func (b *builder) planPrograms(p *plan, slot **task, name string, programs []goProgram) error {
	r, err := b.programs(name, programs)
	if err != nil {
		return err
	}
	*slot = newTask(r)
	p.addTask(&p.goLane, *slot, b.store)
	return nil
}

func (b *builder) planKernel(p *plan) {
	p.nodeRoot = newTask(b.nodeRootRecipe())
	p.addTask(&p.debianLane, p.nodeRoot, b.store)
	p.kernel = newTask(b.kernelRecipe(p.nodeRoot.recipe.key(), func() string { return p.nodeRoot.dir }), p.nodeRoot)
	p.addTask(&p.guestLane, p.kernel, b.store)
}

func (b *builder) planCluster(p *plan) error {
	p.tools = append(p.tools, networkTools()...)
	if err := b.planPrograms(p, &p.kube, "kube", kubePrograms()); err != nil {
		return err
	}
	if err := b.planPrograms(p, &p.sidecars, "sidecars", sidecarPrograms()); err != nil {
		return err
	}
	p.workload = newTask(b.layerRecipe("workload", workloadTree()))
	p.addTask(&p.debianLane, p.workload, b.store)

	needs := []*task{p.nodeRoot, p.kernel, p.kube, p.sidecars, p.nodeTools, p.workload}
	var keys []string
	for _, t := range needs {
		keys = append(keys, t.recipe.key())
	}
	base, err := b.nodeBaseRecipe(keys, func() nodeBaseParts {
		return nodeBaseParts{
			nodeRoot: p.nodeRoot.dir, kernel: p.kernel.dir, kube: p.kube.dir,
			sidecars: p.sidecars.dir, nodeTools: p.nodeTools.dir, workload: p.workload.dir,
		}
	})
	if err != nil {
		return err
	}
	p.nodeBase = newTask(base, needs...)
	p.addTask(&p.guestLane, p.nodeBase, b.store)

	p.driverImages = b.labImages(p.nodeTools)
	p.goLane = append(p.goLane, p.driverImages.run)
	return nil
}

// set collects the paths after a successful run.
func (p *plan) set(groups []Group) *Set {
	s := &Set{Bin: map[string]string{}}
	for _, part := range []struct {
		task     *task
		programs []goProgram
	}{
		{p.envtest, envtestPrograms()}, {p.kube, kubePrograms()}, {p.helm, helmPrograms()},
		{p.prometheus, prometheusPrograms()},
	} {
		if part.task == nil {
			continue
		}
		for _, program := range part.programs {
			s.Bin[program.name] = part.task.file(program.name)
		}
	}
	if p.kernel != nil {
		s.Kernel, s.NodeRoot = p.kernel.file(kernelFile), p.nodeRoot.file(nodeRootFile)
	}
	if p.nodeBase != nil {
		s.NodeBase = p.nodeBase.file(nodeBaseFile)
	}
	if p.driverImages != nil {
		s.DriverImages = p.driverImages.archives
	}
	if p.fullImages != nil {
		s.FullImages = p.fullImages.archives
	}
	return s
}

// Dir returns the directory of a group, for callers that want one: the programs
// of Envtest, Helm and Prometheus, the kernel, the archives of Images.
func (s *Set) Dir(g Group) (string, error) {
	path := ""
	switch g {
	case Envtest:
		path = s.Bin["kube-apiserver"]
	case Helm:
		path = s.Bin["helm"]
	case Prometheus:
		path = s.Bin["prometheus"]
	case Kernel:
		path = s.Kernel
	case Images:
		if len(s.FullImages) > 0 {
			path = s.FullImages[0]
		}
	case Cluster:
		return "", errors.New("the cluster group has no single directory")
	}
	if path == "" {
		return "", fmt.Errorf("group %q was not asked for", g)
	}
	return filepath.Dir(path), nil
}
