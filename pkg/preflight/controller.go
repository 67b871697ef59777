package preflight

import (
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/volume"
)

// StorageServer says what is wrong with the storage server at address, and what helps, by
// what it answered, one of the errors of backend.Backend's Check; nil if nothing is.
func StorageServer(address string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, volume.ErrAuth):
		return fmt.Errorf("storage server %s: %w; remedy: --target-ca (or its entry of --targets) must have signed the server's certificate, --target-server-name must be in it, and the server must trust the CA of --target-cert and list its name in tls.allowedClientNames", address, err)
	case errors.Is(err, volume.ErrUnavailable):
		return fmt.Errorf("storage server %s: %w; remedy: check the address (--target-address, or its entry of --targets), that nearflash-target runs there, and that no firewall is between", address, err)
	default:
		return fmt.Errorf("storage server %s: %w; remedy: see the log of nearflash-target on that machine", address, err)
	}
}
