package controller

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/app/health"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/preflight"
)

// readiness reports whether what the controller needs can be reached.
type readiness struct {
	api     *rest.Config
	storage backend.Backend
	address string
	// optional leaves the storage server out.
	optional bool
}

// apiServer asks the API server for its version, which every account may.
func (r *readiness) apiServer(ctx context.Context) error {
	d, err := discovery.NewDiscoveryClientForConfig(r.api)
	if err != nil {
		return err
	}
	if err := d.RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	return nil
}

// storageServer asks the storage server, if there is one, whether it is well.
func (r *readiness) storageServer(ctx context.Context) error {
	if r.storage == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, health.CheckTimeout)
	defer cancel()
	return preflight.StorageServer(ctx, r.address, r.storage)
}

// check is the readiness of the process.
func (r *readiness) check(ctx context.Context) error {
	err := r.apiServer(ctx)
	if !r.optional {
		err = errors.Join(err, r.storageServer(ctx))
	}
	return err
}
