package preflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// StorageServer makes sure that the storage server at address answers, accepts
// the controller's certificate and is healthy. The error says what is wrong and
// what helps.
func StorageServer(ctx context.Context, address string, b backend.Backend) error {
	err := b.Check(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, volume.ErrAuth):
		return fmt.Errorf("storage server %s: %w; remedy: --target-ca must have signed the server's certificate, --target-server-name must be in it, and the server must trust the CA of --target-cert and list its name in tls.allowedClientNames", address, err)
	case errors.Is(err, volume.ErrUnavailable):
		return fmt.Errorf("storage server %s: %w; remedy: check --target-address, that nearflash-target runs there, and that no firewall is between", address, err)
	default:
		return fmt.Errorf("storage server %s: %w; remedy: see the log of nearflash-target on that machine", address, err)
	}
}
