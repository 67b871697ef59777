package agentapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// ErrAgent is returned for an answer that is no success.
var ErrAgent = errors.New("agent refused the request")

// Dial connects to an address in the lab's network.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Client talks to the agent of one guest.
type Client struct {
	http  *http.Client
	base  string
	token string
}

// NewClient returns a client for the agent at ip:port.
func NewClient(dial Dial, address, token string) *Client {
	return &Client{
		http:  &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
		base:  "http://" + address,
		token: token,
	}
}

func (c *Client) do(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		msg, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return nil, fmt.Errorf("%w: %s: %s", ErrAgent, resp.Status, bytes.TrimSpace(msg))
	}
	return resp, nil
}

// Status asks how far the guest is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	resp, err := c.do(ctx, http.MethodGet, StatusPath, nil)
	if err != nil {
		return Status{}, err
	}
	defer resp.Body.Close()
	var s Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return Status{}, fmt.Errorf("decode status: %w", err)
	}
	return s, nil
}

// Restart ends a service, which the agent then starts again.
func (c *Client) Restart(ctx context.Context, service string) error {
	return c.post(ctx, RestartPath+service)
}

// Stop ends a service, which runs no more until Start. It may be repeated.
func (c *Client) Stop(ctx context.Context, service string) error {
	return c.post(ctx, StopPath+service)
}

// Start lets a service run that was stopped. It may be repeated.
func (c *Client) Start(ctx context.Context, service string) error {
	return c.post(ctx, StartPath+service)
}

// PowerOff ends the guest in order.
func (c *Client) PowerOff(ctx context.Context) error { return c.post(ctx, PowerOffPath) }

func (c *Client) post(ctx context.Context, path string) error {
	resp, err := c.do(ctx, http.MethodPost, path, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Exec runs a command and returns its exit code. When ctx ends, the agent kills
// the command.
func (c *Client) Exec(ctx context.Context, r ExecRequest, stdout, stderr io.Writer) (int, error) {
	resp, err := c.do(ctx, http.MethodPost, ExecPath, r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return ReadFrames(resp.Body, stdout, stderr)
}
