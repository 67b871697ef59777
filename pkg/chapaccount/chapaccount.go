// Package chapaccount makes the CHAP account for nodes without a key of their own, where nobody
// gives one: a Secret with a random password.
//
// It is made by the leading controller and not by the chart, since a rendering with a
// random value is another one each time, which tools that apply renderings would take for
// a rotation. A Secret that is there is never written, whatever it holds: it may be an
// administrator's (states.md, The account of an admission).
package chapaccount

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Keys of the account, as open-iscsi names them.
const (
	UsernameKey = "node.session.auth.username"
	PasswordKey = "node.session.auth.password"
)

// period is the time between two looks at the Secret, patience how long one may take.
const period, patience = 10 * time.Second, 10 * time.Second

// Maker makes the Secret while it leads.
type Maker struct {
	// Client writes, and reads without a cache.
	Client client.Client
	// Secret names the Secret, Username is the account's name.
	Secret   client.ObjectKey
	Username string
}

var _ manager.LeaderElectionRunnable = (*Maker)(nil)

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Maker) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable: it looks after the Secret until ctx ends.
func (m *Maker) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		limited, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := m.ensure(limited); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "No CHAP account for nodes without a key", "secret", m.Secret)
		}
	}, period)
	return nil
}

// ensure makes the Secret if there is none. Two controllers at once make one.
func (m *Maker) ensure(ctx context.Context) error {
	err := m.Client.Get(ctx, m.Secret, &corev1.Secret{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read Secret %s: %w", m.Secret, err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Secret.Namespace, Name: m.Secret.Name,
			Labels: map[string]string{"app.kubernetes.io/name": "nearflash", "app.kubernetes.io/component": "chap"},
			// Where a release had one of this name before, helm would delete this one.
			Annotations: map[string]string{"helm.sh/resource-policy": "keep"},
		},
		Type: corev1.SecretTypeOpaque,
		// RFC 3720 8.2.1 asks for at least 96 random bits; Text has 128.
		Data: map[string][]byte{UsernameKey: []byte(m.Username), PasswordKey: []byte(rand.Text())},
	}
	if err := m.Client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make Secret %s: %w", m.Secret, err)
	} else if err == nil {
		klog.FromContext(ctx).Info("Made a CHAP account", "secret", m.Secret, "username", m.Username)
	}
	return nil
}
