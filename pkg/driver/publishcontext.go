package driver

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Keys of the publish_context: what ControllerPublishVolume hands to
// NodeStageVolume through the VolumeAttachment. No secret is among them.
const (
	keyGeneration = "generation"
	keyUID        = "uid"
	keyNode       = "node"
)

// encodePublication returns the publish_context of p.
func encodePublication(p volume.Publication) map[string]string {
	return map[string]string{
		keyGeneration: strconv.FormatInt(p.Fence.Generation, 10),
		keyUID:        p.Fence.UID,
		keyNode:       p.Fence.Node,
		keyPortals:    strings.Join(p.Source.Portals, ","),
		keyIQN:        p.Source.IQN,
		keyLUN:        strconv.Itoa(p.Source.LUN),
	}
}

// decodePublication is the inverse of encodePublication.
func decodePublication(c map[string]string) (volume.Publication, error) {
	for _, key := range []string{keyGeneration, keyUID, keyNode, keyPortals, keyIQN, keyLUN} {
		if c[key] == "" {
			return volume.Publication{}, fmt.Errorf("%w: publish_context has no %q: the volume was not published by this driver's controller", volume.ErrInvalid, key)
		}
	}
	generation, err := strconv.ParseInt(c[keyGeneration], 10, 64)
	if err != nil || generation < 1 {
		return volume.Publication{}, fmt.Errorf("%w: publish_context generation %q is not a positive number", volume.ErrInvalid, c[keyGeneration])
	}
	lun, err := strconv.Atoi(c[keyLUN])
	if err != nil || lun < 0 {
		return volume.Publication{}, fmt.Errorf("%w: publish_context lun %q is not a logical unit number", volume.ErrInvalid, c[keyLUN])
	}
	return volume.Publication{
		Fence:  volume.Fence{UID: c[keyUID], Generation: generation, Node: c[keyNode]},
		Source: volume.ISCSI{Portals: strings.Split(c[keyPortals], ","), IQN: c[keyIQN], LUN: lun},
	}, nil
}
