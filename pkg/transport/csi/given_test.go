package csi_test

import (
	"errors"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestSecretOfEachCall: each call gets the secret that the PersistentVolume names for it, and none
// that it does not name.
func TestSecretOfEachCall(t *testing.T) {
	own := map[string]string{"grow": "word-to-grow"}
	const publish, expand = "NodePublishVolume", "NodeExpandVolume"
	for name, tc := range map[string]struct {
		names volume.SecretNames
		wants map[string]map[string]string
		cred  *volume.Credentials
	}{
		"a stage's alone":    {names: volume.SecretNames{Stage: "n/s"}, wants: map[string]map[string]string{publish: nil, expand: nil}},
		"a publication's":    {names: volume.SecretNames{Publish: "n/s"}, wants: map[string]map[string]string{"NodeStageVolume": nil, expand: nil}},
		"the same for all":   {names: volume.SecretNames{Stage: "n/s", Publish: "n/s", Expand: "n/s"}},
		"an expansion's own": {names: volume.SecretNames{Stage: "n/s", Expand: "n/g"}, wants: map[string]map[string]string{publish: nil, expand: own}, cred: &volume.Credentials{Secrets: own}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, all, func(c *origintest.Config, _ *origintest.Files) { c.SecretsOf = tc.wants })
			w.at.CSI.Secrets = &tc.names
			w.mustConnect()
			if err := w.tr.Rescan(t.Context(), w.at, tc.cred); err != nil {
				t.Errorf("rescan: %v", err)
			}
			w.mustDisconnect()
		})
	}
}

// TestSecretIsMissing: what cannot be had is named, and the driver is not asked.
func TestSecretIsMissing(t *testing.T) {
	for name, tc := range map[string]struct {
		names volume.SecretNames
		kind  error
		words []string
	}{
		"for the stage":       {names: volume.SecretNames{Stage: "n/s"}, kind: transport.ErrAuth, words: []string{"n/s", "NodeStageVolume", "node-stage-secret-name"}},
		"for the publication": {names: volume.SecretNames{Publish: "n/p"}, kind: transport.ErrAuth, words: []string{"n/p", "NodePublishVolume"}},
	} {
		w := newWorld(t, all)
		w.at.CSI.Secrets = &tc.names
		w.cred = nil
		_, err := w.connect()
		wantNamed(t, name, err, tc.kind, tc.words)
		if calls := w.d.Calls(); len(calls) > 0 {
			t.Errorf("%s: called %q", name, calls)
		}
	}
	w := newWorld(t, all, func(c *origintest.Config, _ *origintest.Files) {
		c.SecretsOf = map[string]map[string]string{"NodePublishVolume": nil}
	})
	w.at.CSI.Secrets = &volume.SecretNames{Stage: "n/s", Expand: "n/g"}
	w.mustConnect()
	wantNamed(t, "for an expansion", w.tr.Rescan(t.Context(), w.at, nil), transport.ErrAuth, []string{"n/g", "node-expand-secret-name"})
	w.mustDisconnect()
}

func wantNamed(t *testing.T, name string, err, kind error, words []string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: %v", name, err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, without %q", name, err, word)
		}
	}
}

// TestAccessMode: a driver is asked as the kubelet asks it, by the mode of the PersistentVolume.
func TestAccessMode(t *testing.T) {
	for name, tc := range map[string]struct {
		mode string
		can  origintest.Capabilities
		want csipb.VolumeCapability_AccessMode_Mode
	}{
		"one pod":                         {"ReadWriteOncePod", all, csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		"one pod, and a driver of before": {"ReadWriteOncePod", origintest.Capabilities{Stage: true, Expand: true}, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		"one node":                        {"ReadWriteOnce", all, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		"several nodes, of before":        {"ReadWriteMany", all, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tc.can, func(c *origintest.Config, _ *origintest.Files) { c.AccessMode = tc.want })
			w.at.CSI.AccessMode = tc.mode
			w.mustConnect()
			if err := w.tr.Rescan(t.Context(), w.at, nil); err != nil {
				t.Errorf("rescan: %v", err)
			}
			w.mustDisconnect()
		})
	}
}
