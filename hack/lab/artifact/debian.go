package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/nearflash/nearflash/hack/images"
)

const (
	// suite is the Debian release of all guest software, that of the images too. It
	// is the first whose user-mode-linux starts on CPUs with AMX.
	suite = images.Suite
	// hostKeyring is what the debian-archive-keyring package installs.
	hostKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	// mirrorEnv overrides the mirror of the host's own apt configuration.
	mirrorEnv = "NEARFLASH_DEBIAN_MIRROR"

	// keyringPackage is where every Debian mirror has the keyring of the suite.
	keyringPackage       = "pool/main/d/debian-archive-keyring/debian-archive-keyring_2025.1_all.deb"
	keyringPackageSHA256 = "9ea7778e443144ca490668737a8ab22dd3e748bb99e805e22ec055abeb3c7fac"
)

// ErrMirror says that no Debian mirror is known or that it cannot be used.
var ErrMirror = errors.New("no usable Debian mirror")

// tree is a minimal Debian installation.
type tree struct {
	// variant is mmdebstrap's: "minbase" has apt, "essential" does not.
	variant  string
	packages []string
	// arch is Debian's architecture of the tree; empty is that of the guests, amd64.
	arch string
	// drop begins the names of files that an image layer of the tree leaves out.
	drop []string
}

// debootstrapOptions are the same for all trees. The release file of a testing
// suite on a mirror that is not updated daily is past its date, its signature
// is checked all the same.
func debootstrapOptions() []string {
	return []string{
		"--aptopt=Acquire::Check-Valid-Until \"false\"",
		"--aptopt=Apt::Install-Recommends \"false\"",
		"--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-exclude=/usr/share/info/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/i18n/*",
		"--dpkgopt=path-exclude=/usr/share/bash-completion/*",
	}
}

// options are mmdebstrap's for the tree. systemd-hwdb compiles what udev knows of hardware,
// which takes an emulated processor many minutes, and is of no use to an image.
func (t tree) options() []string {
	options := debootstrapOptions()
	if t.emulated() {
		options = append(options, "--dpkgopt=path-exclude=/usr/lib/udev/hwdb.d/*")
	}
	return options
}

// emulated says that the programs of the tree do not run on this machine by themselves.
func (t tree) emulated() bool { return t.arch != "" && t.arch != runtime.GOARCH }

// inputs is the part of the tree that goes into an artifact's key. The mirror
// is not in it: it serves the same signed suite wherever it is.
func (t tree) inputs() []string {
	inputs := slices.Concat([]string{suite, t.variant}, t.packages, t.options(), t.drop)
	if t.arch != "" {
		inputs = append(inputs, t.arch)
	}
	return inputs
}

// debootstrap makes the tree as target, a directory or a .tar file. It runs in
// a mount namespace of its own, so that what it mounts below the tree is gone
// with it however it ends.
func (b *builder) debootstrap(ctx context.Context, t tree, workdir, target string) error {
	if os.Geteuid() != 0 {
		return errors.New("making a Debian tree needs root")
	}
	mirror, keyring, err := b.suiteMirror(ctx, workdir)
	if err != nil {
		return err
	}
	tmp := filepath.Join(workdir, "tmp")
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	args := append(t.options(),
		"--mode=root", "--variant="+t.variant, "--keyring="+keyring, "--include="+strings.Join(t.packages, ","))
	for _, opt := range aptTransportOptions(ctx) {
		args = append(args, "--aptopt="+opt)
	}
	if t.arch != "" {
		args = append(args, "--architectures="+t.arch)
	}
	if t.emulated() {
		// The check would want the emulation to be set up for all of this machine.
		args = append(args, "--skip=check/qemu")
	}
	args = append(args, suite, target, mirror)
	cmd := newCommand(ctx, "mmdebstrap", args...)
	if t.emulated() {
		cmd = emulate(ctx, t.arch, "mmdebstrap", args...)
	}
	cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	_, err = run(ctx, cmd)
	return err
}

// suiteMirror returns the first of the host's mirrors that has the suite, and a
// keyring that verifies the suite there.
func (b *builder) suiteMirror(ctx context.Context, workdir string) (mirror, keyring string, err error) {
	mirrors, err := debianMirrors(ctx)
	if err != nil {
		return "", "", err
	}
	release := filepath.Join(workdir, "InRelease")
	defer func() { _ = os.Remove(release) }()
	var failed []error
	for _, mirror := range mirrors {
		if err := download(ctx, joinURL(mirror, "dists/"+suite+"/InRelease"), release); err != nil {
			failed = append(failed, err)
			continue
		}
		keyring, err := b.suiteKeyring(ctx, mirror, release, workdir)
		return mirror, keyring, err
	}
	return "", "", fmt.Errorf("%w: none of %s has %s: set %s to the URL of one that has: %w",
		ErrMirror, strings.Join(mirrors, " "), suite, mirrorEnv, errors.Join(failed...))
}

// debianMirrors returns the mirrors that the host itself uses, the likeliest
// first.
func debianMirrors(ctx context.Context) ([]string, error) {
	if m := os.Getenv(mirrorEnv); m != "" {
		return []string{m}, nil
	}
	remedy := fmt.Errorf("%w: set %s to the URL of one", ErrMirror, mirrorEnv)
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, remedy
	}
	// Without --no-release-info, apt-get lists only what it has downloaded before.
	for _, args := range [][]string{nil, {"--no-release-info"}} {
		args = append([]string{"indextargets", "--format", "$(ORIGIN) $(REPO_URI)"}, args...)
		out, err := run(ctx, newCommand(ctx, "apt-get", args...))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", remedy, err)
		}
		if mirrors := rankMirrors(string(out)); len(mirrors) > 0 {
			return mirrors, nil
		}
	}
	return nil, remedy
}

// rankMirrors returns the URIs of lines "ORIGIN URI": Debian's own before
// others, then those that occur more often, then in the order of the lines.
func rankMirrors(lines string) []string {
	const debianFirst = 1 << 20
	score := map[string]int{}
	var mirrors []string
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !strings.Contains(fields[len(fields)-1], "://") {
			continue
		}
		uri := fields[len(fields)-1]
		if score[uri] == 0 {
			mirrors = append(mirrors, uri)
			// A repository may state no origin.
			if len(fields) == 2 && fields[0] == "Debian" {
				score[uri] = debianFirst
			}
		}
		score[uri]++
	}
	slices.SortStableFunc(mirrors, func(a, b string) int { return score[b] - score[a] })
	return mirrors
}

// aptTransportOptions returns the proxy settings of the host's apt, which
// mmdebstrap's own apt does not read.
func aptTransportOptions(ctx context.Context) []string {
	out, err := run(ctx, newCommand(ctx, "apt-config", "dump", "Acquire"))
	if err != nil {
		return nil
	}
	var opts []string
	for _, line := range strings.Split(string(out), "\n") {
		line = strings.TrimSuffix(strings.TrimSpace(line), ";")
		_, value, _ := strings.Cut(line, " ")
		isTransport := strings.HasPrefix(line, "Acquire::http::") || strings.HasPrefix(line, "Acquire::https::")
		if isTransport && value != `""` {
			opts = append(opts, line)
		}
	}
	return opts
}

// suiteKeyring returns a keyring that verifies the suite's release file: the
// host's, or the one of the suite's keyring package when the host's is absent
// or too old. The package is accepted by its pinned hash alone.
func (b *builder) suiteKeyring(ctx context.Context, mirror, release, workdir string) (string, error) {
	err := verifyRelease(ctx, hostKeyring, release)
	if err == nil {
		return hostKeyring, nil
	}
	b.store.progress("the host's Debian keyring does not verify %s (%v): using the pinned keyring package", suite, err)
	keyring, err := fetchKeyring(ctx, mirror, workdir)
	if err != nil {
		return "", err
	}
	if err := verifyRelease(ctx, keyring, release); err != nil {
		return "", fmt.Errorf("the release file of %s at %s has no good signature: %w", suite, mirror, err)
	}
	return keyring, nil
}

// verifyRelease succeeds when at least one signature is good and none is bad.
// gpgv's exit status is of no use here: it fails on each signature whose key
// it does not have, and release files carry several.
func verifyRelease(ctx context.Context, keyring, release string) error {
	if !exists(keyring) {
		return fmt.Errorf("no keyring %s", keyring)
	}
	cmd := newCommand(ctx, "gpgv", "--status-fd=1", "--keyring", keyring, release)
	var status bytes.Buffer
	cmd.Stdout = &status
	_, err := run(ctx, cmd)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if strings.Contains(status.String(), "[GNUPG:] BADSIG ") {
		return errors.New("bad signature")
	}
	if !strings.Contains(status.String(), "[GNUPG:] GOODSIG ") {
		return fmt.Errorf("no signature by a known key: %w", err)
	}
	return nil
}

func joinURL(base, path string) string { return strings.TrimSuffix(base, "/") + "/" + path }

// download fetches a file as the host's apt would, with its proxies.
func download(ctx context.Context, url, path string) error {
	_, err := run(ctx, newCommand(ctx, "/usr/lib/apt/apt-helper", "download-file", url, path))
	return err
}

// fetchKeyring takes the keyring out of its pinned package.
func fetchKeyring(ctx context.Context, mirror, workdir string) (string, error) {
	deb := filepath.Join(workdir, "keyring.deb")
	if err := download(ctx, joinURL(mirror, keyringPackage), deb); err != nil {
		return "", err
	}
	sum, err := hashFile(deb)
	if err != nil {
		return "", err
	}
	if sum != keyringPackageSHA256 {
		return "", fmt.Errorf("%s: sha256 %s, want %s", keyringPackage, sum, keyringPackageSHA256)
	}
	dir := filepath.Join(workdir, "keyring")
	if _, err := run(ctx, newCommand(ctx, "dpkg-deb", "-x", deb, dir)); err != nil {
		return "", err
	}
	return filepath.Join(dir, hostKeyring), nil
}
