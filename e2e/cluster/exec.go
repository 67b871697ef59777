package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/nearflash/nearflash/pkg/podexec"
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
	var stderr bytes.Buffer
	err := podexec.Executor{Config: c.REST, Core: c.Clients.CoreV1().RESTClient()}.Run(ctx, podexec.Command{
		Namespace: namespace, Pod: pod, Container: container, Args: []string{"bash", "-c", script}, Stdin: stdin, Stdout: stdout, Stderr: &stderr,
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, tail(stderr.String()))
	}
	return nil
}
