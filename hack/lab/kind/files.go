package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/nearflash/nearflash/hack/lab/internal/driver"
	"github.com/nearflash/nearflash/hack/lab/internal/pki"
)

// storage is what a storage server's container is told.
type storage struct{ address, server, group, device string }

// write writes into dir: tls.crt, tls.key, client-ca.crt and, last, config.yaml, for
// which the container waits, into storage; values.yaml for the chart beside it.
func (s storage) write(dir string) error {
	if net.ParseIP(s.address) == nil || s.server == "" || s.group == "" || s.device == "" {
		return errors.New("--address (an IP address), --server, --volume-group and --device are needed")
	}
	ca, err := pki.NewCA("nearflash-kind-target")
	if err != nil {
		return err
	}
	server, err := ca.Issue(pki.Subject{Name: s.server, Server: true, IPs: []string{s.address}})
	if err != nil {
		return err
	}
	client, err := ca.Issue(pki.Subject{Name: pki.TargetClientName, Client: true})
	if err != nil {
		return err
	}
	config, err := json.MarshalIndent(s.configuration(), "", "  ")
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	values, err := json.MarshalIndent(s.values(ca.Cert, client), "", "  ")
	if err != nil {
		return fmt.Errorf("values: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "storage"), 0o700); err != nil {
		return fmt.Errorf("folder of files: %w", err)
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{"storage/tls.crt", server.Cert}, {"storage/tls.key", server.Key}, {"storage/client-ca.crt", ca.Cert},
		{"values.yaml", values}, {"storage/config.yaml.new", config},
	} {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.content, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", f.name, err)
		}
	}
	ready := filepath.Join(dir, "storage", "config.yaml")
	if err := os.Rename(ready+".new", ready); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

// configuration is nearflash-target's: the devices of the machine are not its own.
func (s storage) configuration() driver.M {
	c := driver.TargetConfiguration(s.address, s.server, s.group)
	c["lvmDevices"] = []string{s.device}
	return c
}

// values are the chart's. The devices of the pools are not among them: they differ
// between the nodes, and stand in CachePool objects.
func (s storage) values(ca []byte, client pki.Pair) driver.M {
	v := driver.ChartValues(s.address, string(ca), string(client.Cert), string(client.Key))
	// Not on the control plane, which has neither the images nor a disk.
	v["node"] = driver.M{"tolerations": []any{}, "udevRule": true}
	// The API server reaches the scheduling webhook on every network that way.
	v["controller"] = driver.M{"hostNetwork": true}
	return v
}
