// Package apitypes holds the conventions that the types of the Kubernetes API
// below api/ are written by. They are those of the API conventions of Kubernetes
// (sig-architecture) as kube-api-linter checks them for custom resources; a rule
// that it has too is named in the comment of the analyzer. Only what can be read
// from one package is checked, and nothing is corrected.
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

// Analyzers returns all rules.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{Kinds, Names, Presence, Bounds, Lists, Status, Markers}
}

// isAPI tells whether a package holds API types: those below api/ of a module.
func isAPI(pass *analysis.Pass) bool {
	path, _, _ := strings.Cut(pass.Pkg.Path(), " ")
	return strings.Contains(path, "/api/") && !strings.HasSuffix(path, "_test")
}

// forFields is the Run of an analyzer that judges one field at a time.
func forFields(check func(*analysis.Pass, *declarations, field)) func(*analysis.Pass) (any, error) {
	return func(pass *analysis.Pass) (any, error) {
		if !isAPI(pass) {
			return nil, nil
		}
		d := declared(pass)
		for _, s := range d.structs {
			for _, f := range s.fields {
				check(pass, d, f)
			}
		}
		return nil, nil
	}
}
