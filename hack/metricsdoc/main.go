// Command metricsdoc writes the reference of the metrics, in Markdown, from their
// declarations in pkg/metrics.
//
//	go run ./hack/metricsdoc > docs/reference/metrics.md
package main

import (
	"fmt"
	"os"

	"github.com/nearflash/nearflash/pkg/metrics"
)

func main() {
	if _, err := os.Stdout.WriteString(metrics.Reference()); err != nil {
		fmt.Fprintln(os.Stderr, "metricsdoc:", err)
		os.Exit(1)
	}
}
