package rpc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// socketMode lets the owner and the group of the process connect, nobody else:
// whoever reaches the socket of the node plugin acts as root on the node.
const socketMode = 0o660

// probeTimeout bounds the look whether somebody still listens on a socket. A
// unix socket accepts or refuses at once.
const probeTimeout = time.Second

// SocketPath returns the path of an endpoint "unix:///path" (or "unix:/path", or
// an absolute path), as the CSI specification's CSI_ENDPOINT has it.
func SocketPath(endpoint string) (string, error) {
	path := endpoint
	for _, scheme := range []string{"unix://", "unix:"} {
		if rest, ok := strings.CutPrefix(endpoint, scheme); ok {
			path = rest
			break
		}
	}
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("endpoint %q: accepted is unix:///absolute/path", endpoint)
	}
	return filepath.Clean(path), nil
}

// Listen opens a unix socket at path. A socket that a killed process left is
// replaced; one that answers, and anything that is not a socket, is not.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	var c net.ListenConfig
	l, err := c.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; remove it", path)
	}
	d := net.Dialer{Timeout: probeTimeout}
	if conn, err := d.DialContext(ctx, "unix", path); err == nil {
		return errors.Join(fmt.Errorf("%s is served by another process", path), conn.Close())
	}
	return os.Remove(path)
}
