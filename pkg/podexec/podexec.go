// Package podexec runs commands in containers, by way of the API server and the kubelet, as
// kubectl exec does: over a WebSocket, or over SPDY where there is none.
package podexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// ErrForbidden is what an account gets that may not run commands in a pod.
var ErrForbidden = errors.New("running commands in the pod is forbidden")

// Command is what is run.
type Command struct {
	Namespace, Pod string
	// Container may be empty: the pod's first.
	Container string
	// Args has the program first. No shell comes between.
	Args []string
	// Stdin, Stdout and Stderr may be nil.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Executor runs commands with the rights of an account. It is safe for concurrent use.
type Executor struct {
	// Config is how the API server is reached, and Core a client of its group "".
	Config *rest.Config
	Core   rest.Interface
}

// New returns an Executor of a configuration.
func New(config *rest.Config) (Executor, error) {
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return Executor{}, fmt.Errorf("client of the API server: %w", err)
	}
	return Executor{Config: config, Core: core.RESTClient()}, nil
}

// Run returns when the command has ended. Errors: ErrForbidden; a CodeExitError of
// k8s.io/client-go/util/exec for a command that fails; the context's.
func (e Executor) Run(ctx context.Context, c Command) error {
	if err := e.run(ctx, c); err != nil {
		return fmt.Errorf("exec in %s: %w", c.Pod, err)
	}
	return nil
}

func (e Executor) run(ctx context.Context, c Command) error {
	at := e.Core.Post().Resource("pods").Namespace(c.Namespace).Name(c.Pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: c.Container, Command: c.Args, Stdin: c.Stdin != nil, Stdout: c.Stdout != nil, Stderr: c.Stderr != nil,
		}, scheme.ParameterCodec).URL()
	streams := remotecommand.StreamOptions{Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr}
	ws, err := remotecommand.NewWebSocketExecutor(e.Config, http.MethodGet, at.String())
	if err != nil {
		return err
	}
	err = ws.StreamWithContext(ctx, streams)
	// Nothing has been run then.
	if httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) {
		return e.overSPDY(ctx, at, streams)
	}
	return err
}

// overSPDY is for API servers without WebSockets, and for accounts that may create pods/exec and
// not get it, which WebSockets took before Kubernetes 1.35.
func (e Executor) overSPDY(ctx context.Context, at *url.URL, streams remotecommand.StreamOptions) error {
	spdy, err := remotecommand.NewSPDYExecutor(e.Config, http.MethodPost, at)
	if err != nil {
		return err
	}
	err = spdy.StreamWithContext(ctx, streams)
	// Of what the API server answers, SPDY keeps the text alone.
	if err != nil && strings.Contains(err.Error(), "is forbidden: ") {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return err
}
