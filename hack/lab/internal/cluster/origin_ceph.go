package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// rbdPackage is the driver of Ceph's block devices, a program of this checkout.
const rbdPackage = "hack/tools/rbd"

// Names of Ceph's processes.
const (
	cephMon = originPrefix + "mon"
	cephOSD = originPrefix + "osd"
	cephMgr = originPrefix + "mgr"
)

func cephDaemons() []string { return []string{cephMon, cephOSD, cephMgr} }

// Names in Ceph: the pool, and who the driver's two halves are.
const (
	cephPool       = "rbd"
	cephController = "controller"
	cephNode       = "node"
	rbdSecret      = "rbd-node"
)

// cephMonitor is where the monitor listens, with the second version of the protocol alone.
var cephMonitor = plan.HostIP + ":3300"

// rbdKind is the driver of the tests over Ceph's block devices.
func rbdKind() originKind {
	return originKind{
		driver: "rbd.lab.nearflash.io", class: "rbd", node: "rbd-csi-node", pod: rbdPod, snapshots: true,
		parameters: m{
			"pool": cephPool, "monitors": cephMonitor,
			"csi.storage.k8s.io/node-stage-secret-name":      rbdSecret,
			"csi.storage.k8s.io/node-stage-secret-namespace": originNamespace,
		},
	}
}

// rbdPod has a container before the driver's that loads the kernel's client, again after
// each boot of the node.
func rbdPod(o *Origin, program string) m {
	pod := originPod(o.kind(), o.Parts.Tools, program, nil)
	pod["initContainers"] = []m{{
		"name": "modules", "image": o.Parts.Tools, "imagePullPolicy": "Never", "command": []string{"modprobe", "rbd"},
		"securityContext": m{"privileged": true},
		"volumeMounts":    []m{{"name": "modules", "mountPath": "/lib/modules", "readOnly": true}},
	}}
	volumes, _ := pod["volumes"].([]m)
	pod["volumes"] = append(volumes, hostPath("modules", "/lib/modules", "Directory"))
	return pod
}

func (l *Lab) rbdProgram() string { return filepath.Join(l.Paths.Origin(), "rbd-csi-driver") }

// cephRoot is the root file system of Ceph's daemons, with their data.
func (l *Lab) cephRoot() string { return filepath.Join(l.Paths.Origin(), "ceph") }

// cephEntrance is a program that runs a command in Ceph's root.
func (l *Lab) cephEntrance() string { return filepath.Join(l.Paths.Origin(), "in-ceph") }

// writeCephEntrance makes that program. The root has this machine's devices and processes
// while a command runs; what is mounted for it is gone with it. No process stays in
// between: the command is what is started, recorded and ended.
func (l *Lab) writeCephEntrance() error {
	const script = `#!/bin/sh
exec unshare --mount --propagation=private -- sh -ec 'mount --rbind /dev "$1/dev"; mount -t proc proc "$1/proc"; exec chroot "$@"' ceph %s "$@"
`
	if err := os.WriteFile(l.cephEntrance(), fmt.Appendf(nil, script, l.cephRoot()), 0o700); err != nil {
		return fmt.Errorf("root of Ceph: %w", err)
	}
	return nil
}

// cephSpec completes what describes a daemon.
func (l *Lab) cephSpec(spec *proc.Spec) {
	kind := strings.TrimPrefix(spec.Name, originPrefix)
	id := map[string]string{cephMon: "a", cephOSD: "0", cephMgr: "x"}[spec.Name]
	spec.Path, spec.Args = l.cephEntrance(), []string{"ceph-" + kind, "-f", "-i", id}
	spec.Env = cephEnv()
}

// rbdControllerSpec completes what describes the driver's controller. It asks Ceph by the
// programs in Ceph's root.
func (l *Lab) rbdControllerSpec(spec *proc.Spec, socket string) {
	spec.Path = l.rbdProgram()
	spec.Args = []string{
		"--mode=controller", "--v=4", "--endpoint=" + socket, "--user=" + cephController,
		"--kubeconfig=" + l.Paths.Kubeconfig(pki.Origin), "--command=" + l.cephEntrance(),
	}
}

// OriginExec runs a command in the root of Ceph and in the lab's network.
func (l *Lab) OriginExec(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	s, err := l.load()
	if err != nil {
		return err
	}
	if s.Origin == nil || s.Origin.Name != OriginCeph {
		return fmt.Errorf("%w: commands are for %s", ErrOrigin, OriginCeph)
	}
	return l.cephCommand(ctx, argv, stdin, stdout, stderr)
}

func cephEnv() []string { return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"} }

func (l *Lab) cephCommand(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, l.cephEntrance(), argv...)
	cmd.Env = cephEnv()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	if err := l.NS.Do(cmd.Start); err != nil {
		return fmt.Errorf("%s: %w", argv[0], err)
	}
	return cmd.Wait()
}

// ceph runs a command of a start; its error has what the command said.
func (l *Lab) ceph(ctx context.Context, stdin string, argv ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	if err := l.cephCommand(ctx, argv, strings.NewReader(stdin), &stdout, &stderr); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// startCeph makes a Ceph unless it is there, starts what does not run of it, and returns
// the Secret that nodes map images with. Every step may be repeated.
func (l *Lab) startCeph(ctx context.Context, o *Origin) (secret any, err error) {
	if err := l.unpackCeph(ctx, o.Parts.Root); err != nil {
		return nil, err
	}
	if err := l.writeCephEntrance(); err != nil {
		return nil, err
	}
	if err := l.makeMonitor(ctx); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		daemon string
		before func(context.Context) error
	}{
		{cephMon, nil}, {cephOSD, l.makeOSD}, {cephMgr, l.makeManager},
	} {
		if step.before != nil {
			if err := step.before(ctx); err != nil {
				return nil, err
			}
		}
		if err := l.startProcess(ctx, l.originSpec(o, step.daemon, o.Parts)); err != nil {
			return nil, err
		}
	}
	if err := l.makePool(ctx); err != nil {
		return nil, err
	}
	l.say("Ceph is up")
	return l.rbdSecretObject(rbdSecret, cephNode)
}

// unpackCeph makes the root; it is there whole or not at all.
func (l *Lab) unpackCeph(ctx context.Context, archive string) error {
	root := l.cephRoot()
	if _, err := os.Stat(root); err == nil {
		return nil
	}
	fresh := root + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("root of Ceph: %w", err)
	}
	for _, dir := range []string{
		"dev", "proc", "run/ceph", "tmp", "etc/ceph", "var/log/ceph", "var/lib/ceph/tmp",
		"var/lib/ceph/mon/ceph-a", "var/lib/ceph/osd/ceph-0", "var/lib/ceph/mgr/ceph-x",
	} {
		if err := os.MkdirAll(filepath.Join(fresh, dir), 0o755); err != nil {
			return fmt.Errorf("root of Ceph: %w", err)
		}
	}
	if out, err := exec.CommandContext(ctx, "tar", "--numeric-owner", "-C", fresh, "-xf", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("root of Ceph: tar: %w: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(fresh, "etc/ceph/ceph.conf"), []byte(cephConf(newUUID())), 0o644); err != nil {
		return fmt.Errorf("root of Ceph: %w", err)
	}
	return os.Rename(fresh, root)
}

// cephConf is that of a cluster of one OSD, whose data are there once. Who asks proves who
// it is as always (cephx). What it logs goes to the lab's logs.
func cephConf(fsid string) string {
	return `[global]
fsid = ` + fsid + `
mon_initial_members = a
mon_host = [v2:` + cephMonitor + `/0]
public_addr = ` + plan.HostIP + `
ms_bind_msgr1 = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
mon_data_avail_warn = 3
mon_data_avail_crit = 1
auth_allow_insecure_global_id_reclaim = false
mon_warn_on_pool_no_redundancy = false
osd_crush_chooseleaf_type = 0
bluestore_block_size = 34359738368
osd_memory_target = 939524096
log_to_file = false
log_to_stderr = true
err_to_stderr = true
mon_cluster_log_to_file = false
mon_cluster_log_to_stderr = true
admin_socket =
`
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// hasCeph says whether a file is in Ceph's root. Steps make one as their last act.
func (l *Lab) hasCeph(path string) bool {
	_, err := os.Stat(filepath.Join(l.cephRoot(), path))
	return err == nil
}

const (
	adminKeyring = "/etc/ceph/ceph.client.admin.keyring"
	osdDir       = "/var/lib/ceph/osd/ceph-0"
	mgrKeyring   = "/var/lib/ceph/mgr/ceph-x/keyring"
)

func (l *Lab) makeMonitor(ctx context.Context) error {
	const data, monKeyring, monMap = "/var/lib/ceph/mon/ceph-a", "/var/lib/ceph/tmp/mon.keyring", "/var/lib/ceph/tmp/monmap"
	if l.hasCeph(filepath.Join(data, "made")) {
		return nil
	}
	conf, err := os.ReadFile(filepath.Join(l.cephRoot(), "etc/ceph/ceph.conf"))
	if err != nil {
		return fmt.Errorf("monitor of Ceph: %w", err)
	}
	_, fsid, _ := strings.Cut(string(conf), "fsid = ")
	fsid, _, _ = strings.Cut(fsid, "\n")
	for _, argv := range [][]string{
		{"rm", "-rf", data, monKeyring, monMap, adminKeyring},
		{"mkdir", data},
		{"ceph-authtool", "--create-keyring", monKeyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"},
		{"ceph-authtool", "--create-keyring", adminKeyring, "--gen-key", "-n", "client.admin",
			"--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *"},
		{"ceph-authtool", monKeyring, "--import-keyring", adminKeyring},
		{"monmaptool", "--create", "--addv", "a", "[v2:" + cephMonitor + "]", "--fsid", fsid, monMap},
		{"ceph-mon", "--mkfs", "-i", "a", "--monmap", monMap, "--keyring", monKeyring},
		{"touch", data + "/made"},
	} {
		if _, err := l.ceph(ctx, "", argv...); err != nil {
			return fmt.Errorf("monitor of Ceph: %w", err)
		}
	}
	return nil
}

// makeOSD runs when the monitor does. The OSD's key goes from file to file.
func (l *Lab) makeOSD(ctx context.Context) error {
	err := until(ctx, "Ceph's monitor", func(ctx context.Context) (bool, error) {
		if err := l.mustLive(cephMon); err != nil {
			return true, err
		}
		_, err := l.ceph(ctx, "", "ceph", "--connect-timeout", "10", "mon", "stat")
		return err == nil, err
	})
	if err != nil || l.hasCeph(osdDir+"/made") {
		return err
	}
	const script = `
cd "$1"
rm -rf ./*
key=$(ceph-authtool --gen-print-key)
id=$(printf '{"cephx_secret": "%s"}' "$key" | ceph osd new "$2" -i -)
[ "$id" = 0 ] || { echo "the OSD has the number $id, not 0" >&2; exit 1; }
umask 077
printf '[osd.0]\n\tkey = %s\n' "$key" >keyring
ceph-osd -i 0 --mkfs --osd-uuid "$2"
touch made`
	if _, err := l.ceph(ctx, "", "sh", "-ec", script, "osd", osdDir, newUUID()); err != nil {
		return fmt.Errorf("OSD of Ceph: %w", err)
	}
	return nil
}

func (l *Lab) makeManager(ctx context.Context) error {
	if l.hasCeph(mgrKeyring) {
		return nil
	}
	_, err := l.ceph(ctx, "", "ceph", "auth", "get-or-create", "mgr.x", "mon", "allow profile mgr", "osd", "allow *", "-o", mgrKeyring)
	return err
}

// makePool makes the pool of the images and the two users of the driver. The controller
// may keep clients out; nodes may not, but for breaking the lock of one that is gone.
func (l *Lab) makePool(ctx context.Context) error {
	if l.hasCeph(clientKeyring(cephNode)) {
		return nil
	}
	for _, argv := range [][]string{
		{"ceph", "osd", "pool", "create", cephPool, "8"},
		{"ceph", "osd", "pool", "application", "enable", cephPool, "rbd"},
		{"ceph", "auth", "get-or-create", "client." + cephController, "mon", `profile rbd, allow command "osd blocklist"`,
			"osd", "profile rbd pool=" + cephPool, "mgr", "profile rbd pool=" + cephPool, "-o", clientKeyring(cephController)},
		{"ceph", "auth", "get-or-create", "client." + cephNode, "mon", "profile rbd",
			"osd", "profile rbd pool=" + cephPool, "-o", clientKeyring(cephNode)},
	} {
		if _, err := l.ceph(ctx, "", argv...); err != nil {
			return fmt.Errorf("pool of Ceph: %w", err)
		}
	}
	return nil
}

func clientKeyring(user string) string { return "/etc/ceph/ceph.client." + user + ".keyring" }

// ErrKeyring is returned for a key ring without a key.
var ErrKeyring = errors.New("no key in Ceph's key ring")

// rbdSecretObject is a Secret with the key of one of the driver's users, with the names of ceph-csi.
func (l *Lab) rbdSecretObject(name, user string) (any, error) {
	b, err := os.ReadFile(filepath.Join(l.cephRoot(), clientKeyring(user)))
	if err != nil {
		return nil, fmt.Errorf("key of %s: %w", user, err)
	}
	for line := range strings.Lines(string(b)) {
		field, key, _ := strings.Cut(line, "=")
		if strings.TrimSpace(field) == "key" {
			return m{
				"apiVersion": "v1", "kind": "Secret", "metadata": m{"name": name, "namespace": originNamespace},
				"stringData": m{"userID": user, "userKey": strings.TrimSpace(key)},
			}, nil
		}
	}
	return nil, ErrKeyring
}
