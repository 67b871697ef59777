// Package apitypes holds the conventions that the types of the Kubernetes API below api/
// are written by: the linters of kube-api-linter that are for custom resources (KubeAPI),
// and rules for what those do not check (Analyzers). Nothing is corrected.
//
// What the API server itself would refuse (a CEL rule that does not compile, or
// costs too much) is tested in package v1alpha1 on a real API server.
//
// An exception is written as `//lint:ignore NAME REASON` before the field.
package apitypes

import (
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzers returns the rules that kube-api-linter does not have.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{Kinds, Presence, Bounds, Status, Rules}
}

// isAPI reports whether a package holds API types: those below api/ of a module.
func isAPI(pass *analysis.Pass) bool {
	path, _, _ := strings.Cut(pass.Pkg.Path(), " ")
	return strings.Contains(path, "/api/") && !strings.HasSuffix(path, "_test")
}

// onAPI is a Run that says nothing of other packages.
func onAPI(run func(*analysis.Pass) (any, error)) func(*analysis.Pass) (any, error) {
	return func(pass *analysis.Pass) (any, error) {
		if !isAPI(pass) {
			return nil, nil
		}
		return run(pass)
	}
}

// forFields is the Run of an analyzer that judges one field at a time.
func forFields(check func(*analysis.Pass, *declarations, field)) func(*analysis.Pass) (any, error) {
	return onAPI(func(pass *analysis.Pass) (any, error) {
		d := declared(pass)
		for _, s := range d.structs {
			for _, f := range s.fields {
				check(pass, d, f)
			}
		}
		return nil, nil
	})
}
