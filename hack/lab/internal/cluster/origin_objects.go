package cluster

import (
	"github.com/nearflash/nearflash/hack/lab/internal/driver"
	"github.com/nearflash/nearflash/hack/lab/internal/pki"
)

// originNamespace is where an origin's objects are.
const originNamespace = "lab-origin"

type m = driver.M

// originKind is how an origin appears in the cluster.
type originKind struct {
	// driver is the name of the CSI driver, class that of its class, with parameters, and
	// node that of its DaemonSet.
	driver, class, node string
	parameters          m
	// snapshots is whether it has them; their class has the same name.
	snapshots bool
	// controllerRules and nodeRules are what the driver needs beyond other drivers.
	controllerRules, nodeRules []m
	// pod is the driver's node half; program is its path on the nodes.
	pod func(o *Origin, program string) m
}

// pluginDir is where the node half has its socket.
func (k originKind) pluginDir() string { return "/var/lib/kubelet/plugins/" + k.driver }

// pdKind is Google's driver. What is left out of its own manifests is said beside it.
func pdKind() originKind {
	return originKind{
		driver: "pd.csi.storage.gke.io", class: OriginPD, node: "pd-csi-node",
		parameters: m{"type": "pd-ssd"}, pod: pdPod,
	}
}

// originObjects are what an origin needs of the cluster.
func originObjects(k originKind, pod m) []any {
	meta := m{"name": k.node, "namespace": originNamespace}
	objects := []any{
		m{"apiVersion": "v1", "kind": "Namespace", "metadata": m{"name": originNamespace}},
		m{
			"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": m{"name": k.driver},
			"spec": m{"attachRequired": true, "podInfoOnMount": false},
		},
		m{
			"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": m{"name": k.class},
			"provisioner": k.driver, "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
			"parameters": k.parameters,
		},
		originRole(pki.OriginUser, append(originRules(), k.controllerRules...)),
		originBinding(pki.OriginUser, m{"kind": "User", "name": pki.OriginUser, "apiGroup": "rbac.authorization.k8s.io"}),
		m{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
		originRole(k.node, append([]m{rule("", "nodes", "get")}, k.nodeRules...)),
		originBinding(k.node, m{"kind": "ServiceAccount", "name": k.node, "namespace": originNamespace}),
		m{
			"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta,
			"spec": m{
				"selector": m{"matchLabels": m{"app": k.node}},
				"template": m{"metadata": m{"labels": m{"app": k.node}}, "spec": pod},
			},
		},
	}
	if k.snapshots {
		objects = append(objects, m{
			"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
			// Of the driver's classes the one of who names none: clones do not.
			"metadata": m{"name": k.class, "annotations": m{"snapshot.storage.kubernetes.io/is-default-class": "true"}},
			"driver":   k.driver, "deletionPolicy": "Delete",
		})
	}
	return objects
}

// originRules are what provisioner, attacher, resizer and snapshotter ask for together; one user
// of the lab runs all of them.
func originRules() []m {
	const storage, snapshots = "storage.k8s.io", "snapshot.storage.k8s.io"
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
		rule(snapshots, "volumesnapshotclasses", "get", "list", "watch"),
		rule(snapshots, "volumesnapshots", "get", "list", "watch", "update"),
		rule(snapshots, "volumesnapshotcontents", "get", "list", "watch", "update", "patch"),
		rule(snapshots, "volumesnapshotcontents/status", "update", "patch"),
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

// originPod is a driver's node half: a program of the host over an image with the tools
// that it calls. It sees of kubelet's folders what the drivers' own manifests show them: the
// staging folders of Kubernetes and the pods' folders, no others. The registrar's work is
// done by the program itself.
func originPod(k originKind, image, program string, args []string) m {
	shared := func(name, path string) m {
		return m{"name": name, "mountPath": path, "mountPropagation": "Bidirectional"}
	}
	const csi, pods = "/var/lib/kubelet/plugins/kubernetes.io/csi", "/var/lib/kubelet/pods"
	return m{
		"hostNetwork": true, "serviceAccountName": k.node, "priorityClassName": "system-node-critical",
		"tolerations":                   []m{{"operator": "Exists"}},
		"terminationGracePeriodSeconds": 2,
		"containers": []m{{
			"name": "driver", "image": image, "imagePullPolicy": "Never",
			"command": append([]string{
				"/csi-driver", "--mode=node", "--v=4", "--node-name=$(NODE_NAME)", "--kubelet-endpoint=" + k.pluginDir() + "/csi.sock",
			}, args...),
			"env":             []m{{"name": "NODE_NAME", "valueFrom": m{"fieldRef": m{"fieldPath": "spec.nodeName"}}}},
			"securityContext": m{"privileged": true},
			"volumeMounts": []m{
				shared("kubelet-csi", csi), shared("kubelet-pods", pods), mount("plugin", "/csi"), mount("registration", "/registration"),
				mount("dev", "/dev"), mount("sys", "/sys"), mount("udev", "/run/udev"),
				{"name": "program", "mountPath": "/csi-driver", "readOnly": true},
			},
		}},
		"volumes": []m{
			hostPath("kubelet-csi", csi, "DirectoryOrCreate"), hostPath("kubelet-pods", pods, "Directory"),
			hostPath("plugin", k.pluginDir(), "DirectoryOrCreate"), hostPath("registration", "/var/lib/kubelet/plugins_registry", "Directory"),
			hostPath("dev", "/dev", "Directory"), hostPath("sys", "/sys", "Directory"), hostPath("udev", "/run/udev", "Directory"),
			hostPath("program", program, "File"),
		},
	}
}

func mount(name, path string) m { return m{"name": name, "mountPath": path} }

func hostPath(name, path, kind string) m {
	return m{"name": name, "hostPath": m{"path": path, "type": kind}}
}

// pdPod leaves out udev's rules and the modules: the lab's driver calls neither udevadm
// nor modprobe.
func pdPod(o *Origin, program string) m {
	return originPod(o.kind(), o.Parts.Tools, program, []string{"--instances=" + o.instances()})
}
