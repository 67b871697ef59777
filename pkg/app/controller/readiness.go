package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/app/health"
	"github.com/nearflash/nearflash/pkg/preflight"
)

// readyInterval is the least time between two questions of the API server that probes cause.
const readyInterval = 3 * time.Second

// ready is the readiness of the process: it asks the API server at config for its version, which
// every account may, at most once in every for all who ask. A storage server that is away has
// metrics, and is no reason to take the webhook of pods out of service, to stop an upgrade of this
// very process, or to have the server asked by whoever asks this.
func ready(ctx context.Context, config *rest.Config, every time.Duration) (health.Check, error) {
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("readiness: %w", err)
	}
	return health.Shared(ctx, every, func(ctx context.Context) error {
		if err := d.RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error(); err != nil {
			return fmt.Errorf("API server: %w", err)
		}
		return nil
	}), nil
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
