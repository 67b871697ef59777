package origintest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// breaches notes what a call does that it must not.
type breaches struct {
	method string
	s      *state
}

// add notes a breach, and is what is answered. Values of secrets are never among args.
func (b breaches) add(code codes.Code, format string, args ...any) error {
	text := b.method + ": " + fmt.Sprintf(format, args...)
	b.s.Breaches = append(b.s.Breaches, text)
	return status.Error(code, text)
}

// do is one call.
func (d *Driver) do(method string, f func(*state, breaches) error) error {
	return d.store.do(func(s *state) error { return f(s, breaches{method: method, s: s}) })
}

func find(s *state, handle string) (*vol, error) {
	v := s.Volumes[handle]
	if v == nil {
		return nil, status.Errorf(codes.NotFound, "no volume %q", handle)
	}
	return v, nil
}

// capability is the one that the driver must be asked for.
func (d *Driver) capability() *csipb.VolumeCapability {
	mode := csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	if d.c.Capabilities.MultiWriter {
		mode = csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	if d.c.AccessMode != csipb.VolumeCapability_AccessMode_UNKNOWN {
		mode = d.c.AccessMode
	}
	return &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}},
	}
}

// checkCapability wants a raw block volume for one writer: with SINGLE_NODE_MULTI_WRITER
// announced, a caller that means ReadWriteOnce must say that.
func (d *Driver) checkCapability(b breaches, c *csipb.VolumeCapability) error {
	want := d.capability().GetAccessMode().GetMode()
	switch {
	case c == nil:
		return b.add(codes.InvalidArgument, "no volume_capability")
	case c.GetAccessMode() == nil:
		return b.add(codes.InvalidArgument, "no access mode")
	case c.GetAccessMode().GetMode() != want:
		return b.add(codes.InvalidArgument, "access mode %s, not %s", c.GetAccessMode().GetMode(), want)
	case c.GetBlock() == nil:
		return b.add(codes.InvalidArgument, "no access type block")
	}
	return nil
}

// nodeCall is what stage, publish and expand have in common.
type nodeCall struct {
	publish, context, secrets map[string]string
	capability                *csipb.VolumeCapability
}

// checkUse refuses a volume that is not attached here, and what is not as it was given.
func (d *Driver) checkUse(b breaches, v *vol, c nodeCall) error {
	secrets, special := d.c.SecretsOf[b.method]
	if !special {
		secrets = d.c.Secrets
	}
	switch {
	case d.c.Capabilities.Attach && v.Attached != d.c.Node:
		return b.add(codes.FailedPrecondition, "the volume is attached to %q, not to %s", v.Attached, d.c.Node)
	case !maps.Equal(c.publish, v.Publish):
		return b.add(codes.InvalidArgument, "publish_context %v, not %v", c.publish, v.Publish)
	case !maps.Equal(c.context, v.Context):
		return b.add(codes.InvalidArgument, "volume_context %v, not %v", c.context, v.Context)
	case !maps.Equal(c.secrets, secrets):
		return b.add(codes.Unauthenticated, "%d secrets, not those %d that are needed", len(c.secrets), len(secrets))
	}
	return d.checkCapability(b, c.capability)
}

// checkPath wants a path that node plugins mount from the host.
func (d *Driver) checkPath(b breaches, what, path string) error {
	within := filepath.Join(d.c.Kubelet, "plugins/kubernetes.io/csi") + "/"
	switch {
	case path == "":
		return b.add(codes.InvalidArgument, "no %s", what)
	case filepath.Clean(path) != path || !strings.HasPrefix(path, within):
		return b.add(codes.InvalidArgument, "%s %s is not below %s", what, path, within)
	}
	return nil
}

// checkDir wants a directory that the caller has made, and nobody but root and its group reads.
func (d *Driver) checkDir(b breaches, what, path string) error {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return b.add(codes.FailedPrecondition, "%s %s is no directory: %v", what, path, err)
	}
	if info.Mode().Perm()&^0o750 != 0 {
		return b.add(codes.FailedPrecondition, "%s %s has mode %s", what, path, info.Mode())
	}
	return nil
}
