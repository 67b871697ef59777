package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/cachestream"
	"github.com/nearflash/nearflash/pkg/records"
)

// StreamConfig says how this node's plugin sends caches to other nodes' plugins, and asks them
// for theirs. Without addresses it does neither.
type StreamConfig struct {
	// Addresses are the node's own, and Port the TCP port at which it sends.
	Addresses addressList
	Port      int
	// TokenFile has the token by which this plugin proves itself to others, and Account is the
	// service account that all of them have.
	TokenFile, Account string
}

// addressList is a flag with IP addresses, separated by commas.
type addressList []netip.Addr

// String implements flag.Value.
func (l *addressList) String() string {
	var out []string
	for _, a := range *l {
		out = append(out, a.String())
	}
	return strings.Join(out, ",")
}

// Set implements flag.Value.
func (l *addressList) Set(s string) error {
	*l = nil
	for text := range strings.SplitSeq(s, ",") {
		if text == "" {
			continue
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		*l = append(*l, a)
	}
	return nil
}

// AddFlags defines the flags.
func (c *StreamConfig) AddFlags(fs *flag.FlagSet) {
	fs.Var(&c.Addresses, "stream-address", "the node's IP `addresses`, separated by commas, at which its caches are sent to other nodes' plugins; empty: they are not")
	fs.IntVar(&c.Port, "stream-port", 3263, "`port` at which caches are sent to other nodes' plugins")
	fs.StringVar(&c.TokenFile, "stream-token-file", "", "`file` with a token of the plugin's service account for the audience "+cachestream.Audience)
	fs.StringVar(&c.Account, "stream-account", "", "the plugins' service `account`: system:serviceaccount:NAMESPACE:NAME")
}

// Validate reports everything that is wrong with the flags at once.
func (c *StreamConfig) Validate() error {
	var errs []error
	for _, a := range c.Addresses {
		if a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			errs = append(errs, fmt.Errorf("--stream-address %s: accepted are addresses of this node, without a zone", a))
		}
	}
	if c.Port < 1 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("--stream-port %d: accepted are 1 to 65535", c.Port))
	}
	if c.TokenFile != "" && !filepath.IsAbs(c.TokenFile) {
		errs = append(errs, fmt.Errorf("--stream-token-file %q: accepted is an absolute path", c.TokenFile))
	}
	if len(c.Addresses) > 0 && (c.TokenFile == "" || c.Account == "") {
		errs = append(errs, errors.New("--stream-address needs --stream-token-file and --stream-account"))
	}
	if parts := strings.Split(c.Account, ":"); c.Account != "" && (len(parts) != 4 || parts[0] != "system" || parts[1] != "serviceaccount" || slices.Contains(parts, "")) {
		errs = append(errs, fmt.Errorf("--stream-account %q: accepted is system:serviceaccount:NAMESPACE:NAME", c.Account))
	}
	return errors.Join(errs...)
}

// newStream returns what sends this node's caches and what asks others for theirs; both are nil
// if nobody is to do that.
func newStream(cfg Config, config *rest.Config, keys func(ctx context.Context, node string) (string, error)) (*cachestream.Server, *cachestream.Client, error) {
	if len(cfg.Stream.Addresses) == 0 {
		return nil, nil, nil
	}
	// With limits of its own: of strangers who show tokens nothing else waits for the reviews.
	config = rest.CopyConfig(config)
	config.RateLimiter = nil
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("client of the API server: %w", err)
	}
	sc := cachestream.ServerConfig{Reviewer: api.AuthenticationV1().TokenReviews(), Account: cfg.Stream.Account, Keys: keys, Bandwidth: cfg.WarmStartNodeBandwidth, KeyFile: cfg.streamKeyFile()}
	for _, a := range cfg.Stream.Addresses {
		sc.Addresses = append(sc.Addresses, netip.AddrPortFrom(a.Unmap(), uint16(cfg.Stream.Port)))
	}
	s, err := cachestream.NewServer(sc)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Client(cfg.Stream.TokenFile), nil
}

// streamKeys asks the API server for the keys by which nodes prove themselves.
func streamKeys(api client.Reader) func(ctx context.Context, node string) (string, error) {
	return func(ctx context.Context, node string) (string, error) {
		pool := &v1alpha1.CachePool{}
		if err := api.Get(ctx, client.ObjectKey{Name: node}, pool); err != nil {
			return "", records.Error("read CachePool "+node, err)
		}
		return pool.Status.StreamPublicKey, nil
	}
}

// streamKeyFile is where this node's key is kept, "" without a state directory.
func (c *Config) streamKeyFile() string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(c.StateDir, "stream.key")
}

// streamedCaches are what is sent; nil if this node can send nothing.
func (p *plugin) streamedCaches() cachestream.Caches {
	if p.stream == nil || p.leases == nil {
		return nil
	}
	return cachestream.CachesOf(p.attacher.Lessor().OpenStream)
}

// sendCaches sends caches until over is closed, which may be after the end of ctx: whoever is sent
// one is to hear that the lease has ended, and not that nobody answers.
func (p *plugin) sendCaches(ctx context.Context, over <-chan struct{}) error {
	caches := p.streamedCaches()
	if caches == nil {
		return nil
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		defer stop()
		select {
		case <-over:
		case <-ctx.Done():
		}
	}()
	return p.stream.Run(ctx, caches)
}

// listenForStreams has other nodes' plugins find this one from the first report of the pool on,
// which has the key. An address that cannot be listened at is tried again.
func (p *plugin) listenForStreams(ctx context.Context) {
	if p.streamedCaches() == nil {
		return
	}
	if err := p.stream.Listen(ctx); err != nil {
		klog.FromContext(ctx).Info("Caches cannot be sent from every address yet", "reason", err.Error())
	}
}

// streamPublicKey is the key of the server of streams, "" while there is none.
func (p *plugin) streamPublicKey() string {
	if p.stream == nil {
		return ""
	}
	return p.stream.PublicKey()
}
