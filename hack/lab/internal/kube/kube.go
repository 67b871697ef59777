// Package kube asks the lab's API server the few things that the lab itself
// wants to know. It is plain HTTP and JSON: the lab program stays small and does
// not depend on a version of the client libraries.
package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"time"
)

// ErrAPI is returned for an answer of the API server that is no success.
var ErrAPI = errors.New("API server refused the request")

// Files name the PEM files that a client identifies itself and the server with.
type Files struct{ CA, Cert, Key string }

// Client asks one API server.
type Client struct {
	http *http.Client
	base string
}

// NewClient returns a client for the server at that URL, reached through dial.
func NewClient(dial func(ctx context.Context, network, address string) (net.Conn, error), server string, f Files) (*Client, error) {
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("API client: %s has no certificate", f.CA)
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	return &Client{base: server, http: &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			DialContext: dial,
			// One connection for each request: the program that asks lives for
			// seconds only.
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		},
	}}, nil
}

func (c *Client) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s: %s: %s", ErrAPI, path, resp.Status, bytes.TrimSpace(body[:min(len(body), 512)]))
	}
	return body, nil
}

// Ready returns nil when the server says that it is.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.get(ctx, "/readyz")
	return err
}

// Node is what matters here of a Node object.
type Node struct {
	Name string
	// Ready is the condition of that name.
	Ready bool
	// Reason is the condition's message when it does not hold.
	Reason string
	// BootID is that of the boot which the kubelet reported last.
	BootID string
	// Taints are the keys of all taints.
	Taints []string
}

// outOfService is a taint that a person sets on a node that is off, and takes away when it is back
// (https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/).
const outOfService = "node.kubernetes.io/out-of-service"

// Usable tells whether the kubelet of that boot has reported the node ready and
// nothing but that taint keeps pods away. An empty bootID means any boot.
func (n Node) Usable(bootID string) bool {
	matters := func(key string) bool { return key != outOfService }
	return n.Ready && !slices.ContainsFunc(n.Taints, matters) && (bootID == "" || bootID == n.BootID)
}

// Nodes lists the cluster's nodes.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	body, err := c.get(ctx, "/api/v1/nodes")
	if err != nil {
		return nil, err
	}
	return parseNodes(body)
}

// parseNodes reads a NodeList (core/v1).
func parseNodes(body []byte) ([]Node, error) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				Taints []struct {
					Key string `json:"key"`
				} `json:"taints"`
			} `json:"spec"`
			Status struct {
				Conditions []struct {
					Type    string `json:"type"`
					Status  string `json:"status"`
					Message string `json:"message"`
				} `json:"conditions"`
				NodeInfo struct {
					BootID string `json:"bootID"`
				} `json:"nodeInfo"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("list of nodes: %w", err)
	}
	out := make([]Node, 0, len(list.Items))
	for _, item := range list.Items {
		n := Node{Name: item.Metadata.Name, BootID: item.Status.NodeInfo.BootID, Reason: "no condition Ready"}
		for _, t := range item.Spec.Taints {
			n.Taints = append(n.Taints, t.Key)
		}
		for _, c := range item.Status.Conditions {
			if c.Type == "Ready" {
				n.Ready, n.Reason = c.Status == "True", c.Message
			}
		}
		out = append(out, n)
	}
	return out, nil
}

// CSINodes lists the nodes on which a CSI driver has registered.
func (c *Client) CSINodes(ctx context.Context, driver string) ([]string, error) {
	body, err := c.get(ctx, "/apis/storage.k8s.io/v1/csinodes")
	if err != nil {
		return nil, err
	}
	return parseCSINodes(body, driver)
}

// parseCSINodes reads a CSINodeList (storage/v1).
func parseCSINodes(body []byte, driver string) ([]string, error) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				Drivers []struct {
					Name string `json:"name"`
				} `json:"drivers"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("list of CSI nodes: %w", err)
	}
	var out []string
	for _, item := range list.Items {
		for _, d := range item.Spec.Drivers {
			if d.Name == driver {
				out = append(out, item.Metadata.Name)
			}
		}
	}
	return out, nil
}
