package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// Files of a worker.
const (
	containerdSocket = "/run/containerd/containerd.sock"
	containerdConfig = "/etc/containerd/config.toml"
	cniConfig        = "/etc/cni/net.d/10-lab.conflist"
	kubeletConfig    = "/etc/kubernetes/kubelet.json"
	kubeletKubeconf  = "/etc/kubernetes/kubelet.kubeconfig"
	clusterCA        = "/etc/kubernetes/ca.crt"
	servingCert      = "/etc/kubernetes/kubelet.crt"
	servingKey       = "/etc/kubernetes/kubelet.key"
)

// setupWorker starts the initiator, the container runtime and the kubelet.
func (g *guest) setupWorker(ctx context.Context) error {
	w := g.cfg.Worker
	if w == nil {
		return fmt.Errorf("configuration of %s has no worker part", g.cfg.Node)
	}
	if err := writeWorkerFiles(w); err != nil {
		return err
	}
	if w.Initiator == "" {
		// As on a system that has no open-iscsi.
		if err := os.RemoveAll("/etc/iscsi"); err != nil {
			return fmt.Errorf("open-iscsi's configuration: %w", err)
		}
	} else if err := g.startISCSI(ctx, w.Initiator); err != nil {
		return err
	}
	if w.ReadOnlyRoot {
		if err := sealRoot(); err != nil {
			return err
		}
	}
	if err := g.sup.run(ctx, agentapi.Service{Name: "containerd", Argv: []string{"containerd", "--config", containerdConfig}}); err != nil {
		return err
	}
	if err := waitFor(ctx, "containerd", startLimit, exists(containerdSocket)); err != nil {
		return err
	}
	g.step("containerd")
	// A kubelet that meets no API server backs off for seconds; it is started
	// when there is one.
	if err := waitForAPI(ctx, w); err != nil {
		return err
	}
	g.step("api")
	return g.sup.run(ctx, agentapi.Service{Name: "kubelet", Argv: []string{
		"kubelet", "--config", kubeletConfig, "--kubeconfig", kubeletKubeconf,
		"--hostname-override", g.cfg.Node, "--node-ip", strings.Split(g.cfg.Network.IP, "/")[0], "--v=2",
	}})
}

// sealRoot makes the root one that nobody can write, /etc with it, as on systems for containers.
// These keep /var; /run and /tmp have file systems of their own.
func sealRoot() error {
	// Of what the pods of the chart would make, every system has this one.
	if err := os.MkdirAll("/lib/modules", 0o755); err != nil {
		return err
	}
	for _, m := range []mount{
		{source: "/var", target: "/var", flags: unix.MS_BIND},
		// Else what is mounted below would be below the old one too.
		{target: "/var", flags: unix.MS_PRIVATE},
		{target: "/var", flags: unix.MS_SHARED},
		{target: "/", flags: unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY},
	} {
		if err := unix.Mount(m.source, m.target, "", m.flags, ""); err != nil {
			return fmt.Errorf("make the root read-only: %s: %w", m.target, err)
		}
	}
	return nil
}

func waitForAPI(ctx context.Context, w *agentapi.Worker) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(w.CA) {
		return fmt.Errorf("the cluster's authority is no certificate")
	}
	client := &http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
	}
	return waitFor(ctx, "the API server", 2*time.Minute, func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.APIURL+"/readyz", nil)
		if err != nil {
			return false
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func writeWorkerFiles(w *agentapi.Worker) error {
	cni, err := cniConflist(w.PodCIDR)
	if err != nil {
		return err
	}
	kubelet, err := kubeletConfiguration()
	if err != nil {
		return err
	}
	for path, content := range map[string][]byte{
		containerdConfig: []byte(containerdTOML),
		cniConfig:        cni,
		kubeletConfig:    kubelet,
		kubeletKubeconf:  w.Kubeconfig,
		clusterCA:        w.CA,
		servingCert:      w.ServingCert,
		servingKey:       w.ServingKey,
	} {
		if err := writeFile(path, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// containerdTOML pins the sandbox image that the node's image store holds:
// there is no registry to take another from.
const containerdTOML = `version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "` + plan.PauseImage + `"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
`

// cniConflist gives pods a bridge. Nothing is masqueraded: the lab's network
// routes to every pod.
func cniConflist(podCIDR string) ([]byte, error) {
	type m = map[string]any
	b, err := json.MarshalIndent(m{
		"cniVersion": "1.0.0",
		"name":       "lab",
		"plugins": []m{{
			"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
			"ipam": m{
				"type":   "host-local",
				"ranges": [][]m{{{"subnet": podCIDR}}},
				"routes": []m{{"dst": "0.0.0.0/0"}},
			},
		}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("network configuration: %w", err)
	}
	return b, nil
}

// kubeletConfiguration is a KubeletConfiguration (kubelet.config.k8s.io/v1beta1)
// in JSON.
func kubeletConfiguration() ([]byte, error) {
	type m = map[string]any
	b, err := json.MarshalIndent(m{
		"apiVersion":        "kubelet.config.k8s.io/v1beta1",
		"kind":              "KubeletConfiguration",
		"cgroupDriver":      "cgroupfs",
		"failSwapOn":        false,
		"tlsCertFile":       servingCert,
		"tlsPrivateKeyFile": servingKey,
		"authentication": m{
			"anonymous": m{"enabled": false},
			"webhook":   m{"enabled": true},
			"x509":      m{"clientCAFile": clusterCA},
		},
		"authorization":            m{"mode": "Webhook"},
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"resolvConf":               "/etc/resolv.conf",
		// The nodes are small and their images are preloaded: nothing may be
		// evicted or collected for want of space.
		"evictionHard":                m{"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "20Mi"},
		"imageGCHighThresholdPercent": 100,
		"imageMinimumGCAge":           "24h",
		"registerNode":                true,
		// Every attach and every detach waits for a node status that lists the
		// volumes in use: every 10 s by default.
		"nodeStatusUpdateFrequency": "2s",
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("kubelet configuration: %w", err)
	}
	return b, nil
}
