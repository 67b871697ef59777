package controller

import (
	"context"
	"fmt"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/app/health"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/preflight"
)

// ready is the readiness of the process: it asks the API server at config for its version, which
// every account may. A storage server that is away has metrics, and is no reason to take the webhook
// of pods out of service, to stop an upgrade of this very process, or to have the server asked by
// whoever asks this.
func ready(config *rest.Config) health.Check {
	return func(ctx context.Context) error {
		d, err := discovery.NewDiscoveryClientForConfig(config)
		if err != nil {
			return err
		}
		if err := d.RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err != nil {
			return fmt.Errorf("API server: %w", err)
		}
		return nil
	}
}

// checkStorageServer asks the storage server, if there is one, whether it is well.
func checkStorageServer(ctx context.Context, address string, storage backend.Backend) error {
	if storage == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, health.CheckTimeout)
	defer cancel()
	return preflight.StorageServer(address, storage.Check(ctx))
}
