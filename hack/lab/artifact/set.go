package artifact

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Set is where the artifacts are. Fields of groups that were not asked for are
// empty. All files are read-only for the caller.
type Set struct {
	// Bin maps the name of a program to its path: kube-apiserver, kubectl, etcd
	// (Envtest); helm (Helm); prometheus, promtool (Prometheus); e2e.test (Upstream);
	// those of Envtest and Helm and kube-controller-manager, kube-scheduler, kubelet,
	// snapshot-controller (Cluster).
	Bin map[string]string
	// EnvtestOldest and EnvtestNewest are directories of kube-apiserver, kubectl and etcd.
	EnvtestOldest, EnvtestNewest string
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
	// FullImages are complete archives of the images built from this checkout (Images,
	// Kind).
	FullImages []string
	// ARM64Images are the same for nodes of arm64 (ImagesARM64).
	ARM64Images []string
	// OtherImages are complete archives of the other images of a cluster (Kind).
	OtherImages []string
	// PD is the program of the Persistent Disk driver (PD).
	PD string
	// CephRoot is an archive of a root file system with Ceph's daemons and tools (Ceph).
	CephRoot string
	// CephCSI is ceph-csi's program for that root (Ceph, if CEPH_CSI_SRC names its source).
	CephCSI string
	// Sidecars are programs for an origin's controller (PD, Ceph).
	Sidecars Sidecars
	// Database is an archive of the image of a database (Database).
	Database string
	// KindGuest is the directory of root.ext4, node.tar and kind (KindGuest).
	KindGuest string
	// Stock are the kernels of distributions (their groups).
	Stock map[Group]StockKernel
}

// Sidecars are the programs of the sidecars that a CSI driver's controller needs.
type Sidecars struct {
	Provisioner, Attacher, Resizer, Snapshotter string
}

// NodeTools is the name of an image that the nodes have, with host tools: what an origin's
// node plugin runs over.
const NodeTools = nodeToolsImage

// StockKernel is an unmodified kernel of a distribution.
type StockKernel struct {
	// Vmlinuz is the kernel, Modules an ext4 image of its /lib/modules.
	Vmlinuz, Modules string
	// Boot has the modules that a guest needs for its root, their order in Order.
	Boot, Order string
}

// set collects the paths after a successful run.
func (p *plan) set(groups []Group) *Set {
	s := &Set{Bin: map[string]string{}}
	for _, part := range []struct {
		task     *task
		programs []goProgram
	}{
		{p.envtest, envtestPrograms()}, {p.kube, kubePrograms()}, {p.helm, helmPrograms()},
		{p.prometheus, prometheusPrograms()}, {p.upstream, upstreamTests()},
	} {
		if part.task == nil {
			continue
		}
		for _, program := range part.programs {
			s.Bin[program.name] = part.task.file(program.name)
		}
	}
	if p.sidecars != nil {
		s.Bin[SnapshotController] = p.sidecars.file(SnapshotController)
	}
	if p.envtestOldest != nil {
		s.EnvtestOldest = p.envtestOldest.dir
	}
	if p.envtestNewest != nil {
		s.EnvtestNewest = p.envtestNewest.dir
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
	if p.arm64Images != nil {
		s.ARM64Images = p.arm64Images.archives
	}
	for g, t := range p.stock {
		if s.Stock == nil {
			s.Stock = map[Group]StockKernel{}
		}
		s.Stock[g] = StockKernel{
			Vmlinuz: t.file(stockVmlinuz), Modules: t.file(stockModules), Boot: t.file(stockBoot), Order: filepath.Join(t.file(stockBoot), stockOrder),
		}
	}
	if p.pd != nil {
		s.PD = p.pd.file(pdProgramName)
	}
	if p.ceph != nil {
		s.CephRoot = p.ceph.file(layerFile)
	}
	if p.cephCSI != nil {
		s.CephCSI = p.cephCSI.file(cephCSIFile)
	}
	if p.pd != nil || p.ceph != nil {
		s.Sidecars = Sidecars{
			Provisioner: p.sidecars.file("csi-provisioner"), Attacher: p.sidecars.file("csi-attacher"), Resizer: p.sidecars.file("csi-resizer"),
			Snapshotter: p.sidecars.file("csi-snapshotter"),
		}
	}
	if p.database != nil {
		s.Database = p.database.file(databaseArchive)
	}
	if p.kindGuest != nil {
		s.KindGuest = p.kindGuest.dir
	}
	if p.otherImages != nil {
		s.OtherImages = p.otherImages.archives
	}
	return s
}

// Dir returns the directory of a group, for callers that want one: the programs
// of Envtest and its like, Helm, Prometheus and Upstream, the kernel, the archives of Images and
// ImagesARM64, the other archives of Kind.
func (s *Set) Dir(g Group) (string, error) {
	path := ""
	switch g {
	case Envtest:
		path = s.Bin["kube-apiserver"]
	case EnvtestOldest:
		if s.EnvtestOldest != "" {
			return s.EnvtestOldest, nil
		}
	case EnvtestNewest:
		if s.EnvtestNewest != "" {
			return s.EnvtestNewest, nil
		}
	case Helm:
		path = s.Bin["helm"]
	case Prometheus:
		path = s.Bin["prometheus"]
	case Upstream:
		path = s.Bin["e2e.test"]
	case Kernel:
		path = s.Kernel
	case PD:
		path = s.PD
	case Ceph:
		path = s.CephRoot
	case Database:
		path = s.Database
	case Images:
		if len(s.FullImages) > 0 {
			path = s.FullImages[0]
		}
	case ImagesARM64:
		if len(s.ARM64Images) > 0 {
			path = s.ARM64Images[0]
		}
	case KindGuest:
		if s.KindGuest != "" {
			return s.KindGuest, nil
		}
	case Debian12, Debian13, DebianNewest:
		path = s.Stock[g].Vmlinuz
	case Kind:
		if len(s.OtherImages) > 0 {
			path = s.OtherImages[0]
		}
	case Cluster:
		return "", errors.New("the cluster group has no single directory")
	}
	if path == "" {
		return "", fmt.Errorf("group %q was not asked for", g)
	}
	return filepath.Dir(path), nil
}
