package records

import (
	"context"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize is the number of objects asked for at once: an answer has its limit.
const pageSize = 500

// Pages reads a list page by page, as long as the reader of a page goes on. Errors: those of
// [Error]; what is the plural of the objects.
func Pages(ctx context.Context, api client.Reader, list client.ObjectList, what string, goOn func() bool, opts ...client.ListOption) error {
	for {
		all := append(slices.Clone(opts), client.Limit(pageSize), client.Continue(list.GetContinue()))
		if err := Error("list "+what, api.List(ctx, list, all...)); err != nil {
			return err
		}
		if !goOn() || list.GetContinue() == "" {
			return nil
		}
	}
}
