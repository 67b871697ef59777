package target_test

import (
	"context"
	"encoding/base64"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/lvol/lvoltest"
	"github.com/nearflash/nearflash/pkg/target/targetpb"
	"github.com/nearflash/nearflash/pkg/testutil/hostile"
)

// invoke gives one call of the storage server the request that decode fills.
func invoke(ctx context.Context, srv targetpb.TargetServer, which int, decode func(proto.Message) error) (name string, err error) {
	m := targetpb.Target_ServiceDesc.Methods[which%len(targetpb.Target_ServiceDesc.Methods)]
	_, err = m.Handler(srv, ctx, func(into any) error { return decode(into.(proto.Message)) }, nil)
	return m.MethodName, err
}

// soundRequests are what the controller sends.
func soundRequests() map[string]proto.Message {
	return map[string]proto.Message{
		"CreateVolume": &targetpb.CreateVolumeRequest{Name: "pvc-1", SizeBytes: 8 * mib, Provisioning: targetpb.Provisioning_PROVISIONING_THIN},
		"DeleteVolume": &targetpb.DeleteVolumeRequest{Name: "pvc-1"},
		"ExpandVolume": &targetpb.ExpandVolumeRequest{Name: "pvc-1", SizeBytes: 16 * mib},
		"GetVolume":    &targetpb.GetVolumeRequest{Name: "pvc-1"},
		"ListVolumes":  &targetpb.ListVolumesRequest{},
		"ExportVolume": &targetpb.ExportVolumeRequest{
			Name: "pvc-1", InitiatorIqn: nodeA, ChapUsername: "user", ChapPassword: "0123456789abcdef", Generation: 1,
		},
		"UnexportVolume": &targetpb.UnexportVolumeRequest{Name: "pvc-1", InitiatorIqn: nodeA},
	}
}

func marshal(f *testing.F, m proto.Message) []byte {
	f.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// FuzzRequest: whatever the bytes of a request, no call of the storage server panics,
// none answers Internal, and nothing is made whose name is not a volume's.
func FuzzRequest(f *testing.F) {
	for i, m := range targetpb.Target_ServiceDesc.Methods {
		f.Add(uint8(i), []byte{})
		if req, ok := soundRequests()[m.MethodName]; ok {
			data := marshal(f, req)
			for n := range len(data) + 1 {
				f.Add(uint8(i), data[:n])
			}
			for _, text := range hostile.Strings() {
				for _, number := range []int64{0, -1, 1<<63 - 1} {
					req = proto.Clone(req)
					hostile.Fill(req, text, number, 4)
					f.Add(uint8(i), marshal(f, req))
					if name := req.ProtoReflect().Descriptor().Fields().ByName("name"); name != nil {
						req.ProtoReflect().Set(name, protoreflect.ValueOfString("pvc-1"))
						f.Add(uint8(i), marshal(f, req))
					}
				}
			}
		}
	}
	names := regexp.MustCompile(`^(nf-[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?|` + lvoltest.Pool + `)$`)
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		svc, m := started(t)
		srv := target.NewServer(svc, "test")
		if _, err := svc.CreateVolume(t.Context(), "pvc-1", 8*mib, target.Thin); err != nil {
			t.Fatal(err)
		}
		for range 2 { // every call may be repeated
			decoded := true
			name, err := invoke(t.Context(), srv, int(which), func(req proto.Message) error {
				decoded = proto.Unmarshal(data, req) == nil
				return nil
			})
			if code := status.Code(err); decoded && (code == codes.Internal || code == codes.Unknown) {
				t.Errorf("%s: %v\nrequest in base64: %s", name, err, base64.StdEncoding.EncodeToString(data))
			}
		}
		for _, name := range m.lvm.Names() {
			if name = name[strings.LastIndexByte(name, '/')+1:]; !names.MatchString(name) {
				t.Errorf("logical volume %q was made", name)
			}
		}
	})
}
