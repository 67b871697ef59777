package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// configDir is where the storage server's container has its files.
const configDir = "/etc/nearflash-target"

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

// configuration is nearflash-target's, in JSON, which is YAML. The keys are those of
// deploy/target/config.example.yaml.
func (s storage) configuration() map[string]any {
	type m = map[string]any
	return m{
		"listen": fmt.Sprintf("%s:%d", s.address, plan.TargetPort),
		"tls": m{
			"certFile": configDir + "/tls.crt", "keyFile": configDir + "/tls.key", "clientCAFile": configDir + "/client-ca.crt",
			"allowedClientNames": []string{pki.TargetClientName},
		},
		"serverID": s.server, "volumeGroup": s.group, "thinPool": plan.ThinPool, "lvmDevices": []string{s.device},
		"portals":  []string{fmt.Sprintf("%s:%d", s.address, plan.PortalPort)},
		"stateDir": "/var/lib/nearflash-target",
	}
}

// values are the chart's; all else is the chart's default. The devices of the pools
// are not among them: they differ between the nodes, and stand in CachePool objects.
func (s storage) values(ca []byte, client pki.Pair) map[string]any {
	type m = map[string]any
	return m{
		"logLevel": 4,
		"target": m{
			"address": fmt.Sprintf("%s:%d", s.address, plan.TargetPort),
			"tls":     m{"ca": string(ca), "cert": string(client.Cert), "key": string(client.Key)},
		},
		// The API server reaches the scheduling webhook on every network that way.
		"controller": m{"hostNetwork": true},
		"storageClasses": []m{
			{"name": "nearflash", "default": true, "parameters": m{
				"backend": "iscsi", "cacheMode": "writethrough", "cacheSize": "1Gi",
			}},
			{"name": "nearflash-writeback", "parameters": m{
				"backend": "iscsi", "cacheMode": "writeback", "cacheSize": "1Gi", "acceptDirtyLoss": "node-loss",
			}},
		},
	}
}
