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
		"presence": apitypes.Presence,
		"bounds":   apitypes.Bounds,
		"status":   apitypes.Status,
		"rules":    apitypes.Rules,
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

// TestKubeAPI: the linters of kube-api-linter are on, those that Kubernetes leaves off too,
// and speak of API types alone.
func TestKubeAPI(t *testing.T) {
	for _, analyzer := range kubeAPI(t) {
		switch analyzer.Name {
		case "jsontags", "maxlength", "nobools", "nomaps", "nophase", "optionalorrequired", "ssatags", "statussubresource":
			analysistest.Run(t, analysistest.TestData(), analyzer, module+"api/kube/"+analyzer.Name)
		}
	}
}

func kubeAPI(t *testing.T) []*analysis.Analyzer {
	t.Helper()
	list, err := apitypes.KubeAPI()
	if err != nil || len(list) < 20 {
		t.Fatalf("%d linters, %v", len(list), err)
	}
	return list
}

// TestGood wants no finding in types that keep the rules, and none in packages that
// hold no API.
func TestGood(t *testing.T) {
	for _, analyzer := range append(apitypes.Analyzers(), kubeAPI(t)...) {
		analysistest.Run(t, analysistest.TestData(), analyzer, module+"api/good", module+"pkg/other")
	}
}
