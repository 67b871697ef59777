package kubectl

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/pkg/version"
)

type versionOptions struct {
	*Factory

	format string
}

// versionReport is what version prints.
type versionReport struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

func newVersion(f *Factory) *cobra.Command {
	o := &versionOptions{Factory: f}
	cmd := &cobra.Command{
		Use:               "version",
		Short:             "Print the version of the plugin",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              run(o),
	}
	cmd.Flags().StringVarP(&o.format, "output", "o", "", "Output format. One of: (json, yaml).")
	return cmd
}

// Complete implements options.
func (o *versionOptions) Complete(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("version takes no arguments: leave out %s", args[0])
	}
	return nil
}

// Validate implements options.
func (o *versionOptions) Validate() error { return checkPlain(o.format) }

// Run implements options.
func (o *versionOptions) Run(context.Context) error {
	r := versionReport{
		Version: version.Version, Commit: version.Commit, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if o.format != "" {
		return plain(o.Out, o.format, r)
	}
	_, err := fmt.Fprintf(o.Out, "%s %s (%s)\n", name, r.Version, r.Commit)
	return err
}
