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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/nearflash/nearflash/pkg/kube"
)

// Keys of the account, as open-iscsi names them.
const (
	UsernameKey = "node.session.auth.username"
	PasswordKey = "node.session.auth.password"
)

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
	kube.KeepSecret(ctx, m.Secret, "No CHAP account for nodes without a key", m.ensure)
	return nil
}

// ensure makes the Secret if there is none.
func (m *Maker) ensure(ctx context.Context) error {
	made, err := kube.EnsureSecret(ctx, m.Client, m.Secret, "chap", func(secret *corev1.Secret) error {
		// Where a release had one of this name before, helm would delete this one.
		secret.Annotations = map[string]string{"helm.sh/resource-policy": "keep"}
		// RFC 3720 8.2.1 asks for at least 96 random bits; Text has 128.
		secret.Data = map[string][]byte{UsernameKey: []byte(m.Username), PasswordKey: []byte(rand.Text())}
		return nil
	})
	if made {
		klog.FromContext(ctx).Info("Made a CHAP account", "secret", m.Secret, "username", m.Username)
	}
	return err
}
