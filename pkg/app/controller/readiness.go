package controller

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/app/health"
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

// checkStorageServers asks all storage servers at once whether they are well, and says which are
// not. Volumes of others go on, so that this must not end the process.
func checkStorageServers(ctx context.Context, servers map[string]storageServer) {
	ctx, cancel := context.WithTimeout(ctx, health.CheckTimeout)
	defer cancel()
	var all sync.WaitGroup
	for name, server := range servers {
		all.Go(func() {
			if err := preflight.StorageServer(server.address, server.storage.Check(ctx)); err != nil {
				klog.FromContext(ctx).Error(err, "Preflight: a storage server cannot be used", "target", name)
			}
		})
	}
	all.Wait()
}
