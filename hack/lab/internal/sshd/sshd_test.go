package sshd

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"golang.org/x/crypto/ssh"
)

func TestMeaning(t *testing.T) {
	tests := map[string]struct {
		act     Act
		service string
	}{
		"systemctl stop kubelet":                                {Stop, "kubelet"},
		"systemctl start kubelet":                               {Start, "kubelet"},
		"systemctl show kubelet --property ActiveState --value": {Show, "kubelet"},
		"systemctl show kubelet --property MainPID":             {Shell, ""},
		"systemctl stop kubelet containerd":                     {Shell, ""},
		"systemctl restart kubelet":                             {Shell, ""},
		"systemctl":                                             {Shell, ""},
		"sudo --version":                                        {Shell, ""},
		"mount | grep x":                                        {Shell, ""},
	}
	for command, want := range tests {
		if act, service := Meaning(command); act != want.act || service != want.service {
			t.Errorf("%q: %v of %q, want %v", command, act, service, want)
		}
	}
}

func newKey(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// serve starts a bastion with one node, 10.0.0.1, and returns its address.
func serve(t *testing.T, key ssh.Signer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{
		Config: OnlyFor(key),
		Node:   func(address string) (string, bool) { return "a", address == "10.0.0.1" },
		Run: func(_ context.Context, node, command string, stdout, stderr io.Writer) (int, error) {
			fmt.Fprintf(stdout, "%s: %s", node, command)
			fmt.Fprint(stderr, "err")
			if command == "fail" {
				return 0, errors.New("cannot")
			}
			return len(command), nil
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func config(key ssh.Signer) *ssh.ClientConfig {
	return &ssh.ClientConfig{User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()}
}

// run does what Kubernetes' tests do to run a command behind a bastion.
func run(t *testing.T, bastion *ssh.Client, key ssh.Signer, command string) (stdout, stderr string, err error) {
	t.Helper()
	conn, err := bastion.Dial("tcp", "10.0.0.1:22")
	if err != nil {
		t.Fatal(err)
	}
	c, channels, requests, err := ssh.NewClientConn(conn, "10.0.0.1:22", config(key))
	if err != nil {
		t.Fatal(err)
	}
	client := ssh.NewClient(c, channels, requests)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	var bout, berr bytes.Buffer
	session.Stdout, session.Stderr = &bout, &berr
	err = session.Run(command)
	return bout.String(), berr.String(), err
}

func TestServer(t *testing.T) {
	key := newKey(t)
	address := serve(t, key)
	if _, err := ssh.Dial("tcp", address, config(newKey(t))); err == nil {
		t.Error("a stranger's key is accepted")
	}
	bastion, err := ssh.Dial("tcp", address, config(key))
	if err != nil {
		t.Fatal(err)
	}
	defer bastion.Close()
	if _, err := bastion.NewSession(); err == nil {
		t.Error("the bastion itself runs commands")
	}
	for _, address := range []string{"10.0.0.2:22", "10.0.0.1:23"} {
		if _, err := bastion.Dial("tcp", address); err == nil {
			t.Errorf("it leads to %s", address)
		}
	}
	for command, want := range map[string]int{"": 0, "abc": 3, "fail": 255} {
		stdout, stderr, err := run(t, bastion, key, command)
		code := 0
		if exit := (*ssh.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitStatus()
		} else if err != nil {
			t.Fatal(err)
		}
		wantErr := "err"
		if command == "fail" {
			wantErr = "errcannot\n"
		}
		if code != want || stdout != "a: "+command || stderr != wantErr {
			t.Errorf("%q: status %d, %q, %q", command, code, stdout, stderr)
		}
	}
}
