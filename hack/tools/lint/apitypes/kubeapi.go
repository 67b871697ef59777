package apitypes

import (
	"golang.org/x/tools/go/analysis"
	"sigs.k8s.io/kube-api-linter/pkg/analysis/registry"
	"sigs.k8s.io/kube-api-linter/pkg/config"
	_ "sigs.k8s.io/kube-api-linter/pkg/registration" // all of its linters
)

// KubeAPI returns the linters of kube-api-linter that are for custom resources, on packages
// below api/. Those of other packages, and of in-tree types alone, say nothing here.
func KubeAPI() ([]*analysis.Analyzer, error) {
	list, err := registry.DefaultRegistry().InitializeLinters(config.Linters{
		Enable: []string{"maxlength", "nobools", "statusoptional", "statussubresource"},
		// nonpointerstructs is for types that the API server validates by Go code.
		// Presence has what is left of the other two.
		Disable: []string{"nonpointerstructs", "optionalfields", "requiredfields"},
	}, config.LintersConfig{
		"conditions": map[string]any{"isFirstField": "Ignore", "useProtobuf": "Forbid", "usePatchStrategy": "Forbid"},
	})
	for _, a := range list {
		a.Run = onAPI(a.Run)
	}
	return list, err
}
