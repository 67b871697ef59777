package kubectl

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// name is how the program is called: kubectl finds kubectl-nearflash on the PATH.
const name = "kubectl nearflash"

// New returns the plugin's root command.
func New(f *Factory) *cobra.Command {
	root := &cobra.Command{
		Use:         "kubectl-nearflash",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: name},
		Short:       "Look at and change the SSD caches of nearflash volumes",
		Long: `Look at and change the SSD caches of nearflash volumes.

A volume is named by its claim in the namespace (-n), or as pv/NAME or cvol/NAME.`,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			hint := ""
			if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
				hint = fmt.Sprintf(" (did you mean %s?)", strings.Join(similar, " or "))
			}
			return fmt.Errorf("there is no command %q%s: `%s --help` lists them", args[0], hint, name)
		},
	}
	root.SuggestionsMinimumDistance = 2
	root.SetIn(f.In)
	root.SetOut(f.Out)
	root.SetErr(f.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see `%s --help`", err, cmd.CommandPath())
	})
	root.AddCommand(
		newList(f), newTop(f), newDescribe(f), newAdvise(f), newMigrations(f),
		newFlush(f), newScrub(f), newMode(f), newResize(f), newPreload(f), newMigrate(f), newDrop(f), newInvalidate(f), newAbandon(f), newDiscard(f), newTakeover(f),
		newAdopt(f), newRelease(f),
		newPools(f), newDoctor(f), newBench(f), newVersion(f), newCompletion(f),
	)
	root.CompletionOptions.DisableDefaultCmd = true
	f.Config.AddFlags(root.PersistentFlags())
	return root
}

// Main runs the plugin and returns the exit status of the process.
func Main() int {
	// The libraries below log for servers, not for a person at a terminal.
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return Execute(ctx, NewFactory(), os.Args[1:])
}

// Execute runs the plugin with arguments and returns the exit status. An error is
// printed as one line.
func Execute(ctx context.Context, f *Factory, args []string) int {
	root := New(f)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(f.ErrOut, "error: %s%s\n", oneLine(err.Error()), remedy(err))
	return 1
}

// remedy says what helps against failures that every request may have.
func remedy(err error) string {
	var unreachable *url.Error
	switch {
	case errors.Is(err, context.Canceled):
		return ": interrupted; what was asked for stays asked for"
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return ": ask for the permissions in docs/reference/kubectl.md, or use another context"
	case errors.As(err, &unreachable):
		return ": see whether `kubectl cluster-info` reaches the cluster, or choose another with --context"
	}
	return ""
}

// oneLine joins the lines of a message; those of the API server may have several.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// wantVolume checks that a command got one volume and n more words.
func wantVolume(cmd *cobra.Command, n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == n+1 {
			return nil
		}
		return fmt.Errorf("%s takes %d argument(s), got %d: write `%s %s`", cmd.Name(), n+1, len(args), name, cmd.Use)
	}
}
