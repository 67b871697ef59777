package csi

import (
	"context"
	"fmt"
	"net"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/transport"
)

// What a plugin may send: its answers to these calls are a few hundred bytes.
const (
	maxAnswer = 1 << 20
	maxHeader = 64 << 10
)

// node is the node plugin of a driver, while one operation lasts.
type node struct {
	driver  string
	conn    *grpc.ClientConn
	client  csipb.NodeClient
	can     capabilities
	secrets callSecrets
	timeout time.Duration
}

// capabilities are what NodeGetCapabilities says, as far as it matters here.
type capabilities struct {
	stage, expand, multiWriter bool
}

func parseCapabilities(list []*csipb.NodeServiceCapability) capabilities {
	var c capabilities
	for _, item := range list {
		switch item.GetRpc().GetType() {
		case csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
			c.stage = true
		case csipb.NodeServiceCapability_RPC_EXPAND_VOLUME:
			c.expand = true
		case csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			c.multiWriter = true
		default: // of no use here
		}
	}
	return c
}

// connect returns a connection to a unix socket, as kubelet makes it (newGrpcConn in
// csi_client.go). Nothing is sent yet.
func connect(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///plugin",
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithMaxHeaderListSize(maxHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}),
	)
}

// dial finds the driver's node plugin and asks what it can do. An endpoint that is known from
// before and answers no more is looked for anew: the plugin may have come back at another.
func (t *Transport) dial(ctx context.Context, driver string, secrets callSecrets) (*node, error) {
	if socket, known := t.drivers.known(driver); known {
		n, err := t.dialSocket(ctx, driver, socket, secrets)
		if err == nil || ctx.Err() != nil {
			return n, err
		}
		t.drivers.forget(driver, socket)
	}
	socket, err := t.drivers.find(ctx, driver)
	if err != nil {
		return nil, err
	}
	return t.dialSocket(ctx, driver, socket, secrets)
}

func (t *Transport) dialSocket(ctx context.Context, driver, socket string, secrets callSecrets) (*node, error) {
	conn, err := connect(socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %s at %s: %w", transport.ErrUnreachable, driver, socket, err)
	}
	n := &node{driver: driver, conn: conn, client: csipb.NewNodeClient(conn), secrets: secrets, timeout: t.timeout}
	err = n.do(ctx, "NodeGetCapabilities", func(ctx context.Context) error {
		answer, err := n.client.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
		n.can = parseCapabilities(answer.GetCapabilities())
		return err
	})
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *node) close() { _ = n.conn.Close() } // nothing is under way

// do makes one call.
func (n *node) do(ctx context.Context, method string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	if err := call(ctx); err != nil {
		return newCallError(n.driver, method, err, n.secrets.every())
	}
	return nil
}

// accessModes are the modes of the CSI specification for those of Kubernetes, as kubelet has them
// for a plugin that does not know SINGLE_NODE_MULTI_WRITER, and for one that does
// (asCSIAccessModeV1, asSingleNodeMultiWriterCapableCSIAccessModeV1 in csi_client.go).
var accessModes = map[string][2]csipb.VolumeCapability_AccessMode_Mode{
	"":                 {csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	"ReadWriteOncePod": {csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
}

// capability is how the volume is used: by one node, as a raw block device. A volume that was made is
// ReadWriteOnce; one that was there before may be ReadWriteOncePod.
func (n *node) capability(v vol) *csipb.VolumeCapability {
	modes, known := accessModes[v.source.AccessMode]
	if !known {
		modes = accessModes[""] // of a version that took modes for several nodes
	}
	mode := modes[0]
	if n.can.multiWriter {
		mode = modes[1]
	}
	return &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}},
	}
}

func (n *node) stage(ctx context.Context, v vol) error {
	return n.do(ctx, "NodeStageVolume", func(ctx context.Context) error {
		_, err := n.client.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
			VolumeId: v.source.Handle, PublishContext: v.source.Attachment, StagingTargetPath: v.staging,
			VolumeCapability: n.capability(v), Secrets: n.secrets.stage, VolumeContext: v.source.Attributes,
		})
		return err
	})
}

// publish tells of the staging directory always, as kubelet does for block volumes.
func (n *node) publish(ctx context.Context, v vol) error {
	return n.do(ctx, "NodePublishVolume", func(ctx context.Context) error {
		_, err := n.client.NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{
			VolumeId: v.source.Handle, PublishContext: v.source.Attachment, StagingTargetPath: v.staging, TargetPath: v.target,
			VolumeCapability: n.capability(v), Readonly: false, Secrets: n.secrets.publish, VolumeContext: v.source.Attributes,
		})
		return err
	})
}

func (n *node) unpublish(ctx context.Context, v vol) error {
	return n.do(ctx, "NodeUnpublishVolume", func(ctx context.Context) error {
		_, err := n.client.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: v.source.Handle, TargetPath: v.target})
		return err
	})
}

func (n *node) unstage(ctx context.Context, v vol) error {
	return n.do(ctx, "NodeUnstageVolume", func(ctx context.Context) error {
		_, err := n.client.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: v.source.Handle, StagingTargetPath: v.staging})
		return err
	})
}

// expand names the target, which is what kubelet calls the volume path of a block volume, and
// the staging directory only to a plugin that stages (expander.go, NodeExpandVolume in
// csi_client.go).
func (n *node) expand(ctx context.Context, v vol) error {
	req := &csipb.NodeExpandVolumeRequest{
		VolumeId: v.source.Handle, VolumePath: v.target, VolumeCapability: n.capability(v), Secrets: n.secrets.expand,
	}
	if v.source.CapacityBytes > 0 {
		req.CapacityRange = &csipb.CapacityRange{RequiredBytes: v.source.CapacityBytes}
	}
	if n.can.stage {
		req.StagingTargetPath = v.staging
	}
	return n.do(ctx, "NodeExpandVolume", func(ctx context.Context) error {
		_, err := n.client.NodeExpandVolume(ctx, req)
		return err
	})
}

// pluginName asks a socket which CSI driver it is.
func pluginName(ctx context.Context, socket string) (string, error) {
	conn, err := connect(socket)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	answer, err := csipb.NewIdentityClient(conn).GetPluginInfo(ctx, &csipb.GetPluginInfoRequest{})
	return answer.GetName(), err
}

// socketOf is the path of an endpoint as drivers register it: a path on the host, or a URL
// of one.
func socketOf(endpoint, registration string) (string, error) {
	if endpoint == "" {
		return registration, nil // as kubelet takes it (GenerateRegisterPluginFunc)
	}
	return rpc.SocketPath(endpoint)
}
