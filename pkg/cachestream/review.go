package cachestream

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/volume"
)

// errToken means that a caller has not proved to be a node's plugin, and errCrowd that too many such have
// called.
var (
	errToken = errors.New("the caller is not known")
	errCrowd = fmt.Errorf("%w: too many unknown callers", volume.ErrUnavailable)
)

const (
	// nodeName is where the API server says of which node the pod is that a token is bound
	// to (Kubernetes 1.32 and later).
	nodeName = "authentication.kubernetes.io/node-name"
	// remembered is how long a review holds, and maxRemembered of how many tokens.
	remembered    = 10 * time.Second
	maxRemembered = 256
	// reviewsPerSecond and reviewsAtOnce bound what strangers can have this node ask the API
	// server, all of them together; reviewsOfOne and reviewsOfOneAtOnce those at one address, so
	// that one of them does not leave the others, and the nodes, without.
	reviewsPerSecond, reviewsAtOnce  = 40, 160
	reviewsOfOne, reviewsOfOneAtOnce = 2, 10
	// maxAddresses is for how many addresses that is kept at a time.
	maxAddresses  = 1024
	reviewTimeout = 10 * time.Second
)

// Reviewer asks the API server whose token it is. client-go's
// AuthenticationV1().TokenReviews() is one.
type Reviewer interface {
	Create(ctx context.Context, r *authenticationv1.TokenReview, o metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// gate lets the plugins of nodes pass.
type gate struct {
	reviewer Reviewer
	// account is the name of the plugins' service account.
	account string
	keys    func(ctx context.Context, node string) (string, error)
	now     func() time.Time
	limit   *rate.Limiter

	mu sync.Mutex
	// known are the tokens that were reviewed lately, by the hash of token and key.
	known map[[sha256.Size]byte]known
	// asking are the addresses from which unknown tokens have come lately.
	asking map[netip.Addr]*rate.Limiter
}

type known struct {
	node  string
	until time.Time
}

func newGate(r Reviewer, account string, keys func(context.Context, string) (string, error), now func() time.Time) *gate {
	return &gate{reviewer: r, account: account, keys: keys, now: now, limit: rate.NewLimiter(reviewsPerSecond, reviewsAtOnce), known: map[[sha256.Size]byte]known{}, asking: map[netip.Addr]*rate.Limiter{}}
}

// caller is who makes a call.
type caller struct {
	// token is what it sends, and key names the key that its connection was made with.
	token, key string
	from       netip.Addr
}

// node returns the node whose plugin makes a call. The token says which one, and the connection is
// made with its key: each node that was asked for a cache has seen the token, and could show it to
// others. Errors: errToken, volume.ErrUnavailable; none has the token.
func (g *gate) node(ctx context.Context, c caller) (string, error) {
	switch {
	case !plausible(c.token):
		return "", fmt.Errorf("%w: it sends no token", errToken)
	case c.key == "":
		return "", fmt.Errorf("%w: it has no key", errToken)
	}
	hash := sha256.Sum256([]byte(c.key + " " + c.token))
	if node, ok := g.recall(hash); ok {
		return node, nil
	}
	node, err := g.review(ctx, c)
	if err != nil {
		return "", err
	}
	switch want, err := g.keys(ctx, node); {
	case err != nil:
		// Not found is what a caller hears of a cache that is not sent any more.
		return "", fmt.Errorf("%w: the key of node %s: %s", volume.ErrUnavailable, node, err.Error())
	case want == "":
		return "", fmt.Errorf("%w: CachePool %s has no streamPublicKey", errToken, node)
	case subtle.ConstantTimeCompare([]byte(want), []byte(c.key)) != 1:
		return "", fmt.Errorf("%w: its key is not that of node %s", errToken, node)
	}
	g.remember(hash, node)
	return node, nil
}

// mayAsk reports whether the API server may be asked about a token that comes from an address.
func (g *gate) mayAsk(from netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	one := g.asking[from]
	if one == nil {
		if len(g.asking) >= maxAddresses {
			maps.DeleteFunc(g.asking, func(_ netip.Addr, l *rate.Limiter) bool { return l.TokensAt(now) >= reviewsOfOneAtOnce })
		}
		if len(g.asking) >= maxAddresses {
			return false
		}
		one = rate.NewLimiter(reviewsOfOne, reviewsOfOneAtOnce)
		g.asking[from] = one
	}
	return one.AllowN(now, 1) && g.limit.AllowN(now, 1)
}

// review asks the API server. Text of the API server could have the token, which is why it is
// looked through.
func (g *gate) review(ctx context.Context, c caller) (string, error) {
	if !g.mayAsk(c.from) {
		return "", errCrowd
	}
	// At a high level client-go logs the bodies of requests and answers.
	ctx, cancel := context.WithTimeout(klog.NewContext(ctx, logr.Discard()), reviewTimeout)
	defer cancel()
	r, err := g.reviewer.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: c.token, Audiences: []string{Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("%w: TokenReview: %s", volume.ErrUnavailable, strings.ReplaceAll(err.Error(), c.token, "***"))
	}
	switch st := r.Status; {
	case !st.Authenticated:
		return "", fmt.Errorf("%w: the API server does not accept its token", errToken)
	case !slices.Contains(st.Audiences, Audience):
		return "", fmt.Errorf("%w: its token is for another audience", errToken)
	case st.User.Username != g.account:
		return "", fmt.Errorf("%w: its token is of another account", errToken)
	case len(st.User.Extra[nodeName]) != 1 || st.User.Extra[nodeName][0] == "":
		return "", fmt.Errorf("%w: its token is not bound to the pod of a node", errToken)
	default:
		return st.User.Extra[nodeName][0], nil
	}
}

func (g *gate) recall(hash [sha256.Size]byte) (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k, ok := g.known[hash]
	return k.node, ok && g.now().Before(k.until)
}

func (g *gate) remember(hash [sha256.Size]byte, node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	for h, k := range g.known {
		if !now.Before(k.until) {
			delete(g.known, h)
		}
	}
	if len(g.known) < maxRemembered {
		g.known[hash] = known{node: node, until: now.Add(remembered)}
	}
}
