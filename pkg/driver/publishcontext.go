package driver

import (
	"encoding/json"
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
	// keyOrigin has, as JSON, the volume of another driver that lies below; then there is no LUN.
	keyOrigin = "origin"
	// keyLogin has the controller's public half; it is absent if the account is a Secret's.
	keyLogin = "loginKey"
)

// encodePublication returns the publish_context of p.
func encodePublication(p volume.Publication) map[string]string {
	c := map[string]string{
		keyGeneration: strconv.FormatInt(p.Fence.Generation, 10),
		keyUID:        p.Fence.UID,
		keyNode:       p.Fence.Node,
	}
	if p.Source.CSI != nil {
		source, _ := json.Marshal(p.Source.CSI) // strings and numbers never fail
		c[keyOrigin] = string(source)
		return c
	}
	if p.LoginKey != "" {
		c[keyLogin] = p.LoginKey
	}
	c[keyPortals], c[keyIQN], c[keyLUN] = strings.Join(p.Source.Portals, ","), p.Source.IQN, strconv.Itoa(p.Source.LUN)
	return c
}

// decodePublication is the inverse of encodePublication.
func decodePublication(c map[string]string) (volume.Publication, error) {
	keys := []string{keyGeneration, keyUID, keyNode, keyPortals, keyIQN, keyLUN}
	_, other := c[keyOrigin]
	if other {
		keys = keys[:3]
	}
	for _, key := range keys {
		if c[key] == "" {
			return volume.Publication{}, fmt.Errorf("%w: publish_context has no %q: the volume was not published by this driver's controller", volume.ErrInvalid, key)
		}
	}
	generation, err := strconv.ParseInt(c[keyGeneration], 10, 64)
	if err != nil || generation < 1 {
		return volume.Publication{}, fmt.Errorf("%w: publish_context generation %q is not a positive number", volume.ErrInvalid, c[keyGeneration])
	}
	p := volume.Publication{Fence: volume.Fence{UID: c[keyUID], Generation: generation, Node: c[keyNode]}, LoginKey: c[keyLogin]}
	if other {
		p.Source.CSI, err = decodeOrigin(c[keyOrigin])
		return p, err
	}
	lun, err := strconv.Atoi(c[keyLUN])
	if err != nil || lun < 0 {
		return volume.Publication{}, fmt.Errorf("%w: publish_context lun %q is not a logical unit number", volume.ErrInvalid, c[keyLUN])
	}
	p.Source.ISCSI = volume.ISCSI{Portals: strings.Split(c[keyPortals], ","), IQN: c[keyIQN], LUN: lun}
	return p, nil
}

// decodeOrigin reads what is said of another driver's volume.
func decodeOrigin(text string) (*volume.CSISource, error) {
	source := &volume.CSISource{}
	if err := json.Unmarshal([]byte(text), source); err != nil {
		return nil, fmt.Errorf("%w: publish_context %s: %w", volume.ErrInvalid, keyOrigin, err)
	}
	if source.Driver == "" || source.Handle == "" || source.PV == "" || source.Admission == "" {
		return nil, fmt.Errorf("%w: publish_context %s names no driver, volume, PersistentVolume or admission", volume.ErrInvalid, keyOrigin)
	}
	return source, nil
}
