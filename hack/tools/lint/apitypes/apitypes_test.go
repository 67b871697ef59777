package apitypes_test

import (
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/nearflash/nearflash/hack/tools/lint/apitypes"
)

const module = "github.com/nearflash/nearflash/"

// TestBad gives each analyzer types that break its rules, and all of them.
func TestBad(t *testing.T) {
	tests := map[string]*analysis.Analyzer{
		"kinds":    apitypes.Kinds,
		"names":    apitypes.Names,
		"presence": apitypes.Presence,
		"bounds":   apitypes.Bounds,
		"lists":    apitypes.Lists,
		"status":   apitypes.Status,
		"markers":  apitypes.Markers,
	}
	if len(tests) != len(apitypes.Analyzers()) {
		t.Errorf("%d analyzers are tested, there are %d", len(tests), len(apitypes.Analyzers()))
	}
	for name, analyzer := range tests {
		t.Run(name, func(t *testing.T) {
			analysistest.Run(t, analysistest.TestData(), analyzer, module+"api/"+name)
		})
	}
}

// TestGood wants no finding in types that keep the rules, and none in packages that
// hold no API.
func TestGood(t *testing.T) {
	for _, analyzer := range apitypes.Analyzers() {
		analysistest.Run(t, analysistest.TestData(), analyzer, module+"api/good", module+"pkg/other")
	}
}
