package csi

import (
	"context"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// defaultNamespace is where claims are made.
	defaultNamespace = "nearflash-origins"
	// defaultPatience is how long a call waits for others; its caller comes back.
	defaultPatience = time.Minute
	// firstPause and lastPause bound the pause between two looks, which doubles.
	firstPause, lastPause = 50 * time.Millisecond, 2 * time.Second
	// listPage is the number of objects asked for at once.
	listPage = 500
)

// Config is what a Backend works with.
type Config struct {
	// Client reads from the API server itself, never from an informer.
	Client client.Client
	// Namespace is where the claims of origins are; "" means nearflash-origins. Nobody else
	// should make pods there.
	Namespace string
	// Driver is the name of this driver, whose classes cannot be an origin.
	Driver string
	// Patience is how long a call waits for the other driver; 0 means a minute. The context
	// may end it earlier.
	Patience time.Duration
}

// Backend is a backend.Backend over volumes of other CSI drivers.
type Backend struct {
	api       client.Client
	namespace string
	driver    string
	patience  time.Duration
	growing   growing
}

var _ backend.Backend = (*Backend)(nil)

// New returns a Backend.
func New(c Config) *Backend {
	if c.Namespace == "" {
		c.Namespace = defaultNamespace
	}
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	return &Backend{api: c.Client, namespace: c.Namespace, driver: c.Driver, patience: c.Patience}
}

// Epoch implements backend.Backend. Claims and attachments are in the same etcd as the
// records: a copy of the one is a copy of the other, and no epoch tells them apart.
func (b *Backend) Epoch(context.Context) (backend.Epoch, error) {
	return backend.Epoch{}, backend.ErrNoEpochs
}

// SwapEpoch implements backend.Backend.
func (b *Backend) SwapEpoch(context.Context, string, string) error { return backend.ErrNoEpochs }

// Capacity implements backend.Backend. It is unlimited: what is left depends on the class and
// the node, and CSIStorageCapacity objects say it only to the scheduler, which does not ask us.
func (b *Backend) Capacity(context.Context) (int64, error) { return math.MaxInt64, nil }

// Check implements backend.Backend: the API server answers, and lets us see the claims.
func (b *Backend) Check(ctx context.Context) error {
	return records.Error("list claims in namespace "+b.namespace,
		b.api.List(ctx, &corev1.PersistentVolumeClaimList{}, client.InNamespace(b.namespace), client.Limit(1)))
}

// wait bounds a call by the backend's patience.
func (b *Backend) wait(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.patience)
}

// pacer spaces the looks of one call.
type pacer struct{ pause time.Duration }

// next waits until the next look. Errors: ErrBusy, with what is waited for, once ctx has ended.
func (p *pacer) next(ctx context.Context, waitingFor string) error {
	p.pause = min(max(2*p.pause, firstPause), lastPause)
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: waiting until %s", volume.ErrBusy, waitingFor)
	case <-time.After(p.pause):
		return nil
	}
}
