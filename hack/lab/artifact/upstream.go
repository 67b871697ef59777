package artifact

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/hack/mkimage"
)

// upstreamTests are Kubernetes' own tests, of the version of the lab's Kubernetes.
func upstreamTests() []goProgram {
	return []goProgram{{
		name: "e2e.test", pkg: "k8s.io/kubernetes/test/e2e", dir: "hack/tools/upstream",
		module: "k8s.io/kubernetes", stamp: kubeStamp, test: true,
	}}
}

// agnhost is what many of their pods run.
func agnhost() goProgram {
	return goProgram{
		name: "agnhost", pkg: "k8s.io/kubernetes/test/images/agnhost", dir: "hack/tools/upstream",
		module: "k8s.io/kubernetes", stamp: func(string) []string { return nil },
	}
}

// busyboxTree has one program, which needs no library.
func busyboxTree() tree { return tree{variant: "extract", packages: []string{"busybox-static"}} }

// upstreamImage is an image that e2e.test asks for. ID is how it calls it in
// k8s.io/kubernetes/test/utils/image, which has its name and version.
type upstreamImage struct {
	archive, id string
	entrypoint  []string
	cmd         []string
	// from is what is in it besides a shell.
	from imageContent
}

type imageContent int

const (
	fromBusybox imageContent = iota
	// fromAgnhost has that program over busybox.
	fromAgnhost
	// fromDebian has the tools of the lab's workload: the tests use nothing else of
	// these images.
	fromDebian
)

func upstreamImages() []upstreamImage {
	return []upstreamImage{
		{archive: "busybox.tar", id: "BusyBox", cmd: []string{"sh"}},
		{archive: "agnhost.tar", id: "Agnhost", entrypoint: []string{"/agnhost"}, cmd: []string{"pause"}, from: fromAgnhost},
		{archive: "glibc.tar", id: "GlibcDnsTesting", cmd: []string{"sh"}, from: fromDebian},
		{archive: "nginx.tar", id: "Nginx", cmd: []string{"sh"}, from: fromDebian},
	}
}

// upstreamRegistry is the registry of e2e.test's own images.
const upstreamRegistry = "registry.k8s.io/e2e-test-images/"

// imageName finds the name of an image in the source of the package above.
func (i upstreamImage) imageName(source string) (string, error) {
	m := regexp.MustCompile(`configs\[` + i.id + `\] *= Config{list\.PromoterE2eRegistry, "([^"]+)", "([^"]+)"}`).FindStringSubmatch(source)
	if m == nil {
		return "", fmt.Errorf("the image %s is not in the list of e2e.test's images", i.id)
	}
	return upstreamRegistry + m[1] + ":" + m[2], nil
}

// upstreamRevision goes up when the form of the images changes.
const upstreamRevision = "upstream 1"

// upstreamRecipe reads the layer of the lab's workload.
func (b *builder) upstreamRecipe(workload *task) (recipe, error) {
	programs := append(upstreamTests(), agnhost())
	inputs, err := programInputs(b.checkout, programs)
	if err != nil {
		return recipe{}, err
	}
	inputs = append(slices.Concat(inputs, busyboxTree().inputs()), upstreamRevision, workload.recipe.key())
	build := func(ctx context.Context, dir, _ string) error {
		for _, p := range programs {
			if err := b.buildProgram(ctx, p, dir); err != nil {
				return err
			}
		}
		return b.buildUpstreamImages(ctx, dir, workload.dir)
	}
	return recipe{name: "upstream", inputs: inputs, tools: treeTools(), build: build}, nil
}

func (b *builder) buildUpstreamImages(ctx context.Context, dir, workload string) error {
	root := filepath.Join(dir, "busybox")
	err := b.store.step(ctx, "unpack busybox (Debian "+suite+")", func(ctx context.Context) error {
		return b.debootstrap(ctx, busyboxTree(), dir, root)
	})
	if err != nil {
		return err
	}
	busybox, err := busyboxLayers(ctx, filepath.Join(root, "usr/bin/busybox"), dir)
	if err != nil {
		return err
	}
	program, err := mkimage.ProgramLayer(map[string]string{"/agnhost": filepath.Join(dir, "agnhost")})
	if err != nil {
		return err
	}
	debian, err := debianLayer(workload)
	if err != nil {
		return err
	}
	layers := map[imageContent][]*mkimage.Layer{
		fromBusybox: busybox, fromAgnhost: append(slices.Clone(busybox), program), fromDebian: {debian},
	}
	module, err := b.moduleDir(ctx, agnhost().dir, agnhost().module)
	if err != nil {
		return err
	}
	names, err := os.ReadFile(filepath.Join(module, "test/utils/image/manifest.go"))
	if err != nil {
		return err
	}
	for _, image := range upstreamImages() {
		name, err := image.imageName(string(names))
		if err != nil {
			return err
		}
		spec := mkimage.Spec{Name: name, Entrypoint: image.entrypoint, Cmd: image.cmd, Layers: layers[image.from]}
		if err := mkimage.WriteDockerArchive(filepath.Join(dir, image.archive), spec); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
	}
	return removeWork(dir, "busybox", "tmp", "keyring", "keyring.deb", "passwd", "group", "agnhost")
}

// busyboxLayers are the program and a link for each of its commands.
func busyboxLayers(ctx context.Context, program, work string) ([]*mkimage.Layer, error) {
	list, err := run(ctx, newCommand(ctx, program, "--list"))
	if err != nil {
		return nil, err
	}
	links := map[string]string{}
	for name := range strings.FieldsSeq(string(list)) {
		if name != "busybox" {
			links["/bin/"+name] = "/bin/busybox"
		}
	}
	files := map[string]string{"/bin/busybox": program}
	for name, content := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"group":  "root:x:0:\nnobody:x:65534:\n",
	} {
		path := filepath.Join(work, name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return nil, err
		}
		files["/etc/"+name] = path
	}
	top, err := mkimage.LinkLayer(links, "/tmp")
	if err != nil {
		return nil, err
	}
	bottom, err := mkimage.ProgramLayer(files)
	if err != nil {
		return nil, err
	}
	return []*mkimage.Layer{bottom, top}, nil
}
