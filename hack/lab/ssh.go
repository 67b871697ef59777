package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/nearflash/nearflash/hack/lab/internal/sshd"
)

// sshAddress is where the bastion listens, in the lab's network alone.
const sshAddress = "127.0.0.1:2222"

func newSSH(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "ssh KEYFILE",
		Short: "Answer over SSH for all guests, as Kubernetes' own tests ask for it",
		Long: `Listens at ` + sshAddress + ` of the lab's network, as a bastion (KUBE_SSH_BASTION), until
it is ended. KEYFILE is made when it listens, and has the one key that is let in
(KUBE_SSH_KEY_PATH). Each session runs one command, as root of the guest whose address is
asked for; systemctl stops, starts and shows the services of the guest's agent.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.labUp()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			_, private, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				return fmt.Errorf("key: %w", err)
			}
			signer, err := ssh.NewSignerFromKey(private)
			if err != nil {
				return fmt.Errorf("key: %w", err)
			}
			return lab.SSH(ctx, &sshd.Server{Config: sshd.OnlyFor(signer)}, sshAddress, func() error { return writeKey(args[0], private) })
		},
	}
}

// writeKey makes a file that is there whole or not at all: who waits for it reads it then.
func writeKey(path string, private ed25519.PrivateKey) error {
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return fmt.Errorf("key: %w", err)
	}
	if err := os.WriteFile(path+".new", pem.EncodeToMemory(block), 0o600); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	return os.Rename(path+".new", path)
}
