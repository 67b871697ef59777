// Package charttest checks the nearflash chart: what it renders (snapshots), what
// its schema refuses, what its roles grant and why, and that a real API server
// takes the objects and enforces the limits on the node plugin.
//
// The tests run helm, from the environment variable HELM or from PATH. The test
// against an API server finds etcd and kube-apiserver through KUBEBUILDER_ASSETS.
package charttest
