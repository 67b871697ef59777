package driver

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
)

// The volume condition of NodeGetVolumeStats was an alpha part of the CSI
// specification up to 1.12. Version 1.13 took it out of the Go types and
// reserved its numbers, while kubelet, built against 1.9, still reads it
// (pkg/volume/csi/csi_client.go, nodeSupportsVolumeCondition). So it is written
// by its numbers:
//
//	message NodeGetVolumeStatsResponse { VolumeCondition volume_condition = 2; }
//	message VolumeCondition { bool abnormal = 1; string message = 2; }
const (
	// capabilityVolumeCondition is NodeServiceCapability.RPC.VOLUME_CONDITION.
	capabilityVolumeCondition csi.NodeServiceCapability_RPC_Type = 4

	fieldVolumeCondition   protowire.Number = 2
	fieldConditionAbnormal protowire.Number = 1
	fieldConditionMessage  protowire.Number = 2
)

// setVolumeCondition adds the condition to the response.
func setVolumeCondition(resp *csi.NodeGetVolumeStatsResponse, abnormal bool, message string) {
	var condition []byte
	if abnormal {
		condition = protowire.AppendTag(condition, fieldConditionAbnormal, protowire.VarintType)
		condition = protowire.AppendVarint(condition, protowire.EncodeBool(true))
	}
	condition = protowire.AppendTag(condition, fieldConditionMessage, protowire.BytesType)
	condition = protowire.AppendString(condition, message)
	field := protowire.AppendTag(nil, fieldVolumeCondition, protowire.BytesType)
	resp.ProtoReflect().SetUnknown(protowire.AppendBytes(field, condition))
}
