package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// ceph-csi over the lab's Ceph, if the lab was brought up with its source (CEPH_CSI_SRC). Its
// program needs Ceph's libraries: the controller runs in Ceph's root, and so does the node half, in
// a copy of that root which all guests see.

const (
	cephCSIDriver = "rbd.csi.ceph.com"
	cephCSIName   = "ceph-csi"
	// Paths in Ceph's root.
	cephCSIProgram = "/usr/local/bin/cephcsi"
	cephCSIConfig  = "/etc/ceph-csi-config"
	cephCSISocket  = "/run/csi.sock"
	cephCSIKeys    = "/tmp/csi/keys"
	// cephCSIControllerSecret has the key that volumes are made with.
	cephCSIControllerSecret = "rbd-controller"
)

func cephCSIKind() originKind {
	parameters := m{
		"clusterID": cephPool, "pool": cephPool, "imageFeatures": "layering",
		// The monitor speaks the second version of the protocol alone.
		"mapOptions": "krbd:ms_mode=prefer-crc",
	}
	for use, secret := range map[string]string{
		"provisioner": cephCSIControllerSecret, "controller-expand": cephCSIControllerSecret, "node-stage": rbdSecret,
	} {
		parameters["csi.storage.k8s.io/"+use+"-secret-name"] = secret
		parameters["csi.storage.k8s.io/"+use+"-secret-namespace"] = originNamespace
	}
	return originKind{
		driver: cephCSIDriver, class: "rbd", node: cephCSIName + "-node", parameters: parameters, pod: cephCSIPod,
		// Of the node half, those of its own manifests.
		controllerRules: []m{rule("", "secrets", "get")},
		nodeRules: []m{
			rule("", "secrets", "get"), rule("", "configmaps", "get"), rule("", "serviceaccounts", "get"), rule("", "persistentvolumes", "get"),
			rule("storage.k8s.io", "volumeattachments", "get", "list"),
		},
	}
}

// startCephCSI brings what it needs into both roots, and returns its objects.
func (l *Lab) startCephCSI(ctx context.Context, o *Origin) ([]any, error) {
	if err := l.stageCephRoot(ctx, o); err != nil {
		return nil, err
	}
	if err := replaceFile(o.Parts.CephCSI, filepath.Join(l.cephRoot(), cephCSIProgram)); err != nil {
		return nil, err
	}
	// Its own manifests mount a folder in memory there.
	if err := os.MkdirAll(filepath.Join(l.cephRoot(), cephCSIKeys), 0o700); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`[{"clusterID": %q, "monitors": [%q]}]`, cephPool, cephMonitor)
	dir := filepath.Join(l.cephRoot(), cephCSIConfig)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("ceph-csi: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		return nil, fmt.Errorf("ceph-csi: %w", err)
	}
	kubeconfig, err := os.ReadFile(l.Paths.Kubeconfig(pki.Origin))
	if err != nil {
		return nil, fmt.Errorf("ceph-csi: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), kubeconfig, 0o600); err != nil {
		return nil, fmt.Errorf("ceph-csi: %w", err)
	}
	secret, err := l.rbdSecretObject(cephCSIControllerSecret, cephController)
	if err != nil {
		return nil, err
	}
	return []any{secret, m{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": cephCSIName, "namespace": originNamespace},
		"data": m{"config.json": config},
	}}, nil
}

// guestCephRoot is the copy, relative to what the guests see.
const guestCephRoot = otherImages + "/ceph-root"

// stageCephRoot makes the copy; it is there whole or not at all.
func (l *Lab) stageCephRoot(ctx context.Context, o *Origin) error {
	root := filepath.Join(l.Paths.Images(), guestCephRoot)
	if _, err := os.Stat(root); err == nil {
		return replaceFile(o.Parts.CephCSI, filepath.Join(root, cephCSIProgram))
	}
	fresh := root + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("root of ceph-csi: %w", err)
	}
	if err := os.MkdirAll(fresh, 0o755); err != nil {
		return fmt.Errorf("root of ceph-csi: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "tar", "--numeric-owner", "-C", fresh, "-xf", o.Parts.Root).CombinedOutput(); err != nil {
		return fmt.Errorf("root of ceph-csi: tar: %w: %s", err, out)
	}
	// What a pod mounts there has to exist.
	for _, dir := range []string{
		"dev", "proc", "sys", "run", "tmp", "csi", "etc/ceph", cephCSIConfig, "lib/modules",
		"var/lib/kubelet/plugins/kubernetes.io/csi", "var/lib/kubelet/pods",
	} {
		if err := os.MkdirAll(filepath.Join(fresh, dir), 0o755); err != nil {
			return fmt.Errorf("root of ceph-csi: %w", err)
		}
	}
	if err := replaceFile(o.Parts.CephCSI, filepath.Join(fresh, cephCSIProgram)); err != nil {
		return err
	}
	return os.Rename(fresh, root)
}

// cephCSISpec completes what describes the controller.
func (l *Lab) cephCSISpec(spec *proc.Spec) {
	spec.Path = l.cephEntrance()
	spec.Args = []string{
		cephCSIProgram, "--type=rbd", "--controllerserver=true", "--drivername=" + cephCSIDriver, "--nodeid=controller",
		"--endpoint=unix://" + cephCSISocket, "--csi-addons-endpoint=unix:///run/csi-addons.sock", "--v=4",
	}
	spec.Env = append(cephEnv(), "KUBERNETES_CONFIG_PATH="+cephCSIConfig+"/kubeconfig")
}

// cephCSIPod is its own manifest's, but for the root, and for the registrar, whose work the tests'
// driver does.
func cephCSIPod(o *Origin, program string) m {
	k := o.kind()
	const root = "/ceph"
	pod := rbdPod(o, program)
	containers, _ := pod["containers"].([]m)
	registrar := containers[0]
	registrar["name"] = "registrar"
	registrar["command"] = []string{
		"/csi-driver", "--mode=registrar", "--v=4", "--driver-name=" + k.driver, "--kubelet-endpoint=" + k.pluginDir() + "/csi.sock",
	}
	shared := func(name, path string) m {
		return m{"name": name, "mountPath": root + path, "mountPropagation": "Bidirectional"}
	}
	driver := m{
		"name": "driver", "image": o.Parts.Tools, "imagePullPolicy": "Never",
		"command": []string{"sh", "-ec", `
mount -t proc proc /ceph/proc
mkdir -p /ceph/run/secrets /ceph/tmp/csi/keys
mount --rbind /run/secrets /ceph/run/secrets
rm -f /ceph/csi/csi.sock
exec chroot /ceph ` + cephCSIProgram + ` --type=rbd --nodeserver=true --drivername=` + k.driver + ` --nodeid="$NODE_NAME" --endpoint=unix:///csi/csi.sock --csi-addons-endpoint=unix:///run/csi-addons.sock --v=5`},
		"env":             []m{{"name": "NODE_NAME", "valueFrom": m{"fieldRef": m{"fieldPath": "spec.nodeName"}}}},
		"securityContext": m{"privileged": true},
		"volumeMounts": []m{
			mount("root", root),
			shared("kubelet-csi", "/var/lib/kubelet/plugins/kubernetes.io/csi"), shared("kubelet-pods", "/var/lib/kubelet/pods"),
			mount("plugin", root+"/csi"), mount("dev", root+"/dev"), mount("sys", root+"/sys"), mount("modules", root+"/lib/modules"),
			mount("run", root+"/run"), mount("tmp", root+"/tmp"), mount("ceph-config", root+"/etc/ceph"), mount("config", root+cephCSIConfig),
		},
	}
	pod["containers"] = []m{driver, registrar}
	volumes, _ := pod["volumes"].([]m)
	empty := func(name string) m { return m{"name": name, "emptyDir": m{"medium": "Memory"}} }
	pod["volumes"] = append(volumes, hostPath("root", filepath.Join(agentapi.ImageDir, guestCephRoot), "Directory"),
		empty("run"), empty("tmp"), empty("ceph-config"), m{"name": "config", "configMap": m{"name": cephCSIName}})
	return pod
}
