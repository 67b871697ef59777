package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// Origin is a CSI driver whose volumes the driver under test can cache.
type Origin struct {
	// Name is [OriginPD] or [OriginCeph].
	Name string `json:"name"`
	// Zones maps nodes to zones of the cloud of OriginPD.
	Zones map[string]string `json:"zones,omitempty"`
	// Parts are what it was started with last.
	Parts OriginParts `json:"parts"`
}

// The origins that there are.
const (
	// OriginPD is Google's Persistent Disk driver over a cloud whose disks are files.
	OriginPD = "pd"
	// OriginCeph is a driver of block devices over a Ceph of one machine.
	OriginCeph = "ceph"
)

// originZone is where nodes are unless it is said.
const originZone = "us-lab1-a"

// ErrOrigin is returned for an origin that no lab can have.
var ErrOrigin = errors.New("unknown origin")

// ParseOrigin reads the name of an origin and NODE=ZONE,... It returns nil for "".
func ParseOrigin(name, zones string) (*Origin, error) {
	if name == "" && zones == "" {
		return nil, nil
	}
	if name != OriginPD && name != OriginCeph {
		return nil, fmt.Errorf("%w %q: there are %s and %s", ErrOrigin, name, OriginPD, OriginCeph)
	}
	if name == OriginCeph {
		if zones != "" {
			return nil, fmt.Errorf("%w: %s has no zones", ErrOrigin, name)
		}
		return &Origin{Name: name}, nil
	}
	o := &Origin{Name: name, Zones: map[string]string{}}
	for _, n := range plan.Workers() {
		o.Zones[n.Name] = originZone
	}
	if zones == "" {
		return o, nil
	}
	for pair := range strings.SplitSeq(zones, ",") {
		node, zone, _ := strings.Cut(pair, "=")
		if o.Zones[node] == "" || strings.Count(zone, "-") != 2 {
			return nil, fmt.Errorf("%w: zone %q: want NODE=ZONE with a worker and a zone such as %s", ErrOrigin, pair, originZone)
		}
		o.Zones[node] = zone
	}
	return o, nil
}

// instances is NODE=ZONE,... of all workers.
func (o *Origin) instances() string {
	var out []string
	for _, node := range slices.Sorted(maps.Keys(o.Zones)) {
		out = append(out, node+"="+o.Zones[node])
	}
	return strings.Join(out, ",")
}

// Names of an origin's processes: its controller and its sidecars.
const (
	originPrefix      = "origin-"
	originController  = originPrefix + "controller"
	originProvisioner = originPrefix + "provisioner"
	originAttacher    = originPrefix + "attacher"
	originResizer     = originPrefix + "resizer"
	originSnapshotter = originPrefix + "snapshotter"
)

// controllers names the driver's controller and its sidecars.
func (o *Origin) controllers() []string {
	names := []string{originController, originProvisioner, originAttacher, originResizer}
	if o.kind().snapshots {
		names = append(names, originSnapshotter)
	}
	return names
}

// processes names what runs on the host, in the order in which it starts: the storage
// first, if it is here.
func (o *Origin) processes() []string {
	switch {
	case o == nil:
		return nil
	case o.Name == OriginCeph:
		return append(cephDaemons(), o.controllers()...)
	default:
		return o.controllers()
	}
}

// kind is how the origin appears in the cluster.
func (o *Origin) kind() originKind {
	switch {
	case o.Name != OriginCeph:
		return pdKind()
	case o.Parts.CephCSI != "":
		return cephCSIKind()
	default:
		return rbdKind()
	}
}

// OriginParts are the files of an origin: the driver's program, the name of an image
// with the host tools that it calls on nodes, and the programs of its sidecars.
type OriginParts struct {
	// Program is empty if the lab builds it.
	Program string `json:"program"`
	// Root is an archive of the root that the storage's daemons run in, if it has some.
	Root string `json:"root,omitempty"`
	// CephCSI is ceph-csi's program, if it is the driver over Ceph.
	CephCSI     string `json:"cephCSI,omitempty"`
	Tools       string `json:"tools"`
	Provisioner string `json:"provisioner"`
	Attacher    string `json:"attacher"`
	Resizer     string `json:"resizer"`
	Snapshotter string `json:"snapshotter"`
}

// startOrigin starts what does not run of the origin, brings its objects up to date and
// waits until it has registered on every node. The guests run.
func (l *Lab) startOrigin(ctx context.Context, s state) error {
	if err := l.copySelf(); err != nil {
		return err
	}
	if err := os.MkdirAll(l.Paths.Origin(), 0o700); err != nil {
		return fmt.Errorf("origin: %w", err)
	}
	kind := s.Origin.kind()
	var objects []any
	if s.Origin.Name == OriginCeph {
		// It is on the disk when it has run before, and the same file.
		if _, err := l.install(ctx, rbdPackage, l.rbdProgram()); err != nil {
			return err
		}
		secret, err := l.startCeph(ctx, s.Origin)
		if err != nil {
			return err
		}
		objects = append(objects, secret)
		if s.Origin.Parts.CephCSI != "" {
			more, err := l.startCephCSI(ctx, s.Origin)
			if err != nil {
				return err
			}
			objects = append(objects, more...)
		}
	} else if err := l.labelLimits(ctx, s); err != nil {
		return err
	}
	program, err := l.stageOrigin(l.originProgram(s.Origin))
	if err != nil {
		return err
	}
	if err := l.startOriginProcesses(ctx, s.Origin); err != nil {
		return err
	}
	objects = append(originObjects(kind, kind.pod(s.Origin, program)), objects...)
	if err := l.kubectl(ctx, s, objects, "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
		return err
	}
	return l.awaitOrigin(ctx, s.Origin)
}

// originProgram is the path of the driver's program.
func (l *Lab) originProgram(o *Origin) string {
	if o.Name == OriginCeph {
		return l.rbdProgram()
	}
	return o.Parts.Program
}

func (l *Lab) startOriginProcesses(ctx context.Context, o *Origin) error {
	for _, name := range o.processes() {
		if err := l.startProcess(ctx, l.originSpec(o, name, o.Parts)); err != nil {
			return err
		}
	}
	return nil
}

// KillOrigin kills processes of the origin: "controller", "provisioner", "attacher",
// "resizer", "snapshotter", which are meant if none is named, and the storage's own, if it has some: "mon",
// "mgr", "osd". What is attached stays so.
func (l *Lab) KillOrigin(ctx context.Context, which []string) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if s.Origin == nil {
		return fmt.Errorf("%w: none runs", ErrOrigin)
	}
	names := s.Origin.controllers()
	if len(which) > 0 {
		names = names[:0]
	}
	for _, w := range which {
		name := originPrefix + w
		if !slices.Contains(s.Origin.processes(), name) {
			return fmt.Errorf("%w: it has no %q", ErrOrigin, w)
		}
		names = append(names, name)
	}
	for _, name := range names {
		rec, err := l.Procs.Get(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = l.Procs.Stop(ctx, rec, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// StartOrigin starts what does not run of the origin on the host.
func (l *Lab) StartOrigin(ctx context.Context) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if s.Origin == nil {
		return fmt.Errorf("%w: none runs; lab up --origin %s, or %s", ErrOrigin, OriginPD, OriginCeph)
	}
	return l.startOriginProcesses(ctx, s.Origin)
}

// stageOrigin puts the driver's program where all guests see it, and returns its path
// there, which another program's is not: pods roll.
func (l *Lab) stageOrigin(program string) (string, error) {
	sum, err := fileDigest(program)
	if err != nil {
		return "", err
	}
	name := filepath.Join(otherImages, filepath.Base(program)+"."+sum[:16])
	staged := filepath.Join(l.Paths.Images(), name)
	if _, err := os.Stat(staged); err != nil {
		if err := replaceFile(program, staged); err != nil {
			return "", err
		}
	}
	return filepath.Join(agentapi.ImageDir, name), nil
}

// awaitOrigin waits until the driver is registered on every node.
func (l *Lab) awaitOrigin(ctx context.Context, o *Origin) error {
	name := o.kind().driver
	api, err := l.api()
	if err != nil {
		return err
	}
	err = until(ctx, "the origin driver on the nodes", func(ctx context.Context) (bool, error) {
		if err := l.mustLive(o.processes()...); err != nil {
			return true, err
		}
		nodes, err := api.CSINodes(ctx, name)
		if err != nil {
			return false, err
		}
		if len(nodes) == len(plan.Workers()) {
			return true, nil
		}
		return false, fmt.Errorf("%s has registered on %v", name, nodes)
	})
	if err == nil {
		l.say("origin driver registered")
	}
	return err
}

// labProgram is a copy of this program, in the state folder: the one that brought the
// lab up may be removed, as `go run` does with what it has built.
func (l *Lab) labProgram() string { return filepath.Join(l.Paths.Root, "lab") }

func (l *Lab) copySelf() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program's path: %w", err)
	}
	return replaceFile(self, l.labProgram())
}

// originSocket is where the driver's controller listens.
func (l *Lab) originSocket(o *Origin) string {
	if o.Parts.CephCSI != "" {
		return filepath.Join(l.cephRoot(), cephCSISocket)
	}
	return filepath.Join(l.Paths.Origin(), "csi.sock")
}

// originSpec describes a host process of the origin. What follows the driver's own
// manifests is the sidecars' flags, but for the election of leaders.
func (l *Lab) originSpec(o *Origin, name string, parts OriginParts) proc.Spec {
	dir := l.Paths.Origin()
	socket := "unix://" + l.originSocket(o)
	sidecar := []string{
		"--v=4", "--csi-address=" + socket, "--kubeconfig=" + l.Paths.Kubeconfig(pki.Origin),
		// Tests wait for what is tried again: by default up to five minutes.
		"--retry-interval-max=5s",
	}
	spec := proc.Spec{
		Name: name, Dir: dir, Log: l.Paths.Log(name),
		// The controller calls this program, which finds the lab's state by TMPDIR.
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + filepath.Dir(filepath.Dir(l.Paths.Root))},
	}
	switch name {
	case cephMon, cephOSD, cephMgr:
		l.cephSpec(&spec)
	case originController:
		if o.Name == OriginCeph && parts.CephCSI != "" {
			l.cephCSISpec(&spec)
			break
		}
		if o.Name == OriginCeph {
			l.rbdControllerSpec(&spec, socket)
			break
		}
		spec.Path = parts.Program
		spec.Args = []string{
			"--mode=controller", "--v=4", "--endpoint=" + socket, "--state-dir=" + filepath.Join(dir, "disks"),
			"--instances=" + o.instances(), "--disk-command=" + l.labProgram() + " --name " + l.ID + " disk",
		}
	case originProvisioner:
		spec.Path = parts.Provisioner
		// As ceph-csi has it: no node of it has a zone here.
		zones := fmt.Sprintf("--feature-gates=Topology=%t", o.Name == OriginPD)
		spec.Args = append(sidecar, zones, "--extra-create-metadata", "--default-fstype=ext4", "--controller-publish-readonly=true")
	case originAttacher:
		spec.Path, spec.Args = parts.Attacher, sidecar
	case originSnapshotter:
		spec.Path, spec.Args = parts.Snapshotter, sidecar
	case originResizer:
		spec.Path = parts.Resizer
		spec.Args = append(sidecar, "--handle-volume-inuse-error=false")
	}
	return spec
}

// kubectl runs kubectl in the lab's network, with objects as its standard input.
func (l *Lab) kubectl(ctx context.Context, s state, objects []any, args ...string) error {
	var in bytes.Buffer
	for _, o := range objects {
		b, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("kubectl: %w", err)
		}
		fmt.Fprintf(&in, "---\n%s\n", b)
	}
	cmd := exec.CommandContext(ctx, s.Bin["kubectl"], args...)
	cmd.Env = l.Environ(os.Environ())
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = io.Reader(&in), &out, &out
	if err := l.NS.Do(cmd.Start); err != nil {
		return fmt.Errorf("kubectl: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("kubectl %v: %w: %s", args, err, out.String())
	}
	return nil
}
