package driver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Parameters of a StorageClass. Those of the cache may also stand among the
// volumeAttributes of a static PersistentVolume.
const (
	keyBackend         = "backend"
	keyTarget          = "target"
	keyOriginClass     = "originStorageClass"
	keyWithoutFence    = "withoutFence"
	keyFSType          = "fsType"
	keyProvisioning    = "provisioning"
	keyCacheMode       = "cacheMode"
	keyCacheSize       = "cacheSize"
	keyMaxCacheSize    = "maxCacheSize"
	keyChunkSize       = "chunkSize"
	keyAcceptDirtyLoss = "acceptDirtyLoss"
	keyRedundancy      = "redundancy"
	keyMaxDirtyBytes   = "maxDirtyBytes"
	keyMaxDirtyAge     = "maxDirtyAge"

	keyWarmStart          = "warmStart"
	keyWarmStartMethod    = "warmStartMethod"
	keyWarmStartBandwidth = "warmStartBandwidth"
	keyWarmStartDeadline  = "warmStartDeadline"
	keyPreload            = "preload"
)

// Keys that external-provisioner adds with --extra-create-metadata.
const (
	keyPVName       = "csi.storage.k8s.io/pv/name"
	keyPVCName      = "csi.storage.k8s.io/pvc/name"
	keyPVCNamespace = "csi.storage.k8s.io/pvc/namespace"
)

const (
	backendISCSI      = "iscsi"
	backendCSI        = "csi"
	chunkAuto         = "auto"
	preloadNone       = "none"
	preloadAll        = "all"
	redundancyNone    = "none"
	redundancyMirror  = "mirror"
	dirtyLossNone     = "none"
	dirtyLossNodeLoss = "node-loss"
	dirtyLossPower    = "power-loss"
	// defaultCachePercent is the cacheSize of a class that names none.
	defaultCachePercent = 10
)

// Bounds of a cache block, from Documentation/admin-guide/device-mapper/cache.rst:
// "between 64 sectors (32KB) and 2097152 sectors (1GB) and a multiple of 64".
const (
	chunkUnit = 32 << 10
	maxChunk  = 1 << 30
	// maxBlocks is the most cache blocks that the node accepts: the kernel warns
	// above a million, because the map of all of them is kept in memory.
	maxBlocks = 1_000_000
)

// classParameters are the accepted keys of a StorageClass, in the order of the
// documentation.
var classParameters = []string{
	keyBackend, keyTarget, keyOriginClass, keyWithoutFence, keyCacheMode, keyCacheSize, keyMaxCacheSize, keyChunkSize, keyAcceptDirtyLoss, keyRedundancy, keyMaxDirtyBytes, keyMaxDirtyAge,
	keyWarmStart, keyWarmStartMethod, keyWarmStartBandwidth, keyWarmStartDeadline, keyPreload, keyFSType, keyProvisioning,
}

// class is a parsed StorageClass.
type class struct {
	Spec   volume.Spec
	FSType string
}

// parseClass checks the parameters of CreateVolume. The error names every
// problem with parameter, value and what is accepted.
func parseClass(params map[string]string) (class, error) {
	p := &problems{what: "parameter"}
	p.unknown(params, classParameters)
	c := class{
		Spec:   parseCache(p, params),
		FSType: p.oneOf(keyFSType, params[keyFSType], "", fsTypes...),
	}
	c.Spec.Provisioning = p.oneOf(keyProvisioning, params[keyProvisioning], "", "thin", "thick")
	c.Spec.Origin = parseOrigin(p, params)
	if v := params[keyTarget]; v != "" && params[keyBackend] == backendCSI {
		p.add(keyTarget, "%q goes with %s %s only, and %s is %s; leave it out", v, keyBackend, backendISCSI, keyBackend, backendCSI)
	} else {
		c.Spec.Target = parseTarget(p, params)
	}
	if ns, name := params[keyPVCNamespace], params[keyPVCName]; ns != "" && name != "" {
		c.Spec.Claim = &volume.Claim{Namespace: ns, Name: name}
	}
	return c, p.err()
}

// parseOrigin reads where the origin is to be made: nil means on the storage server.
func parseOrigin(p *problems, params map[string]string) *volume.Origin {
	kind, name := p.oneOf(keyBackend, params[keyBackend], backendISCSI, backendISCSI, backendCSI), params[keyOriginClass]
	switch {
	case kind != backendCSI && name != "":
		p.add(keyOriginClass, "%q goes with %s %s only, and %s is %s; leave it out", name, keyBackend, backendCSI, keyBackend, kind)
	case kind != backendCSI:
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		p.add(keyOriginClass, "%q is not accepted; %s %s needs the name of a StorageClass of the other CSI driver", name, keyBackend, backendCSI)
	default:
		if v := params[keyProvisioning]; v != "" {
			p.add(keyProvisioning, "%q contradicts %s %s: how the volume is allocated, StorageClass %s says; leave it out", v, keyBackend, backendCSI, name)
		}
		return &volume.Origin{StorageClass: name, AcceptTwoWriters: parseWithoutFence(p, params)}
	}
	if v := params[keyWithoutFence]; kind != backendCSI && v != "" {
		p.add(keyWithoutFence, "%q goes with %s %s only, and %s is %s; leave it out", v, keyBackend, backendCSI, keyBackend, kind)
	}
	return nil
}

// parseTarget reads which storage server it is, "" being the default one. Whether there is one of
// that name is for who has them to say.
func parseTarget(p *problems, params map[string]string) string {
	v := params[keyTarget]
	if v != "" && !volume.IsTarget(v) {
		p.add(keyTarget, "%q is not accepted; accepted is the name of a storage server: %s", v, volume.TargetNames)
	}
	return v
}

// parseWithoutFence reads the consent to unflushed writes over a driver that fences nobody.
func parseWithoutFence(p *problems, params map[string]string) bool {
	return p.oneOf(keyWithoutFence, params[keyWithoutFence], "", volume.AcceptTwoWriters) == volume.AcceptTwoWriters
}

// parseCache reads the parameters of the cache.
func parseCache(p *problems, params map[string]string) volume.Spec {
	name := p.oneOf(keyCacheMode, params[keyCacheMode], string(volume.ModeWritethrough), modeNames...)
	loss := p.oneOf(keyAcceptDirtyLoss, params[keyAcceptDirtyLoss], dirtyLossNone, dirtyLosses...)
	var s volume.Spec
	s.SetMode(name)
	mode := s.Mode
	s = volume.Spec{
		Mode:           mode,
		Unsafe:         s.Unsafe,
		Cache:          parseCacheSize(p, mode, params[keyCacheSize]),
		MaxCacheBytes:  parseMaxCacheSize(p, params[keyMaxCacheSize]),
		ChunkBytes:     parseChunkSize(p, mode, params[keyChunkSize]),
		AcceptNodeLoss: loss != dirtyLossNone,
		Mirror:         parseRedundancy(p, params[keyRedundancy]) == redundancyMirror,
		DirtyLimit:     parseDirtyLimit(p, mode, params),
		WarmStart:      parseWarmStart(p, mode, params),
	}
	limitTextOf(params).checkChunk(p, s)
	if aboveMaxCache(s) {
		p.add(keyCacheSize, "%q is more than maxCacheSize %s; accepted are at most that, or a percentage of the volume, which is cut down to it", params[keyCacheSize], params[keyMaxCacheSize])
	}
	if s.Mirror && mode == volume.ModeNone {
		p.add(keyRedundancy, "%q contradicts cacheMode none, which has no cache; leave redundancy out", redundancyMirror)
	}
	checkLoss(p, s, params[keyAcceptDirtyLoss], loss)
	return s
}

var (
	modeNames   = []string{string(volume.ModeNone), string(volume.ModeWritethrough), string(volume.ModeWriteback), volume.ModeWritebackUnsafe}
	dirtyLosses = []string{dirtyLossNone, dirtyLossNodeLoss, dirtyLossPower}
)

// checkLoss holds a mode to the one consent that goes with it. given is what the author wrote, loss what
// that comes to.
func checkLoss(p *problems, s volume.Spec, given, loss string) {
	switch name := s.ModeName(); {
	case s.Unsafe && loss != dirtyLossPower:
		p.add(keyAcceptDirtyLoss, "%q does not go with cacheMode %s, which loses writes in any order, those that the application has flushed among them, when a node loses its power or its kernel crashes; accepted with it is %s",
			given, name, dirtyLossPower)
	case s.Mode == volume.ModeWriteback && loss == dirtyLossNone:
		p.add(keyAcceptDirtyLoss, "%q does not go with cacheMode %s, which loses acknowledged writes when a node is lost before they are flushed; accepted with it is %s",
			given, name, dirtyLossNodeLoss)
	case s.Mode == volume.ModeWriteback && !s.Unsafe && loss == dirtyLossPower:
		p.add(keyAcceptDirtyLoss, "%q contradicts cacheMode %s, which keeps what the application has flushed when a node loses its power; accepted with it is %s", loss, name, dirtyLossNodeLoss)
	case s.Mode != volume.ModeWriteback && loss != dirtyLossNone:
		p.add(keyAcceptDirtyLoss, "%q contradicts cacheMode %s, which loses no acknowledged write; accepted with it is %s", loss, name, dirtyLossNone)
	}
}

// parseRedundancy reads how many copies a cache shall have: "" leaves it to the pool, or as it is.
func parseRedundancy(p *problems, value string) string {
	return p.oneOf(keyRedundancy, value, "", redundancyNone, redundancyMirror)
}

func parseCacheSize(p *problems, mode volume.CacheMode, value string) volume.Size {
	switch {
	case mode == volume.ModeNone && value != "":
		p.add(keyCacheSize, "%q contradicts cacheMode none, which has no cache; leave cacheSize out", value)
		return volume.Size{}
	case mode == volume.ModeNone:
		return volume.Size{}
	case value == "":
		return volume.Size{Percent: defaultCachePercent}
	}
	size, err := quantity.Size(value)
	if err != nil {
		p.addErr(keyCacheSize, err)
	}
	return size
}

// MinMaxCacheBytes is the least maxCacheSize in bytes. Below it there is a unit missing, as in 50.
const MinMaxCacheBytes = 1 << 20

// parseMaxCacheSize also reads that of a volume without a cache, which may get one.
func parseMaxCacheSize(p *problems, value string) int64 {
	if value == "" {
		return 0
	}
	n, err := quantity.Bytes(value)
	if err != nil || n < MinMaxCacheBytes {
		p.add(keyMaxCacheSize, "%q is not accepted; accepted are whole bytes of at least %s, such as 50Gi", value, quantity.Text(MinMaxCacheBytes))
		return 0
	}
	return n
}

// aboveMaxCache reports whether a size in bytes contradicts the maximum.
func aboveMaxCache(s volume.Spec) bool { return s.MaxCacheBytes > 0 && s.Cache.Bytes > s.MaxCacheBytes }

func parseChunkSize(p *problems, mode volume.CacheMode, value string) int64 {
	const accepted = "accepted are auto, or a multiple of 32Ki (32768) from 32Ki to 1Gi"
	if value == "" || value == chunkAuto {
		return 0
	}
	if mode == volume.ModeNone {
		p.add(keyChunkSize, "%q contradicts cacheMode none, which has no cache; leave chunkSize out", value)
		return 0
	}
	n, err := quantity.Bytes(value)
	if err != nil || n < chunkUnit || n > maxChunk || n%chunkUnit != 0 {
		p.add(keyChunkSize, "%q is not accepted; %s", value, accepted)
		return 0
	}
	return n
}

// checkGeometry checks what can be known only with the volume's size: the cache
// must hold at least one block and not too many.
func checkGeometry(s volume.Spec) error {
	cache := s.CacheBytes(s.CapacityBytes)
	if s.ChunkBytes == 0 || s.CapacityBytes == 0 || s.Cache.IsZero() {
		return nil
	}
	switch blocks := cache / s.ChunkBytes; {
	case blocks < 1:
		return fmt.Errorf("%w: parameter chunkSize: %d is larger than the cache of %d bytes (cacheSize %s of a volume of %d bytes); accepted are auto, or a smaller chunkSize, or a larger cacheSize and maxCacheSize",
			volume.ErrInvalid, s.ChunkBytes, cache, s.Cache, s.CapacityBytes)
	case blocks > maxBlocks:
		return fmt.Errorf("%w: parameter chunkSize: %d gives %d blocks for a cache of %d bytes, at most %d are possible; accepted are auto, or at least %d",
			volume.ErrInvalid, s.ChunkBytes, blocks, cache, maxBlocks, (cache/maxBlocks+chunkUnit)/chunkUnit*chunkUnit)
	}
	return nil
}
