package driver_test

import (
	"context"
	"encoding/base64"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/testutil/hostile"
	"github.com/nearflash/nearflash/pkg/volume"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

// service is one of the CSI services with its implementation.
type service struct {
	desc grpc.ServiceDesc
	srv  any
}

// onPaper is an attacher that touches no file: requests may name any.
type onPaper struct{ *volumetest.Attacher }

func (onPaper) Publish(context.Context, volume.PublishRequest) error { return nil }

func (onPaper) Unpublish(context.Context, volume.ID, string) error { return nil }

// newServices returns the services of a driver over fakes.
func newServices() []service {
	locks := &keylock.Set{}
	p := volumetest.NewProvisioner(1<<40, "node-1")
	return []service{
		{csi.Identity_ServiceDesc, driver.NewIdentity("test", nil)},
		{csi.Controller_ServiceDesc, driver.NewController(volumetest.NewProvisioner(1<<40, "node-1"), locks)},
		{csi.GroupController_ServiceDesc, driver.NewController(p, locks).WithSnapshots(p).Groups()},
		{csi.Node_ServiceDesc, driver.NewNode(onPaper{volumetest.NewAttacher()}, locks, "node-1", 0)},
	}
}

// method is one call: it gives the driver the request that decode fills.
type method struct {
	name string
	call func(ctx context.Context, decode func(proto.Message) error) error
}

func methods(services []service) []method {
	var out []method
	for _, s := range services {
		for _, m := range s.desc.Methods {
			out = append(out, method{name: m.MethodName, call: func(ctx context.Context, decode func(proto.Message) error) error {
				_, err := m.Handler(s.srv, ctx, func(into any) error { return decode(into.(proto.Message)) }, nil)
				return err
			}})
		}
	}
	return out
}

// badCode reports whether an answer says that the driver does not know what was wrong.
// No request may get that, whatever is in it.
func badCode(err error) bool {
	switch status.Code(err) {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return true
	}
	return false
}

// FuzzRequest: whatever the bytes of a request, no call panics, and none answers
// Internal.
func FuzzRequest(f *testing.F) {
	all := methods(newServices())
	for i, m := range all {
		f.Add(uint8(i), []byte{})
		for _, text := range hostile.Strings() {
			for _, number := range hostile.Numbers() {
				err := m.call(f.Context(), func(req proto.Message) error {
					hostile.Fill(req, text, number, 4)
					data, err := proto.Marshal(req)
					if err == nil {
						f.Add(uint8(i), data)
					}
					proto.Reset(req)
					return nil
				})
				if badCode(err) {
					f.Errorf("%s of nothing: %v", m.name, err)
				}
			}
		}
	}
	for name, req := range sound() {
		for i, m := range all {
			if m.name == name {
				addCuts(f, uint8(i), req)
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		all := methods(newServices())
		m := all[int(which)%len(all)]
		for range 2 { // every call may be repeated
			decoded := true
			err := m.call(t.Context(), func(req proto.Message) error {
				decoded = proto.Unmarshal(data, req) == nil
				return nil
			})
			if decoded && badCode(err) {
				t.Errorf("%s: %v\nrequest in base64: %s", m.name, err, base64.StdEncoding.EncodeToString(data))
			}
		}
	})
}

// sound are requests that are answered, as far as the fakes have what they ask for.
func sound() map[string]proto.Message {
	block := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	return map[string]proto.Message{
		"CreateVolume": &csi.CreateVolumeRequest{
			Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30, LimitBytes: 1 << 31}, VolumeCapabilities: []*csi.VolumeCapability{block},
			Parameters: map[string]string{"cacheMode": "writeback", "cacheSize": "10%", "acceptDirtyLoss": "node-loss", "maxDirtyBytes": "1Gi"},
			Secrets:    map[string]string{"chap.username": "u", "chap.password": "0123456789abcdef"},
		},
		"ControllerPublishVolume":    &csi.ControllerPublishVolumeRequest{VolumeId: "pvc-1", NodeId: "node-1", VolumeCapability: block},
		"ValidateVolumeCapabilities": &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{block}},
		"ControllerExpandVolume":     &csi.ControllerExpandVolumeRequest{VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 31}},
		"ControllerModifyVolume":     &csi.ControllerModifyVolumeRequest{VolumeId: "pvc-1", MutableParameters: map[string]string{"cacheSize": "1Gi"}},
		"NodePublishVolume":          &csi.NodePublishVolumeRequest{VolumeId: "pvc-1", StagingTargetPath: "/s", TargetPath: "/t", VolumeCapability: block},
		"NodeExpandVolume":           &csi.NodeExpandVolumeRequest{VolumeId: "pvc-1", VolumePath: "/s", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 31}},
		"ListVolumes":                &csi.ListVolumesRequest{MaxEntries: 1, StartingToken: "1"},
		"GetCapacity":                &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{block}},
	}
}

// addCuts adds a request, and what is left of it when its end is cut off.
func addCuts(f *testing.F, which uint8, req proto.Message) {
	f.Helper()
	data, err := proto.Marshal(req)
	if err != nil {
		f.Fatal(err)
	}
	for n := range len(data) + 1 {
		f.Add(which, data[:n])
	}
}
