// Command lab runs a real Kubernetes cluster for this project on one Linux
// machine: a control plane as host processes, two nodes and a storage server as
// User-Mode Linux guests. See README.md beside it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/hack/lab/artifact"
	"github.com/nearflash/nearflash/hack/lab/internal/cluster"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// exitCode is an exit status that is not this program's own failure.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := newRoot().ExecuteContext(ctx)
	stop()
	var code exitCode
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

// options are what all commands share.
type options struct{ name string }

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:           "lab",
		Short:         "A real Kubernetes cluster with real block devices, on one Linux machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&o.name, "name", os.Getenv(idEnv),
		"the lab's identity (default: derived from the checkout's path; environment: "+idEnv+")")
	root.AddCommand(
		newUp(o), newDown(o), newStatus(o), newLogs(o),
		newRun(o), newKubeconfig(o), newExec(o), newKill(o), newStart(o), newTarget(o), newMachine(o), newDisk(o), newOrigin(o), newSSH(o), newNet(o), newControl(o),
		newImages(o), newValues(o), newGuest(o), artifact.Command(),
	)
	return root
}

// idEnv names the lab to programs that `lab run` runs, and so to this one when
// they call it.
const idEnv = "NEARFLASH_LAB_ID"

// lab returns the lab that the options and the working folder mean. A lab with
// a name can be worked with from anywhere; its checkout is then known once its
// state was read, and it cannot be made.
func (o *options) lab() (*cluster.Lab, error) {
	root, err := checkout()
	if err != nil && (o.name == "" || !errors.Is(err, errNoCheckout)) {
		return nil, err
	}
	id, err := plan.ResolveID(o.name, root)
	if err != nil {
		return nil, err
	}
	return cluster.New(id, root, "", os.Stderr)
}

// labUp is lab for what needs one that is up.
func (o *options) labUp() (*cluster.Lab, error) {
	lab, err := o.lab()
	if err != nil {
		return nil, err
	}
	return lab, lab.MustBeUp()
}

// errNoCheckout is returned when there is no telling which checkout is meant.
var errNoCheckout = errors.New("the working folder is not in a checkout of nearflash")

// checkout returns the checkout that the working folder is in, with symbolic
// links resolved: one checkout has one identity.
func checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module github.com/nearflash/nearflash\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errNoCheckout
		}
		dir = parent
	}
}
