package kubectl

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/podexec"
)

// driverName is the CSI driver of nearflash in PersistentVolumes, CSINodes and
// StorageClasses.
const driverName = driver.Name

// Limits of the client's own throttling, in requests per second: one command
// makes a few dozen requests at most.
const (
	clientQPS   = 50
	clientBurst = 100
)

// Clock tells and waits.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

// Factory is what commands need of the world.
type Factory struct {
	genericiooptions.IOStreams

	// Config holds kubectl's own flags: kubeconfig, context, namespace.
	Config *genericclioptions.ConfigFlags
	// Client returns a client that reads from the API server itself. It is called
	// once for a command.
	Client func() (client.Client, error)
	// Executor returns what runs commands in pods. It is called once for a command.
	Executor func() (Executor, error)
	Clock    Clock
	// Interruptible returns a context that also ends when the user interrupts the program from now on.
	Interruptible func(context.Context) (context.Context, context.CancelFunc)
	// Interactive tells that someone can answer a question on In, Terminal that
	// Out is a screen.
	Interactive, Terminal bool
}

// NewFactory returns the Factory of the process: its standard streams and the
// cluster of the kubeconfig.
func NewFactory() *Factory {
	f := &Factory{
		IOStreams:   genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
		Config:      genericclioptions.NewConfigFlags(true),
		Clock:       clock.RealClock{},
		Interactive: term.IsTerminal(int(os.Stdin.Fd())),
		Terminal:    term.IsTerminal(int(os.Stdout.Fd())),
	}
	f.Client, f.Executor = f.newClient, f.newExecutor
	f.Interruptible = func(ctx context.Context) (context.Context, context.CancelFunc) {
		return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	}
	return f
}

// restConfig is the way to the cluster that kubectl's flags name.
func (f *Factory) restConfig() (*rest.Config, error) {
	config, err := f.Config.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("no way to a cluster: %w; name a kubeconfig with --kubeconfig or KUBECONFIG", err)
	}
	config.QPS, config.Burst = clientQPS, clientBurst
	return config, nil
}

func (f *Factory) newExecutor() (Executor, error) {
	config, err := f.restConfig()
	if err != nil {
		return nil, err
	}
	return podexec.New(config)
}

func (f *Factory) newClient() (client.Client, error) {
	config, err := f.restConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	return c, nil
}

// newScheme returns the types of all objects that commands read.
func newScheme() (*runtime.Scheme, error) {
	scheme, err := kube.NewScheme()
	if err != nil {
		return nil, err
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	return scheme, nil
}

// options are the three steps of a command.
type options interface {
	// Complete turns words and flags into values.
	Complete(args []string) error
	// Validate refuses what cannot be meant. It asks nobody.
	Validate() error
	// Run does the work.
	Run(ctx context.Context) error
}

// run adapts options to cobra.
func run(o options) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := o.Complete(args); err != nil {
			return err
		}
		if err := o.Validate(); err != nil {
			return err
		}
		return o.Run(cmd.Context())
	}
}

// session is a connection to a cluster with a namespace to look in.
type session struct {
	client    client.Client
	namespace string
}

// connect is the part of Complete that all commands have in common.
func (f *Factory) connect() (session, error) {
	namespace, _, err := f.Config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return session{}, fmt.Errorf("kubeconfig: %w: correct --kubeconfig, --context or KUBECONFIG", err)
	}
	c, err := f.Client()
	return session{client: c, namespace: namespace}, err
}
