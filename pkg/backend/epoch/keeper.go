package epoch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ReasonRefused is the reason of the Warning event that the storage server does not take
// this cluster's orders.
const ReasonRefused = "StorageServerRefused"

const (
	// swapInterval is how old an epoch becomes while a controller leads: a copy of etcd
	// that is older than that is refused.
	swapInterval = 10 * time.Minute
	// pollInterval is how often who leads compares the record with what it left there: it
	// may have been set back, or a consent may be there.
	pollInterval = 10 * time.Second
	// maxSteps bounds one swap: with its own steps and those of some others it takes a dozen.
	maxSteps = 40
)

// Config is what a Keeper works with.
type Config struct {
	// Client reads from the API server itself, never from an informer.
	Client client.Client
	// Namespace is that of the controller; the record is kept there.
	Namespace string
	Storage   backend.Backend
	// Name is that of the storage server in the controller's configuration, and Names tells which
	// others there are; nil is none.
	Name   string
	Names  *Names
	Events events.EventRecorder
	// Clock is for pauses and time stamps; nil means the wall clock.
	Clock clock.Clock
}

// Keeper is a backend.Backend whose orders carry the epoch of this cluster. It sends
// none before this process has put an epoch on the server that nobody can have copied.
type Keeper struct {
	backend.Backend

	client    client.Client
	namespace string
	name      string
	names     *Names
	events    events.EventRecorder
	clock     clock.Clock

	// turn is held by who swaps.
	turn chan struct{}
	// server is the server's own name once this process has put an epoch on it, mine is
	// the last one, and swapped when that was. They are guarded by turn.
	server, mine string
	swapped      time.Time
}

var _ backend.Backend = (*Keeper)(nil)

// New returns a Keeper.
func New(c Config) *Keeper {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return &Keeper{
		Backend: c.Storage, client: c.Client, namespace: c.Namespace, name: c.Name, names: c.Names, events: c.Events, clock: c.Clock,
		turn: make(chan struct{}, 1),
	}
}

// RefusedError says that the storage server does not take this cluster's orders. It
// matches volume.ErrFenced.
type RefusedError struct {
	// Server is the server's own name.
	Server string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%v: storage server %s is used under an epoch that this cluster does not know: another cluster uses it, or the records of this one come from a backup. Nothing is attached, detached, made or deleted on it until an administrator decides which cluster it belongs to: kubectl nearflash takeover",
		volume.ErrFenced, e.Server)
}

// Unwrap makes errors.Is(err, volume.ErrFenced) true.
func (e *RefusedError) Unwrap() error { return volume.ErrFenced }

// Start implements manager.Runnable: a new leader swaps the epoch, and again every ten
// minutes. It is run by the leader alone, and ends with ctx.
func (k *Keeper) Start(ctx context.Context) error {
	act := k.swap
	for {
		switch err := k.exclusively(ctx, act); {
		case err == nil:
			act = k.poll
		case ctx.Err() == nil:
			klog.FromContext(ctx).Error(err, "The epoch of the storage server was not swapped", "target", k.name, "again", pollInterval.String())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.clock.After(pollInterval):
		}
	}
}

// poll swaps if it is time, or if the record is not as this process has left it.
func (k *Keeper) poll(ctx context.Context) error {
	if k.server == "" || k.clock.Since(k.swapped) >= swapInterval {
		return k.swap(ctx)
	}
	obj, err := k.load(ctx)
	if err != nil {
		return err
	}
	if rec, err := Decode(obj, k.server); err == nil && rec == (Record{Current: k.mine, TakenOver: rec.TakenOver}) {
		return nil
	}
	return k.swap(ctx)
}

// Swap puts an epoch on the server that this process draws now. A server that knows no
// epochs is left as it is.
// Errors: *RefusedError, and those of backend.Backend.
func (k *Keeper) Swap(ctx context.Context) error { return k.exclusively(ctx, k.swap) }

// TakenOver returns the last takeover of the storage server, "" if there was none: what a
// record of a volume says that was not compared with the server since may be of before a
// restore of etcd. Also a cluster that is refused may ask. Errors: those of
// backend.Backend.
func (k *Keeper) TakenOver(ctx context.Context) (string, error) {
	e, err := k.Epoch(ctx)
	if errors.Is(err, backend.ErrNoEpochs) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("epoch of the storage server: %w", err)
	}
	obj, err := k.load(ctx)
	if err != nil {
		return "", err
	}
	rec, err := Decode(obj, e.Server)
	if err != nil {
		return "", fmt.Errorf("%w: %w", volume.ErrBackend, err)
	}
	return rec.lastTakeover(), nil
}

// begin swaps, unless this process has done so, and returns the server's own name, ""
// for one that knows no epochs.
func (k *Keeper) begin(ctx context.Context) (server string, err error) {
	err = k.exclusively(ctx, func(ctx context.Context) error {
		if k.server == "" {
			if err := k.swap(ctx); err != nil {
				return err
			}
		}
		server = k.server
		return nil
	})
	return server, err
}

func (k *Keeper) exclusively(ctx context.Context, act func(context.Context) error) error {
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: waiting for the epoch of the storage server: %w", volume.ErrUnavailable, ctx.Err())
	}
	defer func() { <-k.turn }()
	return act(ctx)
}

// swap takes steps until one of this process' own epochs has been on the server.
func (k *Keeper) swap(ctx context.Context) error {
	drawn := false
	for range maxSteps {
		e, err := k.Epoch(ctx)
		if errors.Is(err, backend.ErrNoEpochs) {
			return nil // it may be replaced by one that knows them
		}
		if err != nil {
			return fmt.Errorf("epoch of the storage server: %w", err)
		}
		if err := k.names.claim(k.name, e.Server); err != nil {
			return err
		}
		obj, err := k.load(ctx)
		if err != nil {
			return err
		}
		rec, err := Decode(obj, e.Server)
		if err != nil {
			return fmt.Errorf("%w: %w", volume.ErrBackend, err)
		}
		switch next := decide(e.Value, rec, drawn); next {
		case stepDone:
			k.server, k.mine, k.swapped = e.Server, e.Value, k.clock.Now()
			klog.FromContext(ctx).V(2).Info("Swapped the epoch of the storage server", "target", k.name, "server", e.Server)
			return nil
		case stepRefused:
			return errors.Join(&RefusedError{Server: e.Server}, k.record(ctx, obj, e, rec))
		case stepSwap:
			// That another one is there meanwhile shows in the next round.
			var other *backend.EpochError
			if err := k.SwapEpoch(ctx, e.Value, rec.Pending); err != nil && !errors.As(err, &other) {
				return fmt.Errorf("swap the epoch of storage server %s: %w", e.Server, err)
			}
		case stepDraw, stepConfirm:
			if next == stepDraw {
				rec.Pending = rand.Text()
			} else {
				rec = Record{Current: e.Value, TakenOver: rec.lastTakeover()}
			}
			err := k.save(ctx, obj, e.Server, rec)
			if err != nil && !errors.Is(err, errConflict) {
				return err
			}
			drawn = drawn || err == nil && next == stepDraw
		}
	}
	return errRace()
}

func errRace() error {
	return fmt.Errorf("%w: others swap the epoch of the storage server all the time", volume.ErrBusy)
}

// record records that the server has another epoch, once for each, and says so.
func (k *Keeper) record(ctx context.Context, obj *corev1.ConfigMap, e backend.Epoch, rec Record) error {
	if rec.Refused != nil && rec.Refused.Epoch == e.Value && rec.Takeover == nil {
		return nil
	}
	// A consent to replace another epoch is used up.
	rec.Refused, rec.Takeover = &Refusal{Epoch: e.Value, Since: metav1.NewTime(k.clock.Now())}, nil
	err := k.save(ctx, obj, e.Server, rec)
	if errors.Is(err, errConflict) {
		return nil // it is met again
	}
	if err == nil && k.events != nil {
		k.events.Eventf(obj, nil, corev1.EventTypeWarning, ReasonRefused, "Swap", "%s", (&RefusedError{Server: e.Server}).Error())
	}
	return err
}
