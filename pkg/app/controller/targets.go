package controller

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/pkg/target/targetclient"
	"github.com/nearflash/nearflash/pkg/volume"
)

// target is an entry of the file of --targets: a storage server besides the default one.
type target struct {
	// Name is what a StorageClass and the records of volumes have.
	Name string `json:"name"`
	// Address and ServerName are those of targetclient.Config, CA, Cert and Key its files.
	Address    string `json:"address"`
	ServerName string `json:"serverName"`
	CA         string `json:"ca"`
	Cert       string `json:"cert"`
	Key        string `json:"key"`
}

// targets returns the storage servers by name, "" being the one of --target-address. The error
// names everything that is wrong with the file.
func (c *Config) targets() (map[string]targetclient.Config, error) {
	out, at := map[string]targetclient.Config{}, map[string]string{}
	if c.Target.Address != "" {
		out[""], at[strings.ToLower(c.Target.Address)] = c.Target, "--target-address"
	}
	if c.TargetsFile == "" {
		return out, nil
	}
	text, err := os.ReadFile(c.TargetsFile)
	if err != nil {
		return nil, fmt.Errorf("--targets: %w", err)
	}
	var list []target
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, fmt.Errorf("--targets %s: accepted is a list of entries with name, address, serverName, ca, cert and key: %w", c.TargetsFile, err)
	}
	var errs []error
	for i, t := range list {
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("--targets %s, entry %d: "+format, append([]any{c.TargetsFile, i + 1}, args...)...))
		}
		if !volume.IsTarget(t.Name) {
			wrong("name %q: accepted are %s", t.Name, volume.TargetNames)
		} else if _, twice := out[t.Name]; twice {
			wrong("name %q is another entry's; accepted is one that no other has", t.Name)
		}
		address := strings.ToLower(t.Address)
		if other := at[address]; t.Address == "" {
			wrong("address is missing; accepted is host:port of nearflash-target")
		} else if other != "" {
			wrong("address %q is that of %s; accepted is one that no other has", t.Address, other)
		}
		for _, f := range []struct{ key, value string }{{"ca", t.CA}, {"cert", t.Cert}, {"key", t.Key}} {
			if f.value == "" {
				wrong("%s is missing; accepted is a PEM file: the storage server accepts mutual TLS alone", f.key)
			}
		}
		at[address] = fmt.Sprintf("entry %d", i+1)
		out[t.Name] = targetclient.Config{Address: t.Address, ServerName: t.ServerName, CAFile: t.CA, CertFile: t.Cert, KeyFile: t.Key}
	}
	return out, errors.Join(errs...)
}
