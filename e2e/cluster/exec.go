package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// Exec runs a bash script in a container and returns its standard output. An
// empty container name means the pod's first.
func (c *Cluster) Exec(ctx context.Context, namespace, pod, container, script string) (string, error) {
	var stdout bytes.Buffer
	err := c.ExecStream(ctx, namespace, pod, container, script, &stdout)
	return stdout.String(), err
}

// ExecStream is Exec with the output written as it comes.
func (c *Cluster) ExecStream(ctx context.Context, namespace, pod, container, script string, stdout io.Writer) error {
	return c.ExecPipe(ctx, namespace, pod, container, script, nil, stdout)
}

// ExecPipe is ExecStream with standard input, which may be nil for none.
func (c *Cluster) ExecPipe(ctx context.Context, namespace, pod, container, script string, stdin io.Reader, stdout io.Writer) error {
	url := c.Clients.CoreV1().RESTClient().Post().
		Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container, Command: []string{"bash", "-c", script}, Stdin: stdin != nil, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	ws, err := remotecommand.NewWebSocketExecutor(c.REST, http.MethodGet, url.String())
	if err != nil {
		return fmt.Errorf("exec in %s: %w", pod, err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.REST, http.MethodPost, url)
	if err != nil {
		return fmt.Errorf("exec in %s: %w", pod, err)
	}
	executor, err := remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return fmt.Errorf("exec in %s: %w", pod, err)
	}
	var stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: &stderr}); err != nil {
		return fmt.Errorf("exec in %s: %w: %s", pod, err, tail(stderr.String()))
	}
	return nil
}
