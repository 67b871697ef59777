package node

import (
	"context"
	"net/netip"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/moves"
)

// TestStream: the key is told while the node listens and has something to send, and only then.
func TestStream(t *testing.T) {
	cfg := Config{Stream: StreamConfig{Port: 1, TokenFile: "/token", Account: "system:serviceaccount:storage:nearflash-node"}}
	server, client, err := newStream(cfg, &rest.Config{})
	if err != nil || server != nil || client != nil {
		t.Errorf("without addresses: %v, %v, %v", server, client, err)
	}
	cfg.Stream.Addresses, cfg.Stream.Port = addressList{netip.MustParseAddr("127.0.0.1")}, 0
	if server, client, err = newStream(cfg, &rest.Config{}); err != nil || server == nil || client == nil {
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
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Run(ctx, p.streamedCaches()); err != nil || p.streamPublicKey() != "" {
		t.Errorf("after the end: %v, key %q", err, p.streamPublicKey())
	}
	if none := (&plugin{}); none.streamPublicKey() != "" || none.streamedCaches() != nil {
		t.Error("a node without addresses has a key")
	}
}
