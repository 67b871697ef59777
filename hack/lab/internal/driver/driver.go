// Package driver has what every cluster for tests says to the driver, whatever it is
// made of: the storage server's configuration and the chart's values.
package driver

import (
	"fmt"

	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// Where the storage server has its files.
const (
	ConfigDir = "/etc/nearflash-target"
	CertFile  = ConfigDir + "/tls.crt"
	KeyFile   = ConfigDir + "/tls.key"
	CAFile    = ConfigDir + "/client-ca.crt"
)

// M is an object of JSON, which is YAML.
type M = map[string]any

// TargetConfiguration is nearflash-target's, of a storage server with this address,
// name and volume group. The keys are those of deploy/target/config.example.yaml.
func TargetConfiguration(address, server, group string) M {
	return M{
		"listen":   hostPort(address, plan.TargetPort),
		"tls":      M{"certFile": CertFile, "keyFile": KeyFile, "clientCAFile": CAFile, "allowedClientNames": []string{pki.TargetClientName}},
		"serverID": server, "volumeGroup": group, "thinPool": plan.ThinPool,
		"portals":  []string{hostPort(address, plan.PortalPort)},
		"stateDir": "/var/lib/nearflash-target",
	}
}

// ChartValues are the chart's for a storage server with this address, the certificates
// in PEM; the caller adds its own.
func ChartValues(address, ca, cert, key string) M {
	return M{
		"logLevel": 4,
		"images":   plan.Sidecars(),
		"target":   server(address, ca, cert, key),
		"storageClasses": []M{
			{"name": "nearflash", "default": true, "parameters": M{
				"backend": "iscsi", "cacheMode": "writethrough", "cacheSize": "1Gi",
			}},
			{"name": "nearflash-writeback", "parameters": M{
				"backend": "iscsi", "cacheMode": "writeback", "cacheSize": "1Gi", "acceptDirtyLoss": "node-loss",
			}},
		},
	}
}

// NamedTarget is an entry of the chart's targets: a storage server with a name and this address.
func NamedTarget(name, address, ca, cert, key string) M {
	target := server(address, ca, cert, key)
	target["name"] = name
	return target
}

func server(address, ca, cert, key string) M {
	return M{"address": hostPort(address, plan.TargetPort), "tls": M{"ca": ca, "cert": cert, "key": key}}
}

func hostPort(address string, port int) string { return fmt.Sprintf("%s:%d", address, port) }
