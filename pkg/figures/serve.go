package figures

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/httpserve"
)

const (
	// path is what is asked for.
	path = "/figures"
	// headerTimeout bounds how long a client may take to send a request's head, and sendTimeout
	// how long until it has the answer.
	headerTimeout, sendTimeout = 5 * time.Second, 15 * time.Second
	// maxRefusal is what is read of the text of a refusal.
	maxRefusal = 1 << 10
)

// Source measures now. An error is that nothing could be measured.
type Source func(ctx context.Context) (Answer, error)

// Serve answers who asks until ctx ends. Others are what else is served there, by patterns of a ServeMux.
// It closes the listener.
func Serve(ctx context.Context, listener net.Listener, source Source, others map[string]http.Handler) error {
	mux := http.NewServeMux()
	for pattern, h := range others {
		mux.Handle(pattern, h)
	}
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { answer(w, r, source) })
	s := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, WriteTimeout: sendTimeout,
		ErrorLog: httpserve.ErrorLog(func(reason string) {
			klog.FromContext(ctx).V(2).Info("Connection to the socket of figures failed", "reason", reason)
		}),
	}
	s.SetKeepAlivesEnabled(false) // each who asks is a process that asks once
	return httpserve.Run(ctx, listener, s)
}

func answer(w http.ResponseWriter, r *http.Request, source Source) {
	a, err := source(r.Context())
	var text []byte
	if err == nil {
		text, err = Encode(a)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(text); err != nil {
		klog.FromContext(r.Context()).V(4).Info("Figures not sent", "reason", err.Error())
	}
}

// Ask returns the answer of the plugin that serves at a socket, as it was sent.
func Ask(ctx context.Context, socket string) ([]byte, error) {
	resp, err := Call(ctx, socket, http.MethodGet, path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the plugin answers %s: %s", resp.Status, Refusal(resp))
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the plugin's answer: %w", err)
	}
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("the plugin's answer has more than %d bytes", MaxBytes)
	}
	return text, nil
}

// Call sends a request without a body to the plugin that serves at a socket. The caller closes the body of
// the response.
func Call(ctx context.Context, socket, method, target string) (*http.Response, error) {
	var d net.Dialer
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", socket)
	}}
	// The host is a form: the socket says who is asked.
	req, err := http.NewRequestWithContext(ctx, method, "http://plugin"+target, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the plugin: %w", err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if form := new(url.Error); errors.As(err, &form) {
		err = form.Err // without an address that is none
	}
	if err != nil {
		return nil, fmt.Errorf("ask the plugin: %w", err)
	}
	return resp, nil
}

// Refusal is what there is of the reason in a response that is none.
func Refusal(resp *http.Response) string {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	return strings.TrimSpace(string(text))
}
