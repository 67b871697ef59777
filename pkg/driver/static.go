package driver

import (
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearflash/nearflash/pkg/volume"
)

// volumeAttributes of a static PersistentVolume besides those of the cache.
const (
	keyPortals = "portals"
	keyIQN     = "iqn"
	keyLUN     = "lun"
	// keyOriginPV names the volume of another CSI driver that takes the place of a LUN.
	keyOriginPV = "originPersistentVolume"
	// keyFormat allows a blank LUN to be formatted.
	keyFormat = "formatIfBlank"
	// keyNoReservations accepts a LUN that cannot be fenced.
	keyNoReservations = "withoutReservations"
	// keyAdopt says of a PersistentVolume that its volume is on the storage server, and
	// that its record is to be made anew if it was lost. The attributes of the cache go
	// with it.
	keyAdopt = "adopt"
)

// staticAttributes are the accepted volumeAttributes of a static volume.
var staticAttributes = []string{
	keyPortals, keyIQN, keyLUN, keyBackend, keyTarget, keyOriginPV, keyWithoutFence, keyCacheMode, keyCacheSize, keyMaxCacheSize, keyChunkSize, keyAcceptDirtyLoss, keyRedundancy, keyMaxDirtyBytes, keyMaxDirtyAge,
	keyWarmStart, keyWarmStartMethod, keyWarmStartBandwidth, keyWarmStartDeadline, keyPreload, keyFSType, keyFormat, keyNoReservations, keyAdopt,
}

// Bounds of the API type ISCSISource and of RFC 7143.
const (
	defaultPort = "3260"
	maxPortals  = 8
	maxIQN      = 223
	maxLUN      = 16383
)

// iqnPattern is RFC 7143, section 4.2.7: iqn., eui. or naa. names.
var iqnPattern = regexp.MustCompile(`^(iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9.-]+(:[a-z0-9.:-]+)?|eui\.[0-9a-fA-F]{16}|naa\.[0-9a-fA-F]{16}([0-9a-fA-F]{16})?)$`)

// isStatic reports whether a volume_context is that of a static volume: one
// made by CreateVolume names neither a LUN nor another driver's volume.
func isStatic(attributes map[string]string) bool {
	for _, k := range []string{keyPortals, keyIQN, keyLUN, keyOriginPV} {
		if _, ok := attributes[k]; ok {
			return true
		}
	}
	return false
}

// parseVolumeContext checks the volume_context of a request. The spec is of what a record
// may be made of: nil for a volume made by CreateVolume, unless it is to be adopted.
func parseVolumeContext(attributes map[string]string) (spec *volume.Spec, fsType string, err error) {
	p := &problems{what: "volumeAttribute"}
	fsType = p.oneOf(keyFSType, attributes[keyFSType], "", fsTypes...)
	p.unknown(attributes, staticAttributes)
	adopt := p.oneOf(keyAdopt, attributes[keyAdopt], "false", "true", "false") == "true"
	switch {
	case adopt && isStatic(attributes):
		p.add(keyAdopt, "%q contradicts %s and %s, and %s: a static volume has no record that could be lost without them", attributes[keyAdopt], keyPortals, keyIQN, keyOriginPV)
	case adopt:
		return parseAdopted(p, attributes, fsType)
	case !isStatic(attributes):
		for _, k := range staticAttributes {
			switch v, ok := attributes[k]; {
			case !ok || k == keyFSType || k == keyAdopt:
			case k == keyTarget:
				p.add(k, "%q goes with %s true only: the volume's record says where it lies; leave it out", v, keyAdopt)
			default:
				p.add(k, "%q is for a static volume, which also has %s and %s, or %s", v, keyPortals, keyIQN, keyOriginPV)
			}
		}
		return nil, fsType, p.err()
	}
	if v, ok := attributes[keyTarget]; ok {
		p.add(keyTarget, "%q is for a volume of nearflash-target, and contradicts %s and %s, and %s; leave it out", v, keyPortals, keyIQN, keyOriginPV)
	}
	static := parseCache(p, attributes)
	static.FormatBlank = p.oneOf(keyFormat, attributes[keyFormat], "false", "true", "false") == "true"
	if kind := p.oneOf(keyBackend, attributes[keyBackend], kindOfStatic(attributes), backendISCSI, backendCSI); kind == backendCSI {
		static.Origin = parseOriginPV(p, attributes)
	} else {
		static.Static = parseStatic(p, attributes)
	}
	if err := p.err(); err != nil {
		return nil, "", err
	}
	return &static, fsType, nil
}

// kindOfStatic is the backend of a static volume that names none.
func kindOfStatic(attributes map[string]string) string {
	if _, ok := attributes[keyOriginPV]; ok {
		return backendCSI
	}
	return backendISCSI
}

// parseStatic reads the LUN of a static volume.
func parseStatic(p *problems, attributes map[string]string) *volume.ISCSI {
	if v, ok := attributes[keyOriginPV]; ok {
		p.add(keyOriginPV, "%q goes with %s %s only, and %s is %s; leave one of them out", v, keyBackend, backendCSI, keyBackend, backendISCSI)
	}
	if v, ok := attributes[keyWithoutFence]; ok {
		p.add(keyWithoutFence, "%q goes with %s %s only; a LUN has %s", v, keyBackend, backendCSI, keyNoReservations)
	}
	p.oneOf(keyNoReservations, attributes[keyNoReservations], "", volume.AcceptTwoWriters)
	return &volume.ISCSI{
		Portals: parsePortals(p, attributes[keyPortals]),
		IQN:     parseIQN(p, attributes[keyIQN]),
		LUN:     parseLUN(p, attributes[keyLUN]),
	}
}

// parseOriginPV reads which volume of another driver a static one lies over. What is for a LUN
// does not go with it.
func parseOriginPV(p *problems, attributes map[string]string) *volume.Origin {
	for _, k := range []string{keyPortals, keyIQN, keyLUN, keyNoReservations} {
		if v, ok := attributes[k]; ok {
			p.add(k, "%q is for a LUN, and contradicts %s; leave it out", v, keyOriginPV)
		}
	}
	name := attributes[keyOriginPV]
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		p.add(keyOriginPV, "%q is not accepted; accepted is the name of a PersistentVolume of another CSI driver with volumeMode Block", name)
	}
	return &volume.Origin{PV: name, AcceptTwoWriters: parseWithoutFence(p, attributes)}
}

// parseAdopted reads what the record of a volume is to be made of if it was lost.
func parseAdopted(p *problems, attributes map[string]string, fsType string) (*volume.Spec, string, error) {
	if v, ok := attributes[keyFormat]; ok {
		p.add(keyFormat, "%q contradicts %s: a volume that was in use is not formatted", v, keyAdopt)
	}
	p.oneOf(keyBackend, attributes[keyBackend], backendISCSI, backendISCSI)
	spec := parseCache(p, attributes)
	spec.Target = parseTarget(p, attributes)
	if err := p.err(); err != nil {
		return nil, "", err
	}
	return &spec, fsType, nil
}

// parsePortals reads "host:port,host:port"; the port may be left out.
func parsePortals(p *problems, value string) []string {
	const accepted = "accepted are 1 to 8 addresses host or host:port, separated by commas, IPv6 in brackets"
	var portals []string
	for part := range strings.SplitSeq(value, ",") {
		host, port := splitPortal(strings.TrimSpace(part))
		n, err := strconv.ParseUint(port, 10, 16)
		portal := net.JoinHostPort(host, port)
		if err != nil || n == 0 || !hostPattern.MatchString(host) || slices.Contains(portals, portal) {
			p.add(keyPortals, "%q is not accepted; %s", value, accepted)
			return nil
		}
		portals = append(portals, portal)
	}
	if len(portals) > maxPortals {
		p.add(keyPortals, "%q has %d addresses; %s", value, len(portals), accepted)
	}
	return portals
}

// hostPattern is a DNS name, an IPv4 or an IPv6 address.
var hostPattern = regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)$`)

func splitPortal(s string) (host, port string) {
	if host, port, err := net.SplitHostPort(s); err == nil {
		return host, port
	}
	return strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), defaultPort
}

func parseIQN(p *problems, value string) string {
	if len(value) > maxIQN || !iqnPattern.MatchString(value) {
		p.add(keyIQN, "%q is not accepted; accepted is an iSCSI name of RFC 7143 such as iqn.2003-01.org.example:disk1", value)
	}
	return value
}

func parseLUN(p *problems, value string) int {
	if value == "" {
		return 0
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxLUN || value != strconv.Itoa(n) {
		p.add(keyLUN, "%q is not accepted; accepted are 0 to %d", value, maxLUN)
		return 0
	}
	return n
}
