package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
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

	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/driver"
	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

const (
	// driverRelease is the name of the chart's release and of its namespace.
	driverRelease = "nearflash"
	chartDir      = "deploy/helm/nearflash"
	rolloutLimit  = "3m"
	// imageAnnotation makes a changed image roll the pods: its name never changes.
	imageAnnotation = "lab.nearflash.io/images"
)

// ErrImport is returned when a node does not take an image.
var ErrImport = errors.New("image import failed")

// stage copies archives to a folder that all guests see, and returns their names in
// it: each holds its content's digest, so that a node knows what it has.
func stage(dir string, archives []string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	names := make([]string, 0, len(archives))
	for _, archive := range archives {
		sum, err := fileDigest(archive)
		if err != nil {
			return nil, err
		}
		name := stagedName(archive, sum)
		names = append(names, name)
		staged := filepath.Join(dir, name)
		if _, err := os.Stat(staged); err == nil {
			continue
		}
		if err := replaceFile(archive, staged); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// stageImages stages the driver's images instead of those that were staged before.
func (l *Lab) stageImages(archives []string) error {
	names, err := stage(l.Paths.Images(), archives)
	if err != nil {
		return err
	}
	have, err := l.stagedImages()
	if err != nil {
		return err
	}
	for _, name := range have {
		if slices.Contains(names, name) {
			continue
		}
		if err := os.Remove(filepath.Join(l.Paths.Images(), name)); err != nil {
			return fmt.Errorf("images: %w", err)
		}
	}
	return nil
}

// stagedName is NAME.DIGEST.tar for NAME.tar.
func stagedName(archive, digest string) string {
	return strings.TrimSuffix(filepath.Base(archive), ".tar") + "." + digest[:16] + ".tar"
}

func (l *Lab) stagedImages() ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(l.Paths.Images(), "*.tar"))
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(paths))
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	slices.Sort(names)
	return names, nil
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("digest: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest of %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// importScript loads each archive named by its arguments that this node has not
// loaded yet. Unpacking is part of the import, so that no pod waits for it. What is unpacked
// is written to the disk, so that a node that is killed at once comes back with whole programs.
const importScript = `set -e
done=/var/lib/lab-images
mkdir -p $done
for name in "$@"; do
	[ -e "$done/${name##*/}" ] && continue
	ctr -n k8s.io images import "` + agentapi.ImageDir + `/$name"
	sync --file-system /var/lib/containerd
	touch "$done/${name##*/}"
done
`

// loadImages makes a node load the staged archives.
func (l *Lab) loadImages(ctx context.Context, s state, n plan.Node) error {
	names, err := l.stagedImages()
	if err != nil || len(names) == 0 {
		return err
	}
	return l.importImages(ctx, s, n, names)
}

// importImages makes a node load archives, named relative to where they are staged.
func (l *Lab) importImages(ctx context.Context, s state, n plan.Node, names []string) error {
	var out bytes.Buffer
	req := agentapi.ExecRequest{Argv: append([]string{"bash", "-c", importScript, "import"}, names...)}
	code, err := l.agent(n, s.Token).Exec(ctx, req, &out, &out)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrImport, n.Name, err)
	}
	if code != 0 {
		return fmt.Errorf("%w: %s: exit status %d: %s", ErrImport, n.Name, code, out.String())
	}
	l.say("%s: images loaded", n.Name)
	return nil
}

// otherImages is where archives are staged that are not the driver's.
const otherImages = "other"

// AddImages loads archives of other images than the driver's on both nodes.
func (l *Lab) AddImages(ctx context.Context, archives []string) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	names, err := stage(filepath.Join(l.Paths.Images(), otherImages), archives)
	if err != nil {
		return err
	}
	for i, name := range names {
		names[i] = filepath.Join(otherImages, name)
	}
	return onWorkers(ctx, func(ctx context.Context, n plan.Node) error { return l.importImages(ctx, s, n, names) })
}

// onWorkers does something on all workers at the same time.
func onWorkers(ctx context.Context, do func(context.Context, plan.Node) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range plan.Workers() {
		g.Go(func() error { return do(ctx, n) })
	}
	return g.Wait()
}

// LoadImages loads archives on both nodes and, when the driver is installed,
// rolls out its pods with them.
func (l *Lab) LoadImages(ctx context.Context, archives []string) error {
	s, unlock, err := l.lockState(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.stageImages(archives); err != nil {
		return err
	}
	err = onWorkers(ctx, func(ctx context.Context, n plan.Node) error { return l.loadImages(ctx, s, n) })
	if err != nil || !s.Driver {
		return err
	}
	return l.installDriver(ctx, s)
}

// installDriver installs or upgrades the chart with the staged images, which the
// nodes have loaded, and waits until its pods are ready.
func (l *Lab) installDriver(ctx context.Context, s state) error {
	if err := l.writeValues(s); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.Bin["helm"], "upgrade", "--install", driverRelease, filepath.Join(l.Checkout, chartDir),
		"--namespace", driverRelease, "--create-namespace", "--values", l.Paths.Values(), "--wait", "--timeout", rolloutLimit)
	cmd.Env = l.Environ(os.Environ())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := l.NS.Do(cmd.Start); err != nil {
		return fmt.Errorf("helm: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("helm: %w: %s", err, out.String())
	}
	l.say("driver rolled out")
	return nil
}

// writeValues writes the chart's values for this lab. They hold
// a private key.
func (l *Lab) writeValues(s state) error {
	ca, cert, key, err := l.targetPair()
	if err != nil {
		return err
	}
	images, err := l.stagedImages()
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(chartValues(s, ca, cert, key, images), "", "  ")
	if err != nil {
		return fmt.Errorf("values: %w", err)
	}
	if err := os.WriteFile(l.Paths.Values(), b, 0o600); err != nil {
		return fmt.Errorf("values: %w", err)
	}
	return nil
}

// LeastValues returns the values, in JSON, without which no version of the chart works in this lab;
// they name no image. They hold a private key.
func (l *Lab) LeastValues() ([]byte, error) {
	ca, cert, key, err := l.targetPair()
	if err != nil {
		return nil, err
	}
	values := leastValues(plan.Storage().IP, ca, cert, key)
	delete(values, "images")
	return json.MarshalIndent(values, "", "  ")
}

// targetPair reads what the controller shows to the storage server, and whom it trusts.
func (l *Lab) targetPair() (ca, cert, key string, err error) {
	dir := l.Paths.PKI()
	var a, c, k []byte
	err = readFiles(map[string]*[]byte{
		pki.Cert(dir, pki.TargetCA): &a, pki.Cert(dir, pki.TargetClient): &c, pki.Key(dir, pki.TargetClient): &k,
	})
	return string(a), string(c), string(k), err
}

func leastValues(target, ca, cert, key string) driver.M {
	values := driver.ChartValues(target, ca, cert, key)
	values["node"] = driver.M{"pool": driver.M{"devices": []string{plan.SecondDisk}}, "faultDir": FaultDir}
	return values
}

// chartValues are the chart's values for a lab; all else is the chart's default.
func chartValues(s state, ca, cert, key string, images []string) driver.M {
	sum := sha256.Sum256([]byte(strings.Join(images, "\n")))
	roll := driver.M{imageAnnotation: hex.EncodeToString(sum[:8])}
	values := leastValues(s.targetIP(), ca, cert, key)
	maps.Copy(values["node"].(driver.M), driver.M{"udevRule": true, "podAnnotations": roll})
	values["controller"] = driver.M{"podAnnotations": roll}
	values["snapshots"] = driver.M{"enabled": true, "groups": true}
	if s.SecondStorage {
		values["targets"] = []driver.M{driver.NamedTarget(plan.SecondName, plan.Second().IP, ca, cert, key)}
	}
	if s.WithoutISCSID {
		values["node"].(driver.M)["iscsid"] = driver.M{"run": "own"}
	}
	if s.Origin != nil {
		values["origins"] = driver.M{"enabled": true}
	}
	return values
}
