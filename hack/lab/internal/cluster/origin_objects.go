package cluster

import (
	"github.com/nearflash/nearflash/hack/lab/internal/driver"
	"github.com/nearflash/nearflash/hack/lab/internal/pki"
)

// Names of the origin in the cluster.
const (
	originDriver    = "pd.csi.storage.gke.io"
	originClass     = "pd"
	originNamespace = "lab-origin"
	originNode      = "pd-csi-node"
	originPluginDir = "/var/lib/kubelet/plugins/" + originDriver
)

type m = driver.M

// originObjects are what the driver needs of the cluster. They follow its own
// manifests; what is left out is said beside it.
func originObjects(o *Origin, image, program string) []any {
	meta := m{"name": originNode, "namespace": originNamespace}
	return []any{
		m{"apiVersion": "v1", "kind": "Namespace", "metadata": m{"name": originNamespace}},
		m{
			"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": m{"name": originDriver},
			"spec": m{"attachRequired": true, "podInfoOnMount": false},
		},
		m{
			"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": m{"name": originClass},
			"provisioner": originDriver, "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
			"parameters": m{"type": "pd-ssd"},
		},
		originRole(pki.OriginUser, originRules()),
		originBinding(pki.OriginUser, m{"kind": "User", "name": pki.OriginUser, "apiGroup": "rbac.authorization.k8s.io"}),
		m{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
		originRole(originNode, []m{rule("", "nodes", "get")}),
		originBinding(originNode, m{"kind": "ServiceAccount", "name": originNode, "namespace": originNamespace}),
		m{
			"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta,
			"spec": m{
				"selector": m{"matchLabels": m{"app": originNode}},
				"template": m{"metadata": m{"labels": m{"app": originNode}}, "spec": originPod(o, image, program)},
			},
		},
	}
}

// originRules are what provisioner, attacher and resizer ask for together; one user of
// the lab runs all three.
func originRules() []m {
	const storage = "storage.k8s.io"
	return []m{
		rule("", "persistentvolumes", "get", "list", "watch", "create", "update", "patch", "delete"),
		rule("", "persistentvolumeclaims", "get", "list", "watch", "update"),
		rule("", "persistentvolumeclaims/status", "patch"),
		rule("", "events", "get", "list", "watch", "create", "update", "patch"),
		rule("", "nodes", "get", "list", "watch"),
		rule("", "pods", "get", "list", "watch"),
		rule(storage, "storageclasses", "get", "list", "watch"),
		rule(storage, "volumeattributesclasses", "get", "list", "watch"),
		rule(storage, "csinodes", "get", "list", "watch"),
		rule(storage, "volumeattachments", "get", "list", "watch", "patch"),
		rule(storage, "volumeattachments/status", "patch"),
	}
}

func rule(group, resource string, verbs ...string) m {
	return m{"apiGroups": []string{group}, "resources": []string{resource}, "verbs": verbs}
}

func originRole(name string, rules []m) m {
	return m{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": m{"name": name}, "rules": rules}
}

func originBinding(role string, subject m) m {
	return m{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": m{"name": role},
		"roleRef":  m{"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"},
		"subjects": []m{subject},
	}
}

// originPod is the driver's node half. It sees of kubelet's folders what the driver's
// own manifest shows it: the staging folders of Kubernetes and the pods' folders, no
// others. udev's rules and the modules are left out: the lab's driver calls neither
// udevadm nor modprobe. The registrar's work is done by the program itself, which lies
// in a folder of the host, over an image with the tools that it calls.
func originPod(o *Origin, image, program string) m {
	mount := func(name, path string) m { return m{"name": name, "mountPath": path} }
	shared := func(name, path string) m {
		return m{"name": name, "mountPath": path, "mountPropagation": "Bidirectional"}
	}
	host := func(name, path, kind string) m { return m{"name": name, "hostPath": m{"path": path, "type": kind}} }
	const csi, pods = "/var/lib/kubelet/plugins/kubernetes.io/csi", "/var/lib/kubelet/pods"
	return m{
		"hostNetwork": true, "serviceAccountName": originNode, "priorityClassName": "system-node-critical",
		"tolerations":                   []m{{"operator": "Exists"}},
		"terminationGracePeriodSeconds": 2,
		"containers": []m{{
			"name": "pd-driver", "image": image, "imagePullPolicy": "Never",
			"command": []string{
				"/pd-csi-driver", "--mode=node", "--v=4", "--node-name=$(NODE_NAME)", "--instances=" + o.instances(),
				"--kubelet-endpoint=" + originPluginDir + "/csi.sock",
			},
			"env":             []m{{"name": "NODE_NAME", "valueFrom": m{"fieldRef": m{"fieldPath": "spec.nodeName"}}}},
			"securityContext": m{"privileged": true},
			"volumeMounts": []m{
				shared("kubelet-csi", csi), shared("kubelet-pods", pods), mount("plugin", "/csi"), mount("registration", "/registration"),
				mount("dev", "/dev"), mount("sys", "/sys"), mount("udev", "/run/udev"),
				{"name": "program", "mountPath": "/pd-csi-driver", "readOnly": true},
			},
		}},
		"volumes": []m{
			host("kubelet-csi", csi, "DirectoryOrCreate"), host("kubelet-pods", pods, "Directory"),
			host("plugin", originPluginDir, "DirectoryOrCreate"), host("registration", "/var/lib/kubelet/plugins_registry", "Directory"),
			host("dev", "/dev", "Directory"), host("sys", "/sys", "Directory"), host("udev", "/run/udev", "Directory"),
			host("program", program, "File"),
		},
	}
}
