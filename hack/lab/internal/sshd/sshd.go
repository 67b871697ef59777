// Package sshd serves SSH as Kubernetes' own tests ask for it: one command a session, as
// root of a node. The nodes have no SSH; one server on the host is the bastion that the tests
// go through (KUBE_SSH_BASTION), and answers there for every node.
package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Port is that of SSH on every node.
const Port = 22

// Server is the bastion.
type Server struct {
	// Config says who may connect, and proves who the server is.
	Config *ssh.ServerConfig
	// Node returns the name of the node with an address, false if there is none.
	Node func(address string) (name string, ok bool)
	// Run runs a command on a node, and returns its exit status.
	Run func(ctx context.Context, node, command string, stdout, stderr io.Writer) (int, error)
}

// ErrChannel is returned for what the tests do not ask for.
var ErrChannel = errors.New("not served")

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = l.Close() })
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("ssh: %w", err)
		}
		wg.Go(func() { s.connection(ctx, conn, "") })
	}
}

// connection serves the bastion, or a node behind it. One that does not prove who it is, or goes
// away, is the client's to tell of.
func (s *Server) connection(ctx context.Context, conn net.Conn, node string) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, s.Config)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { ssh.DiscardRequests(requests) })
	for c := range channels {
		wg.Go(func() {
			if err := s.channel(ctx, c, node); err != nil {
				_ = c.Reject(ssh.Prohibited, err.Error())
			}
		})
	}
}

// channel serves a channel, or says why not.
func (s *Server) channel(ctx context.Context, c ssh.NewChannel, node string) error {
	switch {
	case node == "" && c.ChannelType() == "direct-tcpip":
		return s.forward(ctx, c)
	case node != "" && c.ChannelType() == "session":
		ch, requests, err := c.Accept()
		if err != nil {
			return err
		}
		s.session(ctx, ch, requests, node)
		return nil
	default:
		return fmt.Errorf("%w: channel %s", ErrChannel, c.ChannelType())
	}
}

// forward takes a connection to a node's SSH, which is this server again.
func (s *Server) forward(ctx context.Context, c ssh.NewChannel) error {
	// RFC 4254, 7.2.
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(c.ExtraData(), &to); err != nil {
		return err
	}
	node, ok := s.Node(to.Host)
	if !ok || to.Port != Port {
		return fmt.Errorf("%w: no node at %s", ErrChannel, net.JoinHostPort(to.Host, strconv.FormatUint(uint64(to.Port), 10)))
	}
	ch, requests, err := c.Accept()
	if err != nil {
		return err
	}
	go ssh.DiscardRequests(requests)
	inside, outside := net.Pipe()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, way := range [][2]io.ReadWriteCloser{{ch, outside}, {outside, ch}} {
		wg.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].Close()
		})
	}
	s.connection(ctx, inside, node)
	return nil
}

// session runs the one command that a session may have.
func (s *Server) session(ctx context.Context, ch ssh.Channel, requests <-chan *ssh.Request, node string) {
	defer ch.Close()
	for r := range requests {
		var asked struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &asked) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		code, err := s.Run(ctx, node, asked.Command, ch, ch.Stderr())
		if err != nil {
			// 255 is ssh's own.
			fmt.Fprintln(ch.Stderr(), err)
			code = 255
		}
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(code)}))
		return
	}
}

// OnlyFor lets one key in, which is the server's own too: the lab has no other that the client
// could check.
func OnlyFor(key ssh.Signer) *ssh.ServerConfig {
	c := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, got ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(got.Marshal(), key.PublicKey().Marshal()) {
			return nil, ErrKey
		}
		return nil, nil
	}}
	c.AddHostKey(key)
	return c
}

// ErrKey is returned for a key that is not the tests'.
var ErrKey = errors.New("not the key of this lab")
