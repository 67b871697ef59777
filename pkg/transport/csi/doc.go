// Package csi attaches raw block volumes of other CSI drivers: their node plugins are called
// over their unix sockets, with the calls, paths and order of kubelet (Kubernetes 1.36,
// pkg/volume/csi: csi_block.go, csi_client.go, expander.go). The CSI specification of these
// calls is container-storage-interface/spec v1.13, "Node Service RPC".
//
// A node plugin is found as kubelet finds it, by asking the sockets in its registration
// directory who they are (k8s.io/kubelet/pkg/apis/pluginregistration/v1), never by names.
//
// Paths are kubelet's as well, since node plugins mount only these from the host. They are
// named by the PersistentVolume:
//
//	<kubelet>/plugins/kubernetes.io/csi/volumeDevices/staging/<pv>        made by us
//	<kubelet>/plugins/kubernetes.io/csi/volumeDevices/publish/<pv>        made by us
//	<kubelet>/plugins/kubernetes.io/csi/volumeDevices/publish/<pv>/<uid>  made by the driver
//
// # What is left by a kill
//
// The directories are made before the first call that changes something and removed after
// the last: while one is there, Disconnect calls, whether Connect was ever successful or not.
// kubelet tells final errors from others (isFinalError in csi_client.go): after Unavailable,
// DeadlineExceeded, Canceled, Aborted and ResourceExhausted a call may have had an effect, or
// have it yet. Here no error is final: a call that undoes nothing does no harm, since the
// specification makes it idempotent, and a retry may be refused for good after a first try
// that had its effect.
//
// Beside the target lies a record of the last successful Connect: which device it was, under
// which boot of the kernel. On a disk that outlives a reboot, a target may be a symbolic link
// or a device node, which then leads to some other device: without a record of this boot,
// nothing is attached.
//
// # Secrets
//
// They are kept in memory until Disconnect, never on disk, and taken out of what a driver
// says in its errors.
package csi
