package scheduling

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation"
)

// maxWeight is the largest weight of a preferred term (core/v1
// PreferredSchedulingTerm).
const maxWeight = 100

// Weights say how much a preference counts against the others of a pod, from 0
// (none) to 100. The scheduler adds the weights of all terms that a node meets.
type Weights struct {
	// Warm is for the node that holds the caches of all volumes of the pod; one
	// that holds a part of them gets that part of it.
	Warm int
	// Free is for nodes with room for the caches that they do not hold, half of it
	// for those that have to give caches of departed volumes up for that.
	Free int
}

// Config says where the webhook is served.
type Config struct {
	// Address is host:port; empty serves nothing.
	Address string
	// Namespace and Name are those of the Service in front of the webhook and of
	// the Secret with its certificate; Name is also that of the
	// MutatingWebhookConfiguration. All three must exist.
	Namespace, Name string
	// Weights of the preferences.
	Weights Weights
}

// AddFlags defines the flags.
func (c *Config) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.Address, "scheduling-address", "", "`host:port` of the admission webhook that makes pods prefer nodes with their caches; empty for none")
	fs.StringVar(&c.Namespace, "scheduling-namespace", "", "`namespace` of the webhook's Service and Secret")
	fs.StringVar(&c.Name, "scheduling-name", "", "`name` of the webhook's Service, Secret and MutatingWebhookConfiguration")
	fs.IntVar(&c.Weights.Warm, "scheduling-warm-weight", 80, "`weight` (0 to 100) of the preference for nodes that hold the pod's caches")
	fs.IntVar(&c.Weights.Free, "scheduling-free-weight", 20, "`weight` (0 to 100) of the preference for nodes with room for the pod's caches")
}

// Validate reports everything that is wrong with the flags at once.
func (c *Config) Validate() error {
	if c.Address == "" {
		return nil
	}
	var errs []error
	if _, _, err := c.listen(); err != nil {
		errs = append(errs, err)
	}
	if len(validation.IsDNS1123Label(c.Namespace)) > 0 {
		errs = append(errs, fmt.Errorf("--scheduling-namespace %q: accepted is the name of a namespace", c.Namespace))
	}
	if len(validation.IsDNS1123Label(c.Name)) > 0 {
		errs = append(errs, fmt.Errorf("--scheduling-name %q: accepted is the name of a Service", c.Name))
	}
	weights := []struct {
		flag  string
		value int
	}{{"--scheduling-warm-weight", c.Weights.Warm}, {"--scheduling-free-weight", c.Weights.Free}}
	for _, w := range weights {
		if w.value < 0 || w.value > maxWeight {
			errs = append(errs, fmt.Errorf("%s %d: accepted are 0 to %d", w.flag, w.value, maxWeight))
		}
	}
	return errors.Join(errs...)
}

// listen splits the address.
func (c *Config) listen() (host string, port int, err error) {
	host, text, err := net.SplitHostPort(c.Address)
	if err != nil {
		return "", 0, fmt.Errorf("--scheduling-address: %w", err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("--scheduling-address %q: accepted is a port from 1 to 65535", c.Address)
	}
	return host, int(n), nil
}

// host is the name in the certificate: that by which the API server calls a
// Service (k8s.io/apiserver/pkg/util/webhook, ClientManager.HookClient).
func (c *Config) host() string { return c.Name + "." + c.Namespace + ".svc" }
