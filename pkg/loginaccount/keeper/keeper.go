// Package keeper makes and reads the key of the controller, of which the CHAP accounts of nodes are
// derived (states.md, The account of an admission).
package keeper

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// SecretName is the Secret of the controller's key, in the namespace of the controller.
	SecretName = "nearflash-login-key"
	// SecretKey is the key's place in it: 32 bytes in base64, which Kubernetes encodes once more.
	SecretKey = "private-key"
)

// period is the time between two looks at the Secret, patience how long one may take.
const period, patience = 10 * time.Second, 10 * time.Second

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
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		limited, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := k.ensure(limited); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "No key for CHAP accounts, so that no volume of the storage server can be attached", "secret", k.name())
		}
	}, period)
	return nil
}

// ensure makes the Secret if there is none. Two controllers at once make one.
func (k *Keeper) ensure(ctx context.Context) error {
	err := k.Client.Get(ctx, k.name(), &corev1.Secret{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read Secret %s: %w", k.name(), err)
	}
	key, err := keyagreement.New()
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: SecretName,
			Labels: map[string]string{"app.kubernetes.io/name": "nearflash", "app.kubernetes.io/component": "login-key"},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{SecretKey: []byte(key.Text())},
	}
	if err := k.Client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make Secret %s: %w", k.name(), err)
	} else if err == nil {
		klog.FromContext(ctx).Info("Made a key for CHAP accounts", "secret", k.name(), "publicHalf", key.Public())
	}
	return nil
}
