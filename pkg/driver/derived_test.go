package driver

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/loginaccount"
	"github.com/nearflash/nearflash/pkg/volume"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

// heard keeps the credentials that an attacher is given.
type heard struct {
	*volumetest.Attacher
	announced, staged *volume.Credentials
}

func (h *heard) Announce(req volume.StageRequest) {
	h.announced = req.Credentials
	h.Attacher.Announce(req)
}

func (h *heard) Stage(ctx context.Context, req volume.StageRequest) error {
	h.staged = req.Credentials
	return h.Attacher.Stage(ctx, req)
}

// names are those of the accounts to try, in their order.
func names(c *volume.Credentials) []string {
	var out []string
	for ; c != nil; c = c.Previous {
		out = append(out, c.Username)
	}
	return out
}

// TestDerivedAccount: what the node tries, by versions of both sides; the first one is what the
// controller derives (states.md, The account of an admission). What is prestaged has the same.
func TestDerivedAccount(t *testing.T) {
	controller, errController := keyagreement.New()
	own, errOwn := keyagreement.New()
	if errController != nil || errOwn != nil {
		t.Fatal(errController, errOwn)
	}
	fence := volume.Fence{UID: "u", Generation: 3, Node: "node-1"}
	want, err := loginaccount.ForNode(controller, own.Public(), loginaccount.Admission{Volume: "v", Fence: fence})
	if err != nil {
		t.Fatal(err)
	}
	lun := volume.Source{ISCSI: volume.ISCSI{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.io.example:v"}}
	other := volume.Source{CSI: &volume.CSISource{Driver: "d.example", Handle: "h", PV: "pv", Admission: "a"}}
	secret := map[string]string{"chap.username": "u", "chap.password": "secret", "chap.previous.username": "old", "chap.previous.password": "secret-before"}
	tests := map[string]struct {
		key     *keyagreement.Key
		login   string
		source  volume.Source
		secrets map[string]string
		want    []string
		code    codes.Code
	}{
		"both have keys":                    {key: own, login: controller.Public(), source: lun, want: []string{want.Username}},
		"both have keys, and a Secret":      {key: own, login: controller.Public(), source: lun, secrets: secret, want: []string{want.Username, "u", "old"}},
		"a controller of before":            {key: own, source: lun, secrets: secret, want: []string{"u", "old"}},
		"a controller of before, no Secret": {key: own, source: lun},
		"a node plugin of before":           {login: controller.Public(), source: lun, secrets: secret, want: []string{"u", "old"}},
		"no half":                           {key: own, login: "no key", source: lun, secrets: secret, code: codes.InvalidArgument},
		"another driver's volume":           {key: own, source: other, secrets: map[string]string{"userID": "admin"}, want: []string{""}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := &heard{Attacher: volumetest.NewAttacher()}
			node := NewNode(a, &keylock.Set{}, "node-1", 0).WithLoginKey(tc.key)
			_, err := node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
				VolumeId: "v", StagingTargetPath: "/staging", Secrets: tc.secrets,
				PublishContext: encodePublication(volume.Publication{Fence: fence, Source: tc.source, LoginKey: tc.login}),
				VolumeCapability: &csi.VolumeCapability{
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
					AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
				},
			})
			if status.Code(err) != tc.code {
				t.Fatalf("got %v, want %v", err, tc.code)
			}
			got := names(a.staged)
			if len(got) != len(tc.want) {
				t.Fatalf("tries %v, want %v", got, tc.want)
			}
			for i := range got {
				if got[i] != tc.want[i] {
					t.Errorf("tries %v, want %v", got, tc.want)
				}
			}
			if len(got) > 0 && got[0] == want.Username && a.staged.Password != want.Password {
				t.Error("the node derives another password than the controller")
			}
			if a.announced != a.staged {
				t.Error("what is announced has another account than what is staged")
			}
		})
	}
}
