// Package house holds the rules of this project that no public analyzer checks.
//
// Generated files are exempt from all of them.
package house

import (
	"go/ast"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzers returns all rules.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{FuncLength, FileLength, Fences, CommandContext}
}

// written returns the files that a person has written, with their names.
func written(pass *analysis.Pass) map[*ast.File]string {
	files := map[*ast.File]string{}
	for _, f := range pass.Files {
		name := pass.Fset.Position(f.Package).Filename
		if !ast.IsGenerated(f) && strings.HasSuffix(name, ".go") {
			files[f] = name
		}
	}
	return files
}

func isTest(filename string) bool {
	return strings.HasSuffix(filename, "_test.go")
}
