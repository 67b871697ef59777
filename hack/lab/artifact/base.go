package artifact

import (
	"context"
	_ "embed" // bake-init.sh
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nearflash/nearflash/hack/mkimage"
)

//go:embed bake-init.sh
var bakeInit string

const (
	// nodeBaseFile is the ext4 image inside the node-base artifact.
	nodeBaseFile = "node.ext4"
	// bakeMemory is the memory of the guest that imports the images.
	bakeMemory = "1536M"
	// bakeTimeout is far above the 20 to 60 s that a bake takes.
	bakeTimeout = 10 * time.Minute
)

// containerdConfig is for the containerd of the bake; a node's own may replace
// it. Images come from archives only: the sandbox image must never be collected.
const containerdConfig = `version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "` + pauseImage + `"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/etc/cni/net.d"
`

// nodeBaseParts are the directories of the artifacts that a node base is made of.
type nodeBaseParts struct {
	nodeRoot, kernel, sidecars, nodeTools, workload string
	// kubelet waits until the program is there. It is the last one that is built, and
	// the images are imported meanwhile.
	kubelet func(ctx context.Context) (string, error)
}

// nodeBaseRecipe is the root file system of a cluster node: the node root with
// kubelet, a configured containerd, and all images that do not change with the
// checkout already unpacked. The import runs in a guest, for unpacking needs
// the overlay file system and containerd of the node.
func (b *builder) nodeBaseRecipe(keys []string, parts func() nodeBaseParts) (recipe, error) {
	pause, err := os.ReadFile(filepath.Join(b.checkout, pauseSource))
	if err != nil {
		return recipe{}, err
	}
	inputs := append([]string{bakeInit, containerdConfig, pauseImage, workloadImage, string(pause)}, keys...)
	build := func(ctx context.Context, dir, _ string) error { return b.buildNodeBase(ctx, dir, parts()) }
	return recipe{name: "node-base", inputs: inputs, tools: imageTools(), build: build}, nil
}

func (b *builder) buildNodeBase(ctx context.Context, dir string, parts nodeBaseParts) error {
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(filepath.Join(work, "images"), 0o755); err != nil {
		return err
	}
	if err := b.writeBakeInputs(ctx, work, parts); err != nil {
		return err
	}
	image := filepath.Join(dir, nodeBaseFile)
	if err := copySparse(ctx, filepath.Join(parts.nodeRoot, nodeRootFile), image); err != nil {
		return err
	}
	if err := os.Chmod(image, 0o644); err != nil {
		return err
	}
	err := b.store.step(ctx, "import images into the node base", func(ctx context.Context) error {
		return bake(ctx, filepath.Join(parts.kernel, kernelFile), image, work)
	})
	if err != nil {
		return err
	}
	// The journal must be empty before debugfs writes.
	if err := checkFilesystem(ctx, image); err != nil {
		return err
	}
	kubelet, err := parts.kubelet(ctx)
	if err != nil {
		return err
	}
	if err := installProgram(ctx, image, kubelet, "/usr/bin/kubelet"); err != nil {
		return err
	}
	if err := checkFilesystem(ctx, image); err != nil {
		return err
	}
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	return os.Chmod(image, 0o444)
}

// writeBakeInputs puts what bake-init.sh reads into the directory that the guest
// will see as /host.
func (b *builder) writeBakeInputs(ctx context.Context, work string, parts nodeBaseParts) error {
	specs, err := b.stableImages(ctx, work, parts)
	if err != nil {
		return err
	}
	var names strings.Builder
	for i, spec := range specs {
		archive := filepath.Join(work, "images", fmt.Sprintf("%02d.tar", i))
		if err := mkimage.WriteOCIArchive(archive, spec, nil); err != nil {
			return fmt.Errorf("image %s: %w", spec.Name, err)
		}
		fmt.Fprintln(&names, spec.Name)
	}
	for name, file := range map[string]struct {
		text string
		mode fs.FileMode
	}{
		"init":                   {bakeInit, 0o755},
		"containerd-config.toml": {containerdConfig, 0o644},
		"names":                  {names.String(), 0o644},
	} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(file.text), file.mode); err != nil {
			return err
		}
	}
	return nil
}

// bake boots a guest on the image, which runs bake-init.sh and powers itself
// off. The guest's exit status says nothing (a guest that powers off aborts);
// the result file does.
func bake(ctx context.Context, kernel, image, work string) error {
	ctx, cancel := context.WithTimeout(ctx, bakeTimeout)
	defer cancel()
	console, err := os.Create(filepath.Join(work, "console.log"))
	if err != nil {
		return err
	}
	defer func() { _ = console.Close() }()
	// The kernel makes a socket below this directory: the path must be short.
	umlDir, err := os.MkdirTemp("", "nf-bake-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(umlDir) }()
	cmd := newCommand(ctx, kernel, "mem="+bakeMemory, "ubd0="+image, "root=/dev/ubda", "rootfstype=ext4", "rw",
		"init=/usr/sbin/guest-init", "host="+work, "uml_dir="+umlDir+"/", "umid=bake",
		"con=null", "con0=null,fd:1", "seccomp=on", "quiet")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = console, console
	runErr := cmd.Run()
	// Guest processes are host processes of the guest's session; none may outlive it.
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the guest did not finish: %w\n%s", ctx.Err(), bakeLogs(work))
	}
	result, err := os.ReadFile(filepath.Join(work, "result"))
	if err != nil {
		return fmt.Errorf("the guest left no result (%w): %w\n%s", err, runErr, bakeLogs(work))
	}
	if strings.TrimSpace(string(result)) != "ok" {
		return fmt.Errorf("the guest reports: %s\n%s", strings.TrimSpace(string(result)), bakeLogs(work))
	}
	return nil
}

// bakeLogs returns the ends of what the guest wrote.
func bakeLogs(work string) string {
	var out strings.Builder
	for _, name := range []string{"console.log", "bake.log", "containerd.log"} {
		data, err := os.ReadFile(filepath.Join(work, name))
		if err != nil {
			continue
		}
		fmt.Fprintf(&out, "%s:\n%s\n", name, tail(string(data), errorTail))
	}
	return out.String()
}

// installProgram puts a program of the host into the file system of an image.
func installProgram(ctx context.Context, image, program, path string) error {
	var commands strings.Builder
	fmt.Fprintf(&commands, "write %s %s\n", program, path)
	for field, value := range map[string]string{"mode": "0100755", "uid": "0", "gid": "0"} {
		fmt.Fprintf(&commands, "set_inode_field %s %s %s\n", path, field, value)
	}
	cmd := newCommand(ctx, findTool("debugfs"), "-w", "-f", "-", image)
	cmd.Stdin = strings.NewReader(commands.String())
	if _, err := run(ctx, cmd); err != nil {
		return fmt.Errorf("install %s: %w", path, err)
	}
	// debugfs succeeds whatever its commands did.
	copied := filepath.Join(filepath.Dir(image), filepath.Base(path))
	defer func() { _ = os.Remove(copied) }()
	if _, err := run(ctx, newCommand(ctx, findTool("debugfs"), "-R", fmt.Sprintf("dump %s %s", path, copied), image)); err != nil {
		return fmt.Errorf("install %s: %w", path, err)
	}
	want, err := hashFile(program)
	if err != nil {
		return err
	}
	switch got, err := hashFile(copied); {
	case err != nil:
		return fmt.Errorf("install %s: %w", path, err)
	case got != want:
		return fmt.Errorf("install %s: what was written is not what is read", path)
	}
	return nil
}

// checkFilesystem leaves a clean file system: the journal replayed, nothing to
// repair. A damaged one is an error, for the image is the root of every node.
func checkFilesystem(ctx context.Context, image string) error {
	out, err := run(ctx, newCommand(ctx, findTool("e2fsck"), "-f", "-p", image))
	if err != nil {
		return fmt.Errorf("check %s: %w", filepath.Base(image), err)
	}
	if len(out) == 0 {
		return errors.New("e2fsck said nothing")
	}
	return nil
}
