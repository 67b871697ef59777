package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
	"github.com/nearflash/nearflash/hack/lab/internal/sshd"
)

// SSH answers for the nodes to Kubernetes' own tests, at an address of the lab's network, until
// ctx ends. started is called with it when the server listens.
func (l *Lab) SSH(ctx context.Context, server *sshd.Server, address string, started func() error) error {
	server.Node = func(address string) (string, bool) {
		i := slices.IndexFunc(plan.Nodes(), func(n plan.Node) bool { return n.IP == address })
		if i < 0 {
			return "", false
		}
		return plan.Nodes()[i].Name, true
	}
	server.Run = l.command
	var listener net.Listener
	err := l.NS.Do(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		return err
	})
	if err != nil {
		return fmt.Errorf("ssh: %w", err)
	}
	if err := started(); err != nil {
		return err
	}
	return server.Serve(ctx, listener)
}

// command runs a command line on a node. It is bash that says "command not found", which the
// tests look for.
func (l *Lab) command(ctx context.Context, node, line string, stdout, stderr io.Writer) (int, error) {
	act, service := sshd.Meaning(line)
	if act == sshd.Shell {
		return l.Exec(ctx, node, agentapi.ExecRequest{Argv: []string{"bash", "-c", line}}, stdout, stderr)
	}
	agent, err := l.Agent(node)
	if err != nil {
		return 0, err
	}
	switch act {
	case sshd.Stop:
		err = agent.Stop(ctx, service)
	case sshd.Start:
		err = agent.Start(ctx, service)
	case sshd.Show:
		var s agentapi.Status
		if s, err = agent.Status(ctx); err != nil {
			break
		}
		state := sshd.Inactive
		if slices.Contains(s.Running, service) {
			state = sshd.Active
		}
		_, err = fmt.Fprintln(stdout, state)
	}
	return 0, err
}
