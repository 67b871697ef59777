// Command lint checks Go code: all of staticcheck, some more analyzers, this
// project's own rules (package house), and the conventions of API types (package
// apitypes). It is a module of its own so that what it is built from stays out of
// the project's requirements.
//
// Flags and `//lint:ignore CHECK reason` are those of staticcheck.
package main

import (
	"fmt"
	"os"

	"codeberg.org/polyfloyd/go-errorlint/errorlint"
	"github.com/timonwong/loggercheck"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"honnef.co/go/tools/lintcmd"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"

	"github.com/nearflash/nearflash/hack/tools/lint/apitypes"
	"github.com/nearflash/nearflash/hack/tools/lint/house"
)

func main() {
	cmd := lintcmd.NewCommand("lint")
	cmd.ParseFlags(os.Args[1:])
	cmd.AddAnalyzers(staticcheck.Analyzers...)
	cmd.AddAnalyzers(simple.Analyzers...)
	cmd.AddAnalyzers(stylecheck.Analyzers...)
	cmd.AddAnalyzers(unused.Analyzer)
	cmd.AddBareAnalyzers(errorlint.NewAnalyzer(), loggercheck.NewAnalyzer(), nilness.Analyzer)
	cmd.AddBareAnalyzers(house.Analyzers()...)
	cmd.AddBareAnalyzers(apitypes.Analyzers()...)
	kubeAPI, err := apitypes.KubeAPI()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cmd.AddBareAnalyzers(kubeAPI...)
	cmd.Run()
}
