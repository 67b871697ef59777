package pki

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// Names of the pairs that [Write] leaves in the folder, as NAME.crt and NAME.key.
const (
	CAName            = "ca"
	APIServer         = "apiserver"
	Admin             = "admin"
	ControllerManager = "kcm"
	Scheduler         = "scheduler"
	KubeletClient     = "kubelet-client" // the API server towards kubelets
	ServiceAccount    = "sa"
	Origin            = "origin" // the controller of an origin driver
	TargetCA          = "target-ca"
	TargetServer      = "target-server"
	TargetServer2     = "target-server-2" // the second storage server's
	TargetClient      = "target-client"
)

// TargetClientName is the common name that the storage server lets in.
const TargetClientName = "nearflash-controller"

// OriginUser is the cluster's name of an origin driver's controller, which roles are
// bound to.
const OriginUser = "lab-origin"

// KubeletServer names the serving pair of a node's kubelet.
func KubeletServer(node string) string { return node + "-serving" }

// Cert is the path of a certificate in a folder of pairs.
func Cert(dir, name string) string { return filepath.Join(dir, name+".crt") }

// Key is the path of a private key in a folder of pairs.
func Key(dir, name string) string { return filepath.Join(dir, name+".key") }

// Write makes all keys, certificates and kubeconfigs of a lab in dir. The
// storage server gets an authority of its own: a cluster certificate must not
// open it.
func Write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("key folder: %w", err)
	}
	ca, err := NewCA("nearflash-lab")
	if err != nil {
		return err
	}
	target, err := NewCA("nearflash-lab-target")
	if err != nil {
		return err
	}
	sa, err := NewSigningKey()
	if err != nil {
		return err
	}
	pairs := map[string]Pair{CAName: ca.Pair, TargetCA: target.Pair, ServiceAccount: sa}
	for name, s := range clusterSubjects() {
		if pairs[name], err = ca.Issue(s); err != nil {
			return err
		}
	}
	for name, s := range targetSubjects() {
		if pairs[name], err = target.Issue(s); err != nil {
			return err
		}
	}
	for name, p := range pairs {
		if err := os.WriteFile(Cert(dir, name), p.Cert, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if err := os.WriteFile(Key(dir, name), p.Key, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return writeKubeconfigs(dir, ca.Cert, pairs)
}

// clusterSubjects are the certificates that the cluster's authority signs.
func clusterSubjects() map[string]Subject {
	out := map[string]Subject{
		APIServer: {
			Name: "kube-apiserver", Server: true,
			IPs: []string{"127.0.0.1", plan.HostIP, plan.ServiceIP},
			DNS: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		},
		Admin:             {Name: "admin", Groups: []string{"system:masters"}, Client: true},
		ControllerManager: {Name: "system:kube-controller-manager", Client: true},
		Scheduler:         {Name: "system:kube-scheduler", Client: true},
		Origin:            {Name: OriginUser, Client: true},
		KubeletClient:     {Name: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}, Client: true},
	}
	for _, n := range plan.Workers() {
		out[n.Name] = Subject{Name: "system:node:" + n.Name, Groups: []string{"system:nodes"}, Client: true}
		out[KubeletServer(n.Name)] = Subject{Name: n.Name, Server: true, IPs: []string{n.IP}, DNS: []string{n.Name}}
	}
	return out
}

// targetSubjects are the certificates for the storage server's mutual TLS.
func targetSubjects() map[string]Subject {
	out := map[string]Subject{TargetClient: {Name: TargetClientName, Client: true}}
	n, second := plan.Storage(), plan.Second()
	// One certificate serves both of a pair, which have one address.
	out[TargetServer] = Subject{Name: n.Name, Server: true, IPs: []string{n.IP, plan.PairIP}, DNS: []string{n.Name}}
	out[TargetServer2] = Subject{Name: second.Name, Server: true, IPs: []string{second.IP}, DNS: []string{second.Name}}
	return out
}

func writeKubeconfigs(dir string, ca []byte, pairs map[string]Pair) error {
	users := []string{Admin, ControllerManager, Scheduler, Origin}
	for _, n := range plan.Workers() {
		users = append(users, n.Name)
	}
	for _, u := range users {
		b, err := Kubeconfig(fmt.Sprintf("https://%s:%d", plan.HostIP, plan.APIPort), ca, pairs[u])
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, u+".kubeconfig"), b, 0o600); err != nil {
			return fmt.Errorf("kubeconfig of %s: %w", u, err)
		}
	}
	return nil
}

// Kubeconfig returns a client configuration with everything embedded. It is
// JSON, which every reader of such files takes as YAML.
func Kubeconfig(server string, ca []byte, client Pair) ([]byte, error) {
	b64 := base64.StdEncoding.EncodeToString
	type m = map[string]any
	b, err := json.MarshalIndent(m{
		"apiVersion":      "v1",
		"kind":            "Config",
		"clusters":        []m{{"name": "lab", "cluster": m{"server": server, "certificate-authority-data": b64(ca)}}},
		"users":           []m{{"name": "lab", "user": m{"client-certificate-data": b64(client.Cert), "client-key-data": b64(client.Key)}}},
		"contexts":        []m{{"name": "lab", "context": m{"cluster": "lab", "user": "lab"}}},
		"current-context": "lab",
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return append(b, '\n'), nil
}
