// Package plan holds what a lab consists of and where its parts lie: its
// identity, addresses, and state directory. Everything here is pure.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
)

// Addresses that are the same in every lab: each lab has a network namespace of
// its own, so they never meet.
const (
	// HostIP is the host's side of the bridge: API server and gateway.
	HostIP = "10.88.0.1"
	// ServiceIP is the first address of the service range. It lies on the bridge
	// too, so that in-cluster clients reach the API server with no kube-proxy.
	ServiceIP = "10.96.0.1"
	// APIPort is where the API server listens on both addresses.
	APIPort = 443
	// AgentPort is where the agent in every guest listens.
	AgentPort = 7070
	// PrefixBits is the length of the bridge's prefix.
	PrefixBits = 24
	// ServiceRange is the range of cluster addresses.
	ServiceRange = "10.96.0.0/16"
	// PodRange is the range that the nodes' pod ranges are cut from.
	PodRange = "10.244.0.0/16"
	// BridgeName is the bridge in the lab's namespace.
	BridgeName = "br0"
	// TargetPort is where nearflash-target listens on the storage node.
	TargetPort = 9443
	// PortalPort is where the storage node serves iSCSI.
	PortalPort = 3260
	// VolumeGroup is the storage node's volume group, ThinPool the pool in it.
	VolumeGroup = "storage"
	ThinPool    = "pool"
	// PairIP is the one address of a pair of storage servers, which is on the active one.
	PairIP = "10.88.0.25"
	// SecondName is the name of [Second] in the chart's values.
	SecondName = "second"
	// SecondDisk is every guest's disk: a worker's SSD, the storage node's store.
	SecondDisk = "/dev/ubdb"
)

// Role says what a guest does.
type Role string

// Roles of a guest.
const (
	// RoleWorker runs containerd and a kubelet.
	RoleWorker Role = "worker"
	// RoleStorage runs nearflash-target over its disk.
	RoleStorage Role = "storage"
	// RoleScript runs one command and ends.
	RoleScript Role = "script"
)

// ErrUnknownNode is returned for a node name that no lab has.
var ErrUnknownNode = errors.New("unknown node")

// ErrName is returned for a lab name that cannot be used.
var ErrName = errors.New("invalid lab name")

// Node is one guest of the lab.
type Node struct {
	Name    string
	Role    Role
	IP      string
	MAC     string
	Tap     string
	PodCIDR string // workers only
}

// Nodes returns the guests that every lab has, in the order in which they start.
func Nodes() []Node {
	return []Node{
		{Name: "node-a", Role: RoleWorker, IP: "10.88.0.11", MAC: "02:88:00:00:00:0b", Tap: "tap-a", PodCIDR: "10.244.1.0/24"},
		{Name: "node-b", Role: RoleWorker, IP: "10.88.0.12", MAC: "02:88:00:00:00:0c", Tap: "tap-b", PodCIDR: "10.244.2.0/24"},
		{Name: "storage", Role: RoleStorage, IP: "10.88.0.20", MAC: "02:88:00:00:00:14", Tap: "tap-s"},
	}
}

// Spare is the second server of a pair: it has the disk of [Storage] too.
func Spare() Node {
	return Node{Name: "storage-b", Role: RoleStorage, IP: "10.88.0.21", MAC: "02:88:00:00:00:15", Tap: "tap-t"}
}

// Second is a storage server of its own beside [Storage], with a disk of its own.
func Second() Node {
	return Node{Name: "storage-2", Role: RoleStorage, IP: "10.88.0.22", MAC: "02:88:00:00:00:16", Tap: "tap-u"}
}

// AllNodes returns every guest that a lab may have.
func AllNodes() []Node { return append(Nodes(), Spare(), Second()) }

// Workers returns the guests with a kubelet.
func Workers() []Node {
	var out []Node
	for _, n := range Nodes() {
		if n.Role == RoleWorker {
			out = append(out, n)
		}
	}
	return out
}

// Storage returns the storage server's guest, the first one of a pair.
func Storage() Node {
	for _, n := range Nodes() {
		if n.Role == RoleStorage {
			return n
		}
	}
	return Node{}
}

// FindNode returns the guest of that name, or [ErrUnknownNode].
func FindNode(name string) (Node, error) {
	var names []string
	for _, n := range AllNodes() {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return Node{}, fmt.Errorf("%w %q (known: %v)", ErrUnknownNode, name, names)
}

// Route is one entry of a routing table.
type Route struct {
	Dst string `json:"dst"` // CIDR
	Via string `json:"via"` // gateway address
}

// PodRoutes returns the routes to the pods of all workers but the named one
// (pass "" for the host's table).
func PodRoutes(except string) []Route {
	var out []Route
	for _, n := range Workers() {
		if n.Name != except {
			out = append(out, Route{Dst: n.PodCIDR, Via: n.IP})
		}
	}
	return out
}

// PodGateway is the first address of a pod range: the CNI bridge's own.
func PodGateway(cidr string) (string, error) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", fmt.Errorf("pod range: %w", err)
	}
	return p.Masked().Addr().Next().String(), nil
}

// ID derives a lab's identity from the checkout it belongs to: the first eight
// hex digits of the path's SHA-256, so that two checkouts never share a lab.
func ID(checkout string) string {
	sum := sha256.Sum256([]byte(checkout))
	return hex.EncodeToString(sum[:4])
}

// namePattern keeps a name usable in a file name, a namespace name and on a
// kernel command line.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// ResolveID returns the name when there is one, else the ID of the checkout.
// It returns [ErrName] for a name that cannot be used.
func ResolveID(name, checkout string) (string, error) {
	if name == "" {
		return ID(checkout), nil
	}
	if !namePattern.MatchString(name) {
		return "", fmt.Errorf("%w %q: want 1 to 32 lower-case letters, digits and inner hyphens", ErrName, name)
	}
	return name, nil
}

// NetnsName is the name of the lab's network namespace.
func NetnsName(id string) string { return "nf-" + id }

// Sidecars are the lab's own builds of the images that the chart takes from a registry, by
// their keys in the chart's values: a lab reaches no registry.
func Sidecars() map[string]string {
	return map[string]string{
		"provisioner": "nearflash.local/csi-provisioner:v6.3.0",
		"attacher":    "nearflash.local/csi-attacher:v4.12.0",
		"resizer":     "nearflash.local/csi-resizer:v2.2.0",
		"snapshotter": "nearflash.local/csi-snapshotter:v8.7.0",
	}
}

// PauseImage is the sandbox image that a node's image store holds.
const PauseImage = "nearflash.local/pause:1"
