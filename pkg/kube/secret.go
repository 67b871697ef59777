package kube

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
)

// secretPeriod is the time between two looks at a Secret, secretPatience how long one may take.
const secretPeriod, secretPatience = 10 * time.Second, 10 * time.Second

// KeepSecret calls ensure until ctx ends. lacking is what is logged when that fails.
func KeepSecret(ctx context.Context, key client.ObjectKey, lacking string, ensure func(context.Context) error) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		limited, cancel := context.WithTimeout(ctx, secretPatience)
		defer cancel()
		if err := ensure(limited); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, lacking, "secret", key)
		}
	}, secretPeriod)
}

// EnsureSecret makes a Secret of the driver's own, of type Opaque, if there is none, and never
// writes one that is there. Two controllers at once make one. c reads without a cache; fill gives
// the Secret its data. made is true of the one that was made here.
func EnsureSecret(ctx context.Context, c client.Client, key client.ObjectKey, component string, fill func(*corev1.Secret) error) (made bool, err error) {
	err = c.Get(ctx, key, &corev1.Secret{})
	if err == nil {
		return false, nil
	}
	if !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read Secret %s: %w", key, err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name,
			Labels: map[string]string{"app.kubernetes.io/name": "nearflash", "app.kubernetes.io/component": component},
		},
		Type: corev1.SecretTypeOpaque,
	}
	if err := fill(secret); err != nil {
		return false, err
	}
	err = c.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("make Secret %s: %w", key, err)
	}
	return true, nil
}
