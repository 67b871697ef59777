// Package controller wires nearflash-controller: the CSI services on a socket,
// the reconcilers, and the endpoints of probes and metrics.
package controller

import (
	"errors"
	"flag"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearflash/nearflash/pkg/app/metricserver"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/scheduling"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
)

// Config is what nearflash-controller is started with.
type Config struct {
	// Endpoint is the unix socket of the CSI services.
	Endpoint string
	// Target is the default storage server; without an Address there is none.
	Target targetclient.Config
	// TargetsFile names other storage servers; empty means that there are none.
	TargetsFile string
	// CHAPSecret is the Secret with the account of the storage server's volumes that is made if
	// there is none, in the namespace of the pod; empty makes none. CHAPUsername is the name
	// in it.
	CHAPSecret, CHAPUsername string
	// OriginNamespace is where claims of other CSI drivers' volumes are made, which lie below
	// ours; empty means that there are none.
	OriginNamespace string
	// NodePods selects, by labels, the pods of the node plugin in the namespace of the pod; empty
	// selects none, so that a node where the plugin never started is not known as one that lacks it.
	NodePods string
	// LeaderElect lets one of several controllers run the reconcilers. The CSI
	// services need no election here, their sidecars hold one each.
	LeaderElect bool
	// LeaderElectionNamespace is where the lease is kept; empty means the
	// namespace of the pod.
	LeaderElectionNamespace string
	// HealthAddress is where /healthz and /readyz are served; empty means nowhere.
	HealthAddress string
	// Metrics says where /metrics is served, and to whom.
	Metrics metricserver.Config
	// Scheduling says where the admission webhook for pods is served.
	Scheduling scheduling.Config
	// Version is the build's version.
	Version string
}

// AddFlags defines the flags of nearflash-controller.
func (c *Config) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.Endpoint, "endpoint", "", "`address` of the CSI services: unix:///absolute/path")
	fs.StringVar(&c.Target.Address, "target-address", "", "`host:port` of nearflash-target, of classes without a target; without it and --targets only static volumes can be used")
	fs.StringVar(&c.Target.CAFile, "target-ca", "", "PEM `file` with the CA of the storage server's certificate")
	fs.StringVar(&c.Target.CertFile, "target-cert", "", "PEM `file` with the certificate that is shown to the storage server")
	fs.StringVar(&c.Target.KeyFile, "target-key", "", "PEM `file` with the key of that certificate")
	fs.StringVar(&c.Target.ServerName, "target-server-name", "", "`name` expected in the storage server's certificate (default the host of --target-address)")
	fs.StringVar(&c.TargetsFile, "targets", "", "YAML `file` with a list of other storage servers, which classes choose by their parameter target: name, address, serverName (default the host of address), and ca, cert and key as of --target-ca; empty for none")
	fs.StringVar(&c.CHAPSecret, "chap-secret", "", "`name` of the Secret with the CHAP account of provisioned volumes, which is made if there is none; empty makes none")
	fs.StringVar(&c.CHAPUsername, "chap-username", "nearflash", "`name` of the account in a Secret that is made")
	fs.StringVar(&c.OriginNamespace, "origin-namespace", "", "`namespace` for the claims of volumes of other CSI drivers (backend: csi); empty for none")
	fs.StringVar(&c.NodePods, "node-pods", "", "`labels` of the node plugin's pods in the controller's namespace, such as app.kubernetes.io/component=node; nodes with one count as nodes that are to have the plugin")
	fs.BoolVar(&c.LeaderElect, "leader-elect", false, "let one of several controllers run the reconcilers")
	fs.StringVar(&c.LeaderElectionNamespace, "leader-election-namespace", "", "`namespace` of the lease (default that of the pod)")
	fs.StringVar(&c.HealthAddress, "health-address", "", "`host:port` for /healthz and /readyz; empty for none")
	c.Metrics.AddFlags(fs)
	c.Scheduling.AddFlags(fs)
}

// Validate reports everything that is wrong with the flags at once.
func (c *Config) Validate() error {
	errs := []error{c.Metrics.Validate(), c.Scheduling.Validate()}
	if c.Endpoint == "" {
		errs = append(errs, errors.New("--endpoint is required: unix:///absolute/path of the CSI socket"))
	} else if _, err := rpc.SocketPath(c.Endpoint); err != nil {
		errs = append(errs, fmt.Errorf("--endpoint: %w", err))
	}
	if c.OriginNamespace != "" && len(validation.IsDNS1123Label(c.OriginNamespace)) > 0 {
		errs = append(errs, fmt.Errorf("--origin-namespace %q: accepted is the name of a namespace, such as nearflash-origins", c.OriginNamespace))
	}
	if _, err := labels.Parse(c.NodePods); err != nil {
		errs = append(errs, fmt.Errorf("--node-pods %q: accepted is a selector of labels, such as app.kubernetes.io/component=node: %w", c.NodePods, err))
	}
	if c.CHAPSecret != "" && len(validation.IsDNS1123Subdomain(c.CHAPSecret)) > 0 {
		errs = append(errs, fmt.Errorf("--chap-secret %q: accepted is the name of a Secret, such as nearflash-chap", c.CHAPSecret))
	}
	if c.CHAPSecret != "" && c.CHAPUsername == "" {
		errs = append(errs, errors.New("--chap-username is empty: accepted is a name, such as nearflash"))
	}
	files := []struct{ flag, value string }{
		{"--target-ca", c.Target.CAFile}, {"--target-cert", c.Target.CertFile}, {"--target-key", c.Target.KeyFile},
	}
	for _, f := range files {
		switch {
		case c.Target.Address != "" && f.value == "":
			errs = append(errs, fmt.Errorf("%s is required with --target-address: the storage server accepts mutual TLS alone", f.flag))
		case c.Target.Address == "" && f.value != "":
			errs = append(errs, fmt.Errorf("%s without --target-address", f.flag))
		}
	}
	if _, err := c.targets(); err != nil {
		errs = append(errs, err)
	}
	if c.LeaderElectionNamespace != "" && !c.LeaderElect {
		errs = append(errs, errors.New("--leader-election-namespace without --leader-elect"))
	}
	return errors.Join(errs...)
}
