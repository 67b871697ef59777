package cachestream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestWhoMay: only a node's plugin gets a cache, and only its own. No token is in an error or a
// log.
func TestWhoMay(t *testing.T) {
	known := map[string]authenticationv1.TokenReviewStatus{
		tokenOf("node-b"): reviewed("node-b", nil),
		tokenOf("node-c"): reviewed("node-c", nil),
		tokenOf("refused"): reviewed("node-b", func(st *authenticationv1.TokenReviewStatus) {
			st.Authenticated, st.Error = false, "not "+tokenOf("refused")
		}),
		tokenOf("audience"):   reviewed("node-b", func(st *authenticationv1.TokenReviewStatus) { st.Audiences = []string{"https://kubernetes"} }),
		tokenOf("noaudience"): reviewed("node-b", func(st *authenticationv1.TokenReviewStatus) { st.Audiences = nil }),
		tokenOf("account"): reviewed("node-b", func(st *authenticationv1.TokenReviewStatus) {
			st.User.Username = "system:serviceaccount:other:nearflash-node"
		}),
		tokenOf("unbound"): reviewed("node-b", func(st *authenticationv1.TokenReviewStatus) { st.User.Extra = nil }),
		tokenOf("nowhere"): reviewed("", nil),
		tokenOf("two"): reviewed("node-b", func(st *authenticationv1.TokenReviewStatus) {
			st.User.Extra[nodeName] = authenticationv1.ExtraValue{"node-b", "node-c"}
		}),
	}
	cases := map[string]struct {
		who  string
		fail error
		want error
		text string
	}{
		"the node":             {who: "node-b"},
		"another node":         {who: "node-c", want: volume.ErrFenced, text: "node-b"},
		"unknown token":        {who: "nobody", want: volume.ErrUnavailable, text: "unauthenticated"},
		"refused token":        {who: "refused", want: volume.ErrUnavailable, text: "does not accept"},
		"another audience":     {who: "audience", want: volume.ErrUnavailable, text: "audience"},
		"no audience":          {who: "noaudience", want: volume.ErrUnavailable, text: "audience"},
		"another account":      {who: "account", want: volume.ErrUnavailable, text: "another account"},
		"not bound to a pod":   {who: "unbound", want: volume.ErrUnavailable, text: "not bound"},
		"pod without a node":   {who: "nowhere", want: volume.ErrUnavailable, text: "not bound"},
		"pod of two nodes":     {who: "two", want: volume.ErrUnavailable, text: "not bound"},
		"API server is away":   {who: "node-b", fail: errors.New("cannot review"), want: volume.ErrUnavailable, text: "***"},
		"a token of two lines": {who: "x\ny", want: volume.ErrUnavailable, text: "holds no token"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, api := newCache(chunk, 3), &tokens{known: known, fail: tc.fail}
			n := startNode(t, c, func(cfg *ServerConfig) { cfg.Reviewer = api })
			cl, own := client(t, tc.who), &buffer{}
			ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(own), textlogger.Verbosity(10))))
			_, err := cl.Map(ctx, n.Source(), id, move)
			chunks := cl.Chunks(ctx, n.Source(), id, move, volume.Wanted{From: 0}, 0, chunk, (&received{}).verify(t, c))
			if tc.want == nil {
				if err != nil || chunks != nil || api.reviews.Load() != 1 {
					t.Errorf("got %v, %v and %d reviews", err, chunks, api.reviews.Load())
				}
			} else {
				wantErr(t, err, tc.want)
				wantErr(t, chunks, tc.want)
				if !strings.Contains(err.Error(), tc.text) || c.opened.Load() != 0 {
					t.Errorf("got %v, want %q; opened %d times", err, tc.text, c.opened.Load())
				}
				if strings.Contains(err.Error()+chunks.Error(), tokenOf("")) {
					t.Errorf("an error shows the token: %v, %v", err, chunks)
				}
			}
			n.stop()
			if log := n.log.String() + own.String(); strings.Contains(log, tokenOf("")) || !strings.Contains(log, "Stream") && tc.text != "holds no token" {
				t.Errorf("the log shows a token, or nothing:\n%s", log)
			}
		})
	}
}

func noKeys(context.Context, string) (string, error) { return "", nil }

// TestRelayedToken: each node that is asked for a cache sees a token, which is of no use to who has
// not the key of the node that it is of.
func TestRelayedToken(t *testing.T) {
	cases := map[string]struct {
		keys func(context.Context, string) (string, error)
		with string
		text string
	}{
		"key of another node":  {with: "node-a", text: "not that of node node-b"},
		"CachePool has no key": {with: "node-b", keys: noKeys, text: "no streamPublicKey"},
		"CachePool is unknown": {with: "node-b", keys: func(context.Context, string) (string, error) { return "", errors.New("cannot be read") }, text: "cannot be read"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCache(chunk, 3)
			n := startNode(t, c, func(cfg *ServerConfig) {
				if tc.keys != nil {
					cfg.Keys = tc.keys
				}
			})
			if tc.keys == nil { // what was remembered of the node helps nobody else
				if _, err := client(t, "node-b").Map(t.Context(), n.Source(), id, move); err != nil {
					t.Fatal(err)
				}
			}
			opened := c.opened.Load()
			_, err := clientOf(tc.with, tokenFileOf(t, "node-b")).Map(t.Context(), n.Source(), id, move)
			wantErr(t, err, volume.ErrUnavailable)
			if !strings.Contains(err.Error(), tc.text) || c.opened.Load() != opened {
				t.Errorf("got %v, want %q; opened %d times", err, tc.text, c.opened.Load()-opened)
			}
		})
	}
	t.Run("no key", func(t *testing.T) {
		c := newCache(chunk, 3)
		n := startNode(t, c, nil)
		_, err := (&Client{token: tokenFile(tokenFileOf(t, "node-b")), silence: Silence}).Map(t.Context(), n.Source(), id, move)
		wantErr(t, err, volume.ErrUnavailable)
		if c.opened.Load() != 0 {
			t.Error("it was opened")
		}
	})
}

func TestNoTokenFile(t *testing.T) {
	n := startNode(t, newCache(chunk, 3), nil)
	long := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(long, []byte(strings.Repeat("x", maxToken+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/nonexistent/token", "", "/dev/null", "/dev/zero", long} {
		_, err := clientOf("node-b", path).Map(t.Context(), n.Source(), id, move)
		wantErr(t, err, volume.ErrUnavailable)
	}
}

// TestReviews: a token is reviewed once in a while, and strangers do not have the API server
// asked without end.
func TestReviews(t *testing.T) {
	api := &tokens{known: map[string]authenticationv1.TokenReviewStatus{tokenOf("node-b"): reviewed("node-b", nil)}}
	now := time.Unix(1, 0)
	n := startNode(t, newCache(chunk, 3), func(cfg *ServerConfig) { cfg.Reviewer = api })
	n.gate.now = func() time.Time { return now }
	for _, wait := range []time.Duration{0, remembered - 1, 1} {
		now = now.Add(wait)
		if _, err := client(t, "node-b").Map(t.Context(), n.Source(), id, move); err != nil {
			t.Fatal(err)
		}
	}
	if got := api.reviews.Load(); got != 2 {
		t.Errorf("%d reviews, want 2", got)
	}
	stranger := client(t, "stranger")
	for range reviewsOfOneAtOnce + 10 {
		_, err := stranger.Map(t.Context(), n.Source(), id, move)
		wantErr(t, err, volume.ErrUnavailable)
	}
	if got := api.reviews.Load(); got > 2+reviewsOfOneAtOnce {
		t.Errorf("%d reviews, want at most %d", got, 2+reviewsOfOneAtOnce)
	}
	for i := range 2 * maxRemembered {
		n.gate.remember([32]byte{byte(i), byte(i >> 8)}, "node-b")
	}
	if len(n.gate.known) > maxRemembered {
		t.Errorf("%d tokens are remembered", len(n.gate.known))
	}
}

// TestMayAsk: whoever shows tokens without end leaves the others their part, and all together have the
// API server asked at a bounded rate, from however many addresses.
func TestMayAsk(t *testing.T) {
	now := time.Unix(1, 0)
	g := newGate(nil, "", nil, func() time.Time { return now })
	node, one := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	asked := 0
	for range 1000 {
		if g.mayAsk(one) {
			asked++
		}
	}
	if asked != reviewsOfOneAtOnce {
		t.Errorf("one address may ask %d times at once, want %d", asked, reviewsOfOneAtOnce)
	}
	if !g.mayAsk(node) {
		t.Error("a node may not ask beside a stranger that does without end")
	}
	asked = 0
	many := netip.MustParseAddr("198.51.100.0")
	for range 3 * maxAddresses {
		many = many.Next()
		if g.mayAsk(many) {
			asked++
		}
	}
	if asked > reviewsAtOnce || len(g.asking) > maxAddresses {
		t.Errorf("many addresses may ask %d times at once, and %d are kept", asked, len(g.asking))
	}
	now = now.Add(time.Minute)
	if !g.mayAsk(netip.MustParseAddr("192.0.2.3")) {
		t.Error("a node may not ask when those that asked before are quiet")
	}
}

// TestWrongKey: who has not the key gets no token.
func TestWrongKey(t *testing.T) {
	api := &tokens{}
	n := startNode(t, newCache(chunk, 3), func(cfg *ServerConfig) { cfg.Reviewer = api })
	src := n.Source()
	other := startNode(t, newCache(chunk, 3), nil)
	if len(src.PublicKey) != 44 || src.PublicKey == other.PublicKey() {
		t.Errorf("keys %q and %q", src.PublicKey, other.PublicKey())
	}
	src.PublicKey = other.PublicKey()
	_, err := client(t, "node-b").Map(t.Context(), src, id, move)
	wantErr(t, err, volume.ErrUnavailable, ErrKey)
	if api.reviews.Load() != 0 {
		t.Error("a token was sent")
	}
	for _, key := range []string{"", "x", n.PublicKey()[:43], strings.Repeat("A", 44), n.PublicKey() + "\n"} {
		src.PublicKey = key
		_, err := client(t, "node-b").Map(t.Context(), src, id, move)
		wantErr(t, err, ErrBroken)
	}
}

// TestOldTLS: neither side speaks TLS 1.2.
func TestOldTLS(t *testing.T) {
	n := startNode(t, newCache(chunk, 3), nil)
	at := n.Source().Addresses[0]
	for version, want := range map[uint16]bool{tls.VersionTLS12: false, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true, MaxVersion: version, NextProtos: []string{protocol}})
		if (err == nil) != want {
			t.Errorf("TLS version %x: %v", version, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	conf := serverTLS(n.cert)
	conf.MinVersion, conf.MaxVersion, conf.NextProtos = tls.VersionTLS12, tls.VersionTLS12, []string{protocol}
	l, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = conn.(*tls.Conn).HandshakeContext(context.Background()) }()
		}
	}()
	_, err = client(t, "node-b").Map(t.Context(), volume.StreamSource{Addresses: []string{l.Addr().String()}, PublicKey: n.PublicKey()}, id, move)
	wantErr(t, err, volume.ErrUnavailable)
}

// TestChainOfCaller: a caller shows one certificate. A server keeps what it was shown.
func TestChainOfCaller(t *testing.T) {
	n := startNode(t, newCache(chunk, 3), nil)
	for certificates, want := range map[int]bool{1: true, 2: false, 500: false} {
		chain := n.cert
		for len(chain.Certificate) < certificates {
			chain.Certificate = append(chain.Certificate, n.cert.Certificate[0])
		}
		conn, err := tls.Dial("tcp", n.Source().Addresses[0], &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{chain}, NextProtos: []string{protocol}})
		if err == nil { // in TLS 1.3 the server's word comes after the client's handshake
			_ = conn.SetDeadline(time.Now().Add(handshake))
			_, _ = conn.Write([]byte{0}) // a call that wants nothing
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		if (err == nil) != want {
			t.Errorf("%d certificates: %v", certificates, err)
		}
	}
}

// TestTooMany: nobody has more connections or streams than a node needs.
func TestTooMany(t *testing.T) {
	c := newCache(chunk, 100)
	c.read = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	n := startNode(t, c, nil)
	cl := client(t, "node-b")
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, maxPerNode)
	for range maxPerNode {
		go func() {
			results <- cl.Chunks(ctx, n.Source(), id, move, volume.Wanted{From: 0}, 0, chunk, func(int, uint64, []byte) error { return nil })
		}()
	}
	eventually(t, "all streams are open", func() bool { return c.opened.Load() == maxPerNode })
	_, err := cl.Map(t.Context(), n.Source(), id, move)
	wantErr(t, err, volume.ErrUnavailable)
	_, err = client(t, "node-c").Map(t.Context(), n.Source(), id, move)
	wantErr(t, err, volume.ErrFenced)
	cancel()
	for range maxPerNode {
		<-results
	}
	eventually(t, "all connections are closed", func() bool {
		n.conns.mu.Lock()
		defer n.conns.mu.Unlock()
		return n.conns.open == 0 && len(n.conns.from) == 0
	})
	var open []net.Conn
	for range maxPerAddress + 1 {
		conn, err := net.Dial("tcp", n.Source().Addresses[0])
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		open = append(open, conn)
	}
	last := open[maxPerAddress]
	if err := last.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection too many: %v, want it closed", err)
	}
}

// TestListen: an address that is taken does not keep the server from the others, and is listened
// at when it is free.
func TestListen(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(taken.Addr().String())
	s, err := NewServer(ServerConfig{Addresses: []netip.AddrPort{at, netip.MustParseAddrPort("127.0.0.1:0")}, Account: account, Reviewer: &tokens{}, Keys: noKeys})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.Listen(t.Context()); err == nil || len(s.Source().Addresses) != 1 {
		t.Errorf("got %v; it listens at %v", err, s.Source().Addresses)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(t.Context()); err != nil || len(s.Source().Addresses) != 2 {
		t.Errorf("got %v; it listens at %v", err, s.Source().Addresses)
	}
}

// TestAPIServer has real tokens reviewed by a real API server, and looks for them in the log of
// client-go at its highest level.
func TestAPIServer(t *testing.T) {
	api, err := kubernetes.NewForConfig(apiserver.StartBare(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, ns := range []string{"storage", "other"} {
		create(t, "namespace", func() error {
			_, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
			return err
		})
		create(t, "account", func() error {
			_, err := api.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "nearflash-node"}}, metav1.CreateOptions{})
			return err
		})
	}
	for _, name := range []string{"node-b", "node-c"} {
		create(t, "node", func() error {
			_, err := api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			return err
		})
	}
	c := newCache(chunk, 3)
	n := startNode(t, c, func(cfg *ServerConfig) { cfg.Reviewer = api.AuthenticationV1().TokenReviews() })
	var secrets []string
	call := func(node, token string) error {
		secrets = append(secrets, token)
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := clientOf(node, path).Map(ctx, n.Source(), id, move)
		return err
	}
	good := podToken(t, api, "storage", "node-b", Audience)
	if err := call("node-b", good); err != nil {
		t.Errorf("the node's own token: %v", err)
	}
	wantErr(t, call("node-c", podToken(t, api, "storage", "node-c", Audience)), volume.ErrFenced)
	opened := c.opened.Load()
	for name, token := range map[string]string{
		"for the API server":          podToken(t, api, "storage", "node-b", ""),
		"of another account":          podToken(t, api, "other", "node-b", Audience),
		"that is bound to nothing":    podToken(t, api, "storage", "", Audience),
		"with a signature of nothing": good[:strings.LastIndexByte(good, '.')+1] + "AAAA",
		"that is none":                "x",
	} {
		if err := call("node-b", token); !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), "unauthenticated") {
			t.Errorf("a token %s: %v", name, err)
		}
	}
	if c.opened.Load() != opened {
		t.Error("a cache was opened")
	}
	log := n.log.String()
	if strings.Contains(log, "Request Body") || strings.Contains(log, "Response Body") {
		t.Error("the log shows what was asked of the API server, with the token in it, if only as a dump")
	}
	for _, s := range secrets {
		if len(s) > 1 && strings.Contains(log, s) {
			t.Error("the log shows a token")
		}
	}
}

func create(t *testing.T, what string, do func() error) {
	t.Helper()
	if err := do(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// podToken is what kubelet would give to a pod of a node; without a node it is bound to none.
func podToken(t *testing.T, api kubernetes.Interface, ns, node, audience string) string {
	t.Helper()
	spec := authenticationv1.TokenRequestSpec{}
	if audience != "" {
		spec.Audiences = []string{audience}
	}
	if node != "" {
		pod, err := api.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
			Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "nearflash-node", Containers: []corev1.Container{{Name: "c", Image: "nearflash.local/none:none"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	answer, err := api.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "nearflash-node", &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}
