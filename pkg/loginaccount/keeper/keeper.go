// Package keeper makes and reads the key of the controller, of which the CHAP accounts of nodes are
// derived (states.md, The account of an admission).
package keeper

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// SecretName is the Secret of the controller's key, in the namespace of the controller.
	SecretName = "nearflash-login-key"
	// SecretKey is the key's place in it: 32 bytes in base64, which Kubernetes encodes once more.
	SecretKey = "private-key"
)

// Keeper has the controller's key. It makes it while it leads, as pkg/chapaccount makes the
// account for nodes without a key, and for the same reason; a Secret that is there is never
// written.
type Keeper struct {
	// Client reads without a cache.
	Client client.Client
	// Namespace is that of the Secret.
	Namespace string
}

var _ manager.LeaderElectionRunnable = (*Keeper)(nil)

// Key returns the key as the Secret has it now. Errors: volume.ErrUnavailable.
func (k *Keeper) Key(ctx context.Context) (*keyagreement.Key, error) {
	secret := &corev1.Secret{}
	if err := k.Client.Get(ctx, k.name(), secret); err != nil {
		return nil, fmt.Errorf("%w: the key of which CHAP accounts are derived: %w", volume.ErrUnavailable, err)
	}
	key, err := keyagreement.Parse(string(secret.Data[SecretKey]))
	if err != nil {
		return nil, fmt.Errorf("%w: Secret %s, %s: %w: delete the Secret, and a new one is made", volume.ErrUnavailable, k.name(), SecretKey, err)
	}
	return key, nil
}

func (k *Keeper) name() client.ObjectKey {
	return client.ObjectKey{Namespace: k.Namespace, Name: SecretName}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Keeper) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable: it looks after the Secret until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	kube.KeepSecret(ctx, k.name(), "No key for CHAP accounts, so that no volume of the storage server can be attached", k.ensure)
	return nil
}

// ensure makes the Secret if there is none.
func (k *Keeper) ensure(ctx context.Context) error {
	var key *keyagreement.Key
	made, err := kube.EnsureSecret(ctx, k.Client, k.name(), "login-key", func(secret *corev1.Secret) (err error) {
		if key, err = keyagreement.New(); err != nil {
			return err
		}
		secret.Data = map[string][]byte{SecretKey: []byte(key.Text())}
		return nil
	})
	if made {
		klog.FromContext(ctx).Info("Made a key for CHAP accounts", "secret", k.name(), "publicHalf", key.Public())
	}
	return err
}
