package node

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/moves"
)

// TestStream: the key is told while the node listens and has something to send, and only then.
func TestStream(t *testing.T) {
	cfg := Config{Stream: StreamConfig{Port: 1, TokenFile: "/token", Account: "system:serviceaccount:storage:nearflash-node"}}
	server, client, err := newStream(cfg, &rest.Config{}, streamKeys(nil))
	if err != nil || server != nil || client != nil {
		t.Errorf("without addresses: %v, %v, %v", server, client, err)
	}
	cfg.Stream.Addresses, cfg.Stream.Port = addressList{netip.MustParseAddr("127.0.0.1")}, 0
	if server, client, err = newStream(cfg, &rest.Config{}, streamKeys(nil)); err != nil || server == nil || client == nil {
		t.Fatalf("with addresses: %v, %v, %v", server, client, err)
	}
	p := &plugin{cfg: cfg, attacher: &attach.Attacher{}, stream: server}
	p.listenForStreams(t.Context())
	if p.streamPublicKey() != "" {
		t.Error("it exports no cache, and tells a key")
	}
	p.leases = &moves.Source{}
	p.listenForStreams(t.Context())
	if len(p.streamPublicKey()) != 44 || p.streamedCaches() == nil {
		t.Errorf("key %q, caches %v", p.streamPublicKey(), p.streamedCaches())
	}
	// The signal has come, and leases are being handed over.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	over, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- p.sendCaches(ctx, over) }()
	select {
	case err := <-ended:
		t.Fatalf("it ended with the signal: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if p.streamPublicKey() == "" {
		t.Error("nobody listens while leases are handed over")
	}
	close(over)
	if err := <-ended; err != nil || p.streamPublicKey() != "" {
		t.Errorf("after the end: %v, key %q", err, p.streamPublicKey())
	}
	if err := (&plugin{}).sendCaches(t.Context(), nil); err != nil {
		t.Errorf("with nothing to send: %v", err)
	}
	if none := (&plugin{}); none.streamPublicKey() != "" || none.streamedCaches() != nil {
		t.Error("a node without addresses has a key")
	}
}
