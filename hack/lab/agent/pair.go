package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// lvmPair has LVM write the machine's name into a volume group that it makes, and leave
// groups with another name alone (lvmsystemid(7)).
const lvmPair = `global/system_id_source = "uname"
`

// Programs of a server of a pair that the guest's root has not: the agent is both.
const (
	systemctl = "systemctl"
	arping    = "arping"
)

// setupPair makes of a guest one server of a pair. Nothing on the shared disk is active
// afterwards, whatever was at the last boot.
func (g *guest) setupPair(ctx context.Context) error {
	for _, name := range []string{systemctl, arping} {
		script := fmt.Sprintf("#!/bin/sh\nexec %s %s \"$@\"\n", agentapi.AgentSelf, name)
		if err := writeFile("/usr/local/sbin/"+name, []byte(script), 0o755); err != nil {
			return err
		}
	}
	const target = "nearflash-target"
	link := "/usr/local/sbin/" + target
	if err := os.Symlink(filepath.Join(agentapi.ShareDir, target), link); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("program: %w", err)
	}
	made, err := hasVolumeGroup(ctx, "--foreign")
	if err != nil || made || !g.cfg.Storage.First {
		return err
	}
	if err := makePool(ctx); err != nil {
		return err
	}
	state := storageVG + "/" + agentapi.StateVolume
	for _, argv := range [][]string{
		{"vgchange", "--setautoactivation", "n", storageVG},
		{"lvcreate", "--yes", "--size", "64M", "--name", agentapi.StateVolume, storageVG},
		{"mkfs.ext4", "-q", "/dev/" + state},
		{"vgchange", "--activate", "n", storageVG},
	} {
		if _, err := output(ctx, argv...); err != nil {
			return err
		}
	}
	return nil
}

// pairCommand is the agent as a program of a server of a pair; the result is its exit status.
func pairCommand(args []string) int {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	var err error
	switch args[0] {
	case systemctl:
		err = controlService(ctx, args[1:])
	case arping:
		err = announce(args[1:])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", args[0], err)
		return 1
	}
	return 0
}

// controlService is systemctl start SERVICE, which waits as for a unit that notifies, and
// systemctl stop SERVICE.
func controlService(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("start SERVICE or stop SERVICE is wanted")
	}
	b, err := os.ReadFile(filepath.Join(agentapi.ShareDir, agentapi.ConfigFile))
	if err != nil {
		return err
	}
	var cfg agentapi.Config
	if err := json.Unmarshal(b, &cfg); err != nil {
		return err
	}
	i := slices.IndexFunc(cfg.Services, func(s agentapi.Service) bool { return s.Name == args[1] })
	if i < 0 {
		return fmt.Errorf("there is no service %s", args[1])
	}
	var d net.Dialer
	agent := agentapi.NewClient(d.DialContext, net.JoinHostPort("127.0.0.1", strconv.Itoa(plan.AgentPort)), cfg.Token)
	switch args[0] {
	case "stop":
		return agent.Stop(ctx, args[1])
	case "start":
		if err := agent.Start(ctx, args[1]); err != nil {
			return err
		}
		return awaitService(ctx, cfg.Services[i])
	}
	return fmt.Errorf("%s is not known here", args[0])
}

// announce is arping -U -c COUNT -I INTERFACE ADDRESS: it tells the network that the address
// is here (RFC 5227, 3).
func announce(args []string) error {
	if len(args) != 6 || args[0] != "-U" || args[1] != "-c" || args[3] != "-I" {
		return errors.New("-U -c COUNT -I INTERFACE ADDRESS is wanted")
	}
	count, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(args[4])
	if err != nil {
		return fmt.Errorf("interface %s: %w", args[4], err)
	}
	ip := net.ParseIP(args[5]).To4()
	if ip == nil {
		return fmt.Errorf("%q is no IPv4 address", args[5])
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	frame := gratuitous(link.Attrs().HardwareAddr, ip)
	for i := range count {
		if i > 0 {
			time.Sleep(time.Second)
		}
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}); err != nil {
			return err
		}
	}
	return nil
}

// gratuitous is a frame of Ethernet with an ARP request of an address for itself.
func gratuitous(mac net.HardwareAddr, ip net.IP) []byte {
	broadcast := strings.Repeat("\xff", 6)
	const kind, request = "\x08\x06", "\x00\x01\x08\x00\x06\x04\x00\x01"
	return []byte(broadcast + string(mac) + kind + request + string(mac) + string(ip) + broadcast + string(ip))
}
