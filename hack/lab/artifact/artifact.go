package artifact

import (
	"context"
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
	// EnvtestOldest and EnvtestNewest are the same with the kube-apiserver of the oldest
	// Kubernetes that the chart supports, and of the newest that it is tried with; groups
	// for `make test-versions`.
	EnvtestOldest Group = "envtest-oldest"
	EnvtestNewest Group = "envtest-newest"
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
	// ImagesARM64 are the same for nodes of that architecture. Their Debian packages are
	// installed by an emulator where this machine is of another one.
	ImagesARM64 Group = "images-arm64"
	// PD is Google's Persistent Disk driver for a lab, an example of a driver whose
	// volumes are cached, and its sidecars as programs; used with Cluster.
	PD Group = "pd"
	// Ceph is the root file system of a Ceph of one machine for a lab, and the sidecars of
	// the driver over it as programs; used with Cluster.
	Ceph Group = "ceph"
	// Upstream is Kubernetes' own suite of tests and the images that its pods run.
	Upstream Group = "upstream"
	// Database is the image of a database, with PostgreSQL and pgbench, as an archive for `images add`.
	Database Group = "database"
	// Kind is what a cluster made by kind needs: Images, and archives of the sidecars
	// and of what test pods run.
	Kind Group = "kind"
	// KindGuest is a guest with a Docker engine, a node image for it and the kind
	// program; a group for `make e2e-kind-guest`, with Kernel, Envtest, Helm and Kind.
	KindGuest Group = "kind-guest"
)

// Groups returns all groups.
func Groups() []Group {
	return append([]Group{Envtest, EnvtestOldest, EnvtestNewest, Helm, Prometheus, Kernel, Cluster, PD, Ceph, Database, Images, ImagesARM64, Kind, KindGuest, Upstream}, StockKernels()...)
}

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
	// Version is that of the Images and ImagesARM64: what their programs say and their tag. Empty is
	// a development build with the tag "dev".
	Version string
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
	// version is that of the full images.
	version string
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
	return &builder{
		checkout: checkout, store: &store{root: cache, progress: progress, checkContent: opt.CheckContent}, version: opt.Version,
	}, nil
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
// lanes side by side: one keeps the processors busy, one the network and then what
// the linker leaves idle, and one waits for both.
type plan struct {
	// tools are what the user of the artifacts calls. What builds call is
	// installed only when something is built.
	tools []hostTool

	envtest, kube, sidecars       *task
	envtestOldest, envtestNewest  *task
	helm, prometheus, upstream    *task
	nodeRoot, nodeTools, workload *task
	kernel, nodeBase              *task
	nodeToolsARM64                *task
	driverImages, fullImages      *imageStep
	arm64Images                   *imageStep
	otherImages                   *archiveStep
	kindPrograms, kindGuest       *task
	pd, ceph, cephCSI, database   *task
	// stock are the kernels of distributions.
	stock map[Group]*task

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
// chain (sidecars, then the node base) ends first.
func (b *builder) plan(groups []Group) (*plan, error) {
	for _, g := range groups {
		if !slices.Contains(Groups(), g) {
			return nil, fmt.Errorf("unknown artifact group %q, known are %v", g, Groups())
		}
	}
	if slices.Contains(groups, KindGuest) {
		groups = append(slices.Clone(groups), Kernel, Envtest, Helm, Kind)
	}
	cluster := slices.Contains(groups, Cluster)
	want := func(g Group) bool { return cluster || slices.Contains(groups, g) }
	p := &plan{}
	if want(Envtest) {
		if err := b.planPrograms(p, &p.goLane, &p.envtest, "envtest", envtestPrograms()); err != nil {
			return nil, err
		}
	}
	for _, other := range []struct {
		group Group
		slot  **task
	}{{EnvtestOldest, &p.envtestOldest}, {EnvtestNewest, &p.envtestNewest}} {
		if !slices.Contains(groups, other.group) {
			continue
		}
		if err := b.planPrograms(p, &p.goLane, other.slot, string(other.group), otherEnvtest(other.group)); err != nil {
			return nil, err
		}
	}
	if want(Kernel) {
		b.planKernel(p)
	}
	b.planStock(p, groups)
	full := slices.Contains(groups, Images) || slices.Contains(groups, Kind)
	if cluster || full {
		p.nodeTools = newTask(b.layerRecipe("node-tools", nodeToolsTree("")))
		p.addTask(&p.debianLane, p.nodeTools, b.store)
	}
	if cluster {
		if err := b.planCluster(p); err != nil {
			return nil, err
		}
	}
	if slices.Contains(groups, PD) {
		if err := b.planPD(p); err != nil {
			return nil, err
		}
	}
	if slices.Contains(groups, Ceph) {
		if err := b.planCeph(p); err != nil {
			return nil, err
		}
	}
	if slices.Contains(groups, Database) {
		b.planDatabase(p)
	}
	if full {
		p.fullImages = b.fullImages(p.nodeTools)
		p.goLane = append(p.goLane, p.fullImages.run)
	}
	if slices.Contains(groups, ImagesARM64) {
		b.planARM64(p)
	}
	if slices.Contains(groups, Kind) {
		if err := b.planKind(p); err != nil {
			return nil, err
		}
	}
	if slices.Contains(groups, KindGuest) {
		if err := b.planKindGuest(p); err != nil {
			return nil, err
		}
	}
	if want(Helm) {
		if err := b.planPrograms(p, &p.debianLane, &p.helm, "helm", helmPrograms()); err != nil {
			return nil, err
		}
	}
	if slices.Contains(groups, Prometheus) {
		if err := b.planPrograms(p, &p.goLane, &p.prometheus, "prometheus", prometheusPrograms()); err != nil {
			return nil, err
		}
	}
	if slices.Contains(groups, Upstream) {
		if err := b.planUpstream(p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *plan) addTask(lane *[]step, t *task, s *store) {
	*lane = append(*lane, func(ctx context.Context) error { return t.run(ctx, s) })
}

func (b *builder) planPrograms(p *plan, lane *[]step, slot **task, name string, programs []goProgram) error {
	r, err := b.programs(name, programs)
	if err != nil {
		return err
	}
	*slot = newTask(r)
	p.addTask(lane, *slot, b.store)
	return nil
}

func (b *builder) planKernel(p *plan) {
	p.nodeRoot = newTask(b.nodeRootRecipe())
	p.addTask(&p.debianLane, p.nodeRoot, b.store)
	p.kernel = newTask(b.kernelRecipe(p.nodeRoot.recipe.key(), func() string { return p.nodeRoot.dir }), p.nodeRoot)
	p.addTask(&p.guestLane, p.kernel, b.store)
}

// planSidecars plans the sidecars and the layer of what test pods run, once.
func (b *builder) planSidecars(p *plan) error {
	if p.sidecars != nil {
		return nil
	}
	b.planWorkload(p)
	return b.planPrograms(p, &p.goLane, &p.sidecars, "sidecars", sidecarBuild())
}

// planWorkload plans the layer of what test pods run, once.
func (b *builder) planWorkload(p *plan) {
	if p.workload != nil {
		return
	}
	p.workload = newTask(b.layerRecipe("workload", workloadTree()))
	p.addTask(&p.debianLane, p.workload, b.store)
}

func (b *builder) planUpstream(p *plan) error {
	b.planWorkload(p)
	r, err := b.upstreamRecipe(p.workload)
	if err != nil {
		return err
	}
	p.upstream = newTask(r, p.workload)
	p.addTask(&p.goLane, p.upstream, b.store)
	return nil
}

func (b *builder) planARM64(p *plan) {
	p.nodeToolsARM64 = newTask(b.layerRecipe("node-tools-arm64", nodeToolsTree(arm64)))
	p.addTask(&p.debianLane, p.nodeToolsARM64, b.store)
	p.arm64Images = b.arm64Images(p.nodeToolsARM64)
	p.goLane = append(p.goLane, p.arm64Images.run)
}

func (b *builder) planKind(p *plan) error {
	if err := b.planSidecars(p); err != nil {
		return err
	}
	p.otherImages = &archiveStep{
		builder: b, sidecars: p.sidecars, workload: p.workload, dir: filepath.Join(b.checkout, "_output", "kind-images"),
	}
	p.guestLane = append(p.guestLane, p.otherImages.run)
	return nil
}

func (b *builder) planCluster(p *plan) error {
	p.tools = append(p.tools, networkTools()...)
	if err := b.planSidecars(p); err != nil {
		return err
	}
	if err := b.planPrograms(p, &p.goLane, &p.kube, "kube", kubePrograms()); err != nil {
		return err
	}
	needs := []*task{p.nodeRoot, p.kernel, p.sidecars, p.nodeTools, p.workload}
	keys := []string{p.kube.recipe.key()}
	for _, t := range needs {
		keys = append(keys, t.recipe.key())
	}
	kubelet := func(ctx context.Context) (string, error) {
		err := p.kube.wait(ctx)
		return p.kube.file("kubelet"), err
	}
	base, err := b.nodeBaseRecipe(keys, func() nodeBaseParts {
		return nodeBaseParts{
			nodeRoot: p.nodeRoot.dir, kernel: p.kernel.dir, kubelet: kubelet,
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
