package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/nearflash/nearflash/hack/lab/internal/kube"
	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// etcdURL is etcd's address: the loopback of the lab's namespace, which nothing
// but the lab's host processes is in.
const etcdURL = "http://127.0.0.1:2379"

// Names of the control plane's programs, and so of its processes.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

// controlPlane lists the control plane's processes in the order in which they
// are stopped, backwards: the API server hangs in its shutdown when etcd goes
// first.
func controlPlane() []string { return []string{etcd, apiServer, controllerManager, scheduler} }

// controlSpec describes one process of the control plane. Flags: the reference
// of each program's command line for Kubernetes 1.36 and etcd 3.6.
func (l *Lab) controlSpec(name, path string) proc.Spec {
	var args []string
	switch name {
	case etcd:
		args = l.etcdArgs()
	case apiServer:
		args = l.apiServerArgs()
	case controllerManager:
		args = l.controllerManagerArgs()
	case scheduler:
		args = []string{
			"--kubeconfig=" + l.Paths.Kubeconfig(pki.Scheduler), "--leader-elect=false", "--bind-address=127.0.0.1",
		}
	}
	return proc.Spec{
		Name: name, Path: path, Args: args, Dir: l.Paths.Root, Log: l.Paths.Log(name),
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.Paths.Root},
	}
}

func (l *Lab) etcdArgs() []string {
	return []string{
		"--data-dir=" + l.Paths.Etcd(),
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380",
		// The lab's state need not survive a crash of the host.
		"--unsafe-no-fsync",
	}
}

func (l *Lab) apiServerArgs() []string {
	dir := l.Paths.PKI()
	return []string{
		"--etcd-servers=" + etcdURL,
		// All addresses of the bridge, the service range's first among them.
		"--bind-address=0.0.0.0", "--advertise-address=" + plan.HostIP, "--secure-port=" + strconv.Itoa(plan.APIPort),
		"--service-cluster-ip-range=" + plan.ServiceRange,
		// The host has routes to the pods and no kube-proxy: webhooks are dialled
		// by their endpoints.
		"--enable-aggregator-routing=true",
		"--tls-cert-file=" + pki.Cert(dir, pki.APIServer), "--tls-private-key-file=" + pki.Key(dir, pki.APIServer),
		"--client-ca-file=" + pki.Cert(dir, pki.CAName),
		"--kubelet-certificate-authority=" + pki.Cert(dir, pki.CAName),
		"--kubelet-client-certificate=" + pki.Cert(dir, pki.KubeletClient),
		"--kubelet-client-key=" + pki.Key(dir, pki.KubeletClient),
		// Node names resolve nowhere on the host.
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-key-file=" + pki.Cert(dir, pki.ServiceAccount),
		"--service-account-signing-key-file=" + pki.Key(dir, pki.ServiceAccount),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
	}
}

func (l *Lab) controllerManagerArgs() []string {
	dir := l.Paths.PKI()
	return []string{
		"--kubeconfig=" + l.Paths.Kubeconfig(pki.ControllerManager),
		"--root-ca-file=" + pki.Cert(dir, pki.CAName),
		"--service-account-private-key-file=" + pki.Key(dir, pki.ServiceAccount),
		"--use-service-account-credentials=true",
		// Pod ranges are the plan's: the guests' routes are fixed.
		"--cluster-cidr=" + plan.PodRange, "--allocate-node-cidrs=false",
		"--leader-elect=false", "--bind-address=127.0.0.1",
	}
}

// startProcess starts a process unless it runs already.
func (l *Lab) startProcess(ctx context.Context, s proc.Spec) error {
	if rec, err := l.Procs.Get(s.Name); err == nil {
		if rec.Alive() {
			return nil
		}
		// What is left of its session goes before it is started again.
		if err := l.Procs.Stop(ctx, rec, 0); err != nil {
			return err
		}
	}
	_, err := l.Procs.Start(l.NS.Do, s)
	return err
}

// startControlPlane starts what is missing of it and returns when all of it was
// started and the API server is ready. The controller manager ends by itself
// when the API server takes longer than ten seconds, so it is started after it.
func (l *Lab) startControlPlane(ctx context.Context, bin map[string]string) error {
	for _, name := range []string{etcd, apiServer} {
		if err := l.startProcess(ctx, l.controlSpec(name, bin[name])); err != nil {
			return err
		}
	}
	api, err := l.api()
	if err != nil {
		return err
	}
	err = until(ctx, "the API server", func(ctx context.Context) (bool, error) {
		if err := l.mustLive(etcd, apiServer); err != nil {
			return true, err
		}
		err := api.Ready(ctx)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	l.say("API server ready")
	for _, name := range []string{controllerManager, scheduler} {
		if err := l.startProcess(ctx, l.controlSpec(name, bin[name])); err != nil {
			return err
		}
	}
	return nil
}

// mustLive fails when one of these processes ended.
func (l *Lab) mustLive(names ...string) error {
	for _, name := range names {
		rec, err := l.Procs.Get(name)
		if errors.Is(err, os.ErrNotExist) || err == nil && !rec.Alive() {
			return fmt.Errorf("%w: %s, see %s", ErrEnded, name, l.Paths.Logs())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// api returns a client for the API server, as administrator.
func (l *Lab) api() (*kube.Client, error) {
	dir := l.Paths.PKI()
	return kube.NewClient(l.NS.DialContext, fmt.Sprintf("https://%s:%d", plan.HostIP, plan.APIPort),
		kube.Files{CA: pki.Cert(dir, pki.CAName), Cert: pki.Cert(dir, pki.Admin), Key: pki.Key(dir, pki.Admin)})
}
