package house

import (
	"go/ast"
	"go/types"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const module = "github.com/nearflash/nearflash/"

// fence keeps an import inside the packages that are meant to have it.
type fence struct {
	// imports lists import paths; one that ends with / stands for all below.
	imports []string
	// inside lists the packages, relative to the module, that the fence is around:
	// nothing else may import. A / at the end stands for all below.
	inside []string
	// outside, if given, turns it round: only these may not import.
	outside []string
	// tests says that test files may import.
	tests bool
	why   string
}

// fences are the layers of this project.
var fences = []fence{
	{
		imports: []string{"os/exec"},
		inside:  []string{"pkg/hostexec", "hack/", "e2e/"},
		tests:   true,
		why:     "commands are run by pkg/hostexec alone, which sets the locale and keeps secrets out of errors",
	},
	{
		imports: []string{module + "hack/"},
		inside:  []string{"hack/"},
		why:     "hack is a module of its own, above the driver's; go.work would hide that",
	},
	{
		imports: []string{"github.com/spdx/", "github.com/package-url/", "github.com/google/licensecheck"},
		inside:  []string{"hack/"},
		why:     "what makes a release is not part of it",
	},
	{
		imports: []string{"google.golang.org/grpc/codes", "google.golang.org/grpc/status"},
		// pkg/transport/csi is a client of other CSI drivers, whose answers are codes: it makes
		// errors of them, and its strict driver of tests answers with them. hack/tools/rbd is
		// such a driver.
		inside: []string{
			"pkg/driver", "pkg/target", "pkg/target/targetclient", "pkg/target/targetpb", "pkg/rpc",
			"pkg/transport/csi", "pkg/transport/csi/origintest", "hack/tools/rbd",
		},
		tests: true,
		why:   "other layers return errors of their own, and the outermost one translates",
	},
	{
		imports: []string{
			module + "pkg/attach/cachefault", module + "pkg/attach/dirtylimit", module + "pkg/attach/hotset", module + "pkg/attach/hydration", module + "pkg/attach/lease", module + "pkg/attach/stream",
		},
		outside: []string{
			"pkg/attach/cachefault", "pkg/attach/dirtylimit", "pkg/attach/hotset", "pkg/attach/hydration", "pkg/attach/lease", "pkg/attach/stream",
			"pkg/attach/layout", "pkg/attach/ssd", "pkg/attach/stack", "pkg/attach/state",
		},
		tests: true,
		why:   "the node's loops know nothing of each other: pkg/attach composes them",
	},
	{
		imports: []string{"k8s.io/", "sigs.k8s.io/", "github.com/container-storage-interface/", "google.golang.org/grpc/"},
		outside: []string{"pkg/volume"},
		why:     "the domain knows neither Kubernetes nor CSI",
	},
	{
		imports: []string{module + "api/"},
		outside: []string{
			"pkg/smart", "pkg/blockdev", "pkg/cachemap", "pkg/cachetools", "pkg/devmapper", "pkg/freeze", "pkg/hostexec", "pkg/ioerrors", "pkg/iosizes", "pkg/journal", "pkg/lvm", "pkg/mount",
			"pkg/reservation", "pkg/tracefs", "pkg/transport", "pkg/volume",
		},
		tests: true,
		why:   "the host has types of its own, and who reports translates them",
	},
	{
		imports: []string{module + "pkg/hostexec", module + "pkg/devmapper", module + "pkg/lvm", module + "pkg/attach", module + "pkg/provision"},
		outside: []string{"pkg/driver", "pkg/volume"},
		tests:   true,
		why:     "the CSI layer calls the interfaces of pkg/volume and touches no host",
	},
}

// Fences checks who imports what.
var Fences = &analysis.Analyzer{
	Name: "fences",
	Doc:  "layers import only what is theirs",
	Run: func(pass *analysis.Pass) (any, error) {
		pkg := relative(pass.Pkg.Path())
		for f, name := range written(pass) {
			for _, imp := range f.Imports {
				path, err := strconv.Unquote(imp.Path.Value)
				if err != nil {
					return nil, err
				}
				for _, fe := range fences {
					if fe.refuses(pkg, path, isTest(name)) {
						pass.Reportf(imp.Pos(), "package %s may not import %s: %s", pkg, path, fe.why)
					}
				}
			}
		}
		return nil, nil
	},
}

// relative strips the module and what go list adds to test variants.
func relative(pkgPath string) string {
	p, _, _ := strings.Cut(pkgPath, " ")
	return strings.TrimSuffix(strings.TrimPrefix(p, module), "_test")
}

func (f fence) refuses(pkg, imported string, test bool) bool {
	if !within(f.imports, imported) || (test && f.tests) {
		return false
	}
	if f.outside != nil {
		return within(f.outside, pkg)
	}
	return !within(f.inside, pkg)
}

func within(list []string, path string) bool {
	return slices.ContainsFunc(list, func(p string) bool {
		return p == path || (strings.HasSuffix(p, "/") && strings.HasPrefix(path, p))
	})
}

// CommandContext refuses exec.Command outside tests: nothing ends such a command
// when its caller gives up.
var CommandContext = &analysis.Analyzer{
	Name: "commandcontext",
	Doc:  "commands are started with exec.CommandContext",
	Run: func(pass *analysis.Pass) (any, error) {
		for f, name := range written(pass) {
			if isTest(name) {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if fn, ok := pass.TypesInfo.Uses[sel.Sel].(*types.Func); ok && fn.FullName() == "os/exec.Command" {
					pass.Reportf(sel.Pos(), "use exec.CommandContext, so that the command ends when its caller gives up")
				}
				return true
			})
		}
		return nil, nil
	},
}
