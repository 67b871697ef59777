package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

// mutableParameters are the accepted keys of a VolumeAttributesClass.
var mutableParameters = []string{
	keyCacheMode, keyCacheSize, keyAcceptDirtyLoss, keyRedundancy, keyMaxDirtyBytes, keyMaxDirtyAge,
	keyWarmStart, keyWarmStartMethod, keyWarmStartBandwidth, keyWarmStartDeadline, keyPreload,
}

// change is what a VolumeAttributesClass asks for. What is empty stays as it is.
type change struct {
	// Mode is as a user writes it (volume.ModeName).
	Mode  string
	Cache volume.Size
	// Loss is acceptDirtyLoss.
	Loss string
	// Redundancy is none or mirror.
	Redundancy string
	// DirtyLimit is as limit was written, which also tells what was given.
	DirtyLimit volume.DirtyLimit
	limit      limitText
	Warm       volume.WarmStart
	// warm is Warm as it was written.
	warm warmText
}

// parseChange reads the parameters of a VolumeAttributesClass. What contradicts the
// volume is found by apply.
func parseChange(params map[string]string) (change, error) {
	p := &problems{what: "mutable parameter"}
	p.unknown(params, mutableParameters)
	c := change{
		Mode:       p.oneOf(keyCacheMode, params[keyCacheMode], "", modeNames...),
		Loss:       p.oneOf(keyAcceptDirtyLoss, params[keyAcceptDirtyLoss], "", dirtyLosses...),
		Redundancy: parseRedundancy(p, params[keyRedundancy]),
		limit:      limitTextOf(params), warm: warmTextOf(params),
	}
	c.DirtyLimit = c.limit.parse(p)
	c.Warm = c.warm.parse(p)
	if value := params[keyCacheSize]; value != "" {
		size, err := quantity.Size(value)
		if err != nil {
			p.addErr(keyCacheSize, err)
		}
		c.Cache = size
	}
	return c, p.err()
}

// apply returns the spec that a volume has after the change. Applied again it
// changes nothing. Errors: ErrInvalid for what contradicts itself then.
func (c change) apply(now volume.Spec) (volume.Spec, error) {
	if c == (change{}) {
		return now, nil
	}
	out := now
	if c.Mode != "" {
		out.SetMode(c.Mode)
	}
	if !c.Cache.IsZero() {
		out.Cache = c.Cache
	}
	if out.Cache.IsZero() && out.Mode != volume.ModeNone {
		out.Cache = volume.Size{Percent: defaultCachePercent}
	}
	if c.Redundancy != "" {
		out.Mirror = c.Redundancy == redundancyMirror
	}
	out.DirtyLimit = c.limit.over(out.DirtyLimit, c.DirtyLimit)
	out.WarmStart = c.warm.over(out.WarmStart, c.Warm)
	switch {
	case c.Loss != "":
		out.AcceptNodeLoss = c.Loss != dirtyLossNone
	case c.Mode != "" && (out.Mode != volume.ModeWriteback || now.Unsafe && !out.Unsafe):
		// The consent was given to the mode that is left. Who wants that mode back
		// consents anew.
		out.AcceptNodeLoss = false
	}
	return out, c.check(now, out)
}

// check judges the spec that the change would lead to.
func (c change) check(now, out volume.Spec) error {
	p := &problems{what: "mutable parameter"}
	checkLoss(p, out, c.Loss, c.consent(now, out))
	if out.Mode == volume.ModeNone && c.Redundancy == redundancyMirror {
		p.add(keyRedundancy, "%q contradicts cacheMode none, which has no cache; leave redundancy out, or give a cacheMode of %s or %s",
			c.Redundancy, volume.ModeWritethrough, volume.ModeWriteback)
	}
	if out.Mode == volume.ModeNone && !c.Cache.IsZero() {
		p.add(keyCacheSize, "%q contradicts cacheMode none, which has no cache; leave cacheSize out, or give a cacheMode of %s or %s",
			c.Cache, volume.ModeWritethrough, volume.ModeWriteback)
	}
	if !c.Cache.IsZero() && aboveMaxCache(out) {
		p.add(keyCacheSize, "%q is more than the volume's maxCacheSize of %d bytes; accepted are at most that, or a percentage of the volume, which is cut down to it",
			c.Cache, out.MaxCacheBytes)
	}
	if out.Mode != volume.ModeNone && checkGeometry(out) != nil {
		cache := out.CacheBytes(out.CapacityBytes)
		p.add(keyCacheSize, "%q gives a cache of %d bytes, which is %d blocks of the volume's chunkSize %d, which cannot be changed; accepted are 1 to %d blocks",
			out.Cache, cache, cache/out.ChunkBytes, out.ChunkBytes, maxBlocks)
	}
	c.limit.check(p, out.Mode)
	c.limit.checkChunk(p, out)
	c.warm.check(p, out.Mode, out.WarmStart)
	return p.err()
}

// consent is the loss that is accepted once the volume is as out: what was given, or what it has.
func (c change) consent(now, out volume.Spec) string {
	switch {
	case c.Loss != "":
		return c.Loss
	case out.Unsafe && now.Unsafe:
		return dirtyLossPower
	case out.Mode == volume.ModeWriteback && !out.Unsafe && out.AcceptNodeLoss:
		return dirtyLossNodeLoss
	}
	return dirtyLossNone
}

// parseModify checks a ControllerModifyVolumeRequest.
func parseModify(req *csi.ControllerModifyVolumeRequest) (volume.ID, change, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err != nil {
		return "", change{}, err
	}
	c, err := parseChange(req.GetMutableParameters())
	return id, c, err
}

// ControllerModifyVolume implements csi.ControllerServer. It answers OK when the
// change is in effect, and Aborted while the node is at it, which external-resizer
// takes as "still in progress, ask again".
func (c *Controller) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	id, asked, err := parseModify(req)
	if err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lock(ctx, c.locks, id)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	if err := c.volumes.Modify(ctx, id, asked.apply); err != nil {
		return nil, statusFor(fmt.Errorf("modify volume %s: %w", id, err))
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}
