package house

import (
	"go/ast"

	"golang.org/x/tools/go/analysis"
)

// Limits of length, in lines. The aim is 60 lines for a function.
const (
	MaxFuncLines = 100
	MaxFileLines = 499
)

// FuncLength refuses long functions, but for those of tests, where a table of
// cases makes the length.
var FuncLength = &analysis.Analyzer{
	Name: "funclength",
	Doc:  "functions have at most 100 lines",
	Run: func(pass *analysis.Pass) (any, error) {
		for f, name := range written(pass) {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil || isTest(name) {
					continue
				}
				first, last := pass.Fset.Position(fn.Pos()).Line, pass.Fset.Position(fn.End()).Line
				if n := last - first + 1; n > MaxFuncLines {
					pass.Reportf(fn.Name.Pos(), "function %s has %d lines, at most %d are allowed: split it by step", fn.Name.Name, n, MaxFuncLines)
				}
			}
		}
		return nil, nil
	},
}

// FileLength refuses long files.
var FileLength = &analysis.Analyzer{
	Name: "filelength",
	Doc:  "files have less than 500 lines",
	Run: func(pass *analysis.Pass) (any, error) {
		for f := range written(pass) {
			if n := pass.Fset.File(f.Package).LineCount(); n > MaxFileLines {
				pass.Reportf(f.Package, "file has %d lines, at most %d are allowed: split it by topic", n, MaxFileLines)
			}
		}
		return nil, nil
	},
}
