package netns

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// Setup makes the bridge with the host's addresses, a tap for every guest and
// the routes to the pods.
func (n NS) Setup(nodes []plan.Node) error {
	return n.Do(func() error {
		if err := linkUp("lo"); err != nil {
			return err
		}
		if err := addBridge(); err != nil {
			return err
		}
		for _, node := range nodes {
			if err := addTap(node.Tap); err != nil {
				return err
			}
		}
		for _, r := range plan.PodRoutes("") {
			if err := addRoute(r); err != nil {
				return err
			}
		}
		// The host's side forwards: it is every guest's default gateway.
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			return fmt.Errorf("forwarding: %w", err)
		}
		return nil
	})
}

func addBridge() error {
	la := netlink.NewLinkAttrs()
	la.Name = plan.BridgeName
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: la}); err != nil {
		return fmt.Errorf("bridge %s: %w", la.Name, err)
	}
	br, err := netlink.LinkByName(la.Name)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", la.Name, err)
	}
	for ip, bits := range map[string]int{plan.HostIP: plan.PrefixBits, plan.ServiceIP: 32} {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(bits, 32)}}
		if err := netlink.AddrAdd(br, addr); err != nil {
			return fmt.Errorf("address %s: %w", ip, err)
		}
	}
	return linkUp(la.Name)
}

func addTap(name string) error {
	la := netlink.NewLinkAttrs()
	la.Name = name
	// The flags are those with which the guest's vector driver opens the tap.
	tap := &netlink.Tuntap{LinkAttrs: la, Mode: netlink.TUNTAP_MODE_TAP, Flags: unix.IFF_NO_PI | unix.IFF_VNET_HDR}
	if err := netlink.LinkAdd(tap); err != nil {
		return fmt.Errorf("tap %s: %w", name, err)
	}
	br, err := netlink.LinkByName(plan.BridgeName)
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("tap %s: %w", name, err)
	}
	if err := netlink.LinkSetMaster(link, br); err != nil {
		return fmt.Errorf("tap %s into bridge: %w", name, err)
	}
	return linkUp(name)
}

func linkUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("interface %s up: %w", name, err)
	}
	return nil
}

func addRoute(r plan.Route) error {
	_, dst, err := net.ParseCIDR(r.Dst)
	if err != nil {
		return fmt.Errorf("route: %w", err)
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(r.Via)}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route %s via %s: %w", r.Dst, r.Via, err)
	}
	return nil
}
