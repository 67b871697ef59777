//go:build tools

package kindbuild

import (
	_ "sigs.k8s.io/kind"
)
