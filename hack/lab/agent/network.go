package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
)

// uplink is the interface that User-Mode Linux's vector driver makes of vec0.
const uplink = "vec0"

// setupNetwork brings up the loopback and, with a configuration, the uplink.
func setupNetwork(node string, n *agentapi.Network) error {
	if err := unix.Sethostname([]byte(node)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	hosts := map[string]string{node: "127.0.0.1"}
	if n != nil {
		if err := setupUplink(n); err != nil {
			return err
		}
		hosts = n.Hosts
	}
	if err := os.WriteFile("/etc/hosts", []byte(hostsFile(hosts)), 0o644); err != nil {
		return fmt.Errorf("hosts file: %w", err)
	}
	return nil
}

func setupUplink(n *agentapi.Network) error {
	link, err := netlink.LinkByName(uplink)
	if err != nil {
		return fmt.Errorf("interface %s: %w", uplink, err)
	}
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return fmt.Errorf("interface %s: %w", uplink, err)
	}
	// A fixed address: otherwise the others keep the one of the last boot in
	// their ARP tables and a restarted guest is unreachable for a while.
	if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("interface %s: %w", uplink, err)
	}
	addr, err := netlink.ParseAddr(n.IP)
	if err != nil {
		return fmt.Errorf("interface %s: %w", uplink, err)
	}
	if err := netlink.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("address %s: %w", n.IP, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("interface %s: %w", uplink, err)
	}
	if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(n.Gateway)}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	for _, r := range n.Routes {
		_, dst, err := net.ParseCIDR(r.Dst)
		if err != nil {
			return fmt.Errorf("route: %w", err)
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(r.Via)}); err != nil {
			return fmt.Errorf("route to %s: %w", r.Dst, err)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("forwarding: %w", err)
	}
	return nil
}

// delayNetwork makes every packet leave so much later: the storage server is
// that far away (tc-netem(8), which keeps time by high-resolution timers).
// Device-mapper's delay target would not do: it counts the kernel's ticks, which
// are 10 ms apart in the guests' kernel.
func delayNetwork(delay time.Duration) error {
	link, err := netlink.LinkByName(uplink)
	if err != nil {
		return fmt.Errorf("interface %s: %w", uplink, err)
	}
	qdisc := netlink.NewNetem(
		netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		// Limit is the number of packets on their way.
		netlink.NetemQdiscAttrs{Latency: uint32(delay.Microseconds()), Limit: 10000}, // milliseconds fit
	)
	if err := netlink.QdiscReplace(qdisc); err != nil {
		return fmt.Errorf("delay on %s: %w", uplink, err)
	}
	return nil
}

func hostsFile(hosts map[string]string) string {
	names := make([]string, 0, len(hosts))
	for name := range hosts {
		names = append(names, name)
	}
	sort.Strings(names)
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n")
	for _, name := range names {
		fmt.Fprintf(&b, "%s %s\n", hosts[name], name)
	}
	return b.String()
}
