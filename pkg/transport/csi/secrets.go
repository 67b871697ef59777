package csi

import (
	"fmt"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// callSecrets are the secrets of each call.
type callSecrets struct{ stage, publish, expand map[string]string }

// every has the values of all calls: a driver may say in an error what another call gave it.
func (s callSecrets) every() map[string]string {
	out := map[string]string{}
	for call, one := range map[string]map[string]string{"stage": s.stage, "publish": s.publish, "expand": s.expand} {
		for k, v := range one {
			out[call+"/"+k] = v
		}
	}
	return out
}

// toConnect shares out what the volume's stage was given: the kubelet gives each call the secret
// that the PersistentVolume names for it, and none to a call for which it names none. A
// PersistentVolume without any names leaves it to whoever made the class: each call gets it.
// One that names two gets the one for both, as versions gave it that admitted such a volume.
// Errors: ErrAuth if a secret is missing.
func toConnect(v vol, given map[string]string) (callSecrets, error) {
	names := v.source.Secrets
	if names == nil {
		return callSecrets{stage: given, publish: given}, nil
	}
	var s callSecrets
	switch {
	case names.Stage != "" && len(given) == 0:
		return s, noSecret(v, "NodeStageVolume", names.Stage, "node-stage-secret-name")
	case names.Publish != "" && len(given) == 0:
		return s, noSecret(v, "NodePublishVolume", names.Publish, "node-stage-secret-name")
	}
	if names.Stage != "" {
		s.stage = given
	}
	if names.Publish != "" {
		s.publish = given
	}
	return s, nil
}

// toExpand is what an expansion gives: its own secrets, or what the stage was given if the
// PersistentVolume has the same one for both, or names none at all.
func toExpand(v vol, staged map[string]string, cred *volume.Credentials) callSecrets {
	names := v.source.Secrets
	switch {
	case cred != nil:
		return callSecrets{stage: staged, expand: cred.Secrets}
	case names == nil || names.Expand != "" && (names.Expand == names.Stage || names.Expand == names.Publish):
		return callSecrets{expand: staged}
	}
	return callSecrets{stage: staged}
}

// noSecret says which secret a call needs, and where it is to be named.
func noSecret(v vol, call, secret, key string) error {
	return fmt.Errorf("%w: PersistentVolume %s names secret %s for %s, and this node was given none: name it in nearflash's StorageClass or PersistentVolume (csi.storage.k8s.io/%s), for the kubelet to hand it on; to a plugin that was restarted it does so with the next call for the volume",
		transport.ErrAuth, v.source.PV, secret, call, key)
}
