// Package images says what the container images consist of: one statement for both
// ways to build them, the one without a container engine (hack/lab/artifact) and the
// Dockerfile beside this file.
package images

import (
	_ "embed"
	"strings"
)

// Suite is the Debian release that the host tools come from. It is the first whose
// thin-provisioning-tools keep the cache's hints.
const Suite = "forky"

// User runs what needs no root: the number that the chart gives too.
const User = "65532:65532"

//go:embed node-tools.packages
var nodeTools string

// NodeTools returns the Debian packages with what nearflash-node and nearflash-target
// call, in the order of the file.
func NodeTools() []string { return strings.Fields(nodeTools) }

// Image is one of the project's own images: a static program at the top of the file
// system, which is its entry point.
type Image struct {
	// Name is the program's and the image's.
	Name string
	// HostTools says that the image begins with the packages of NodeTools.
	HostTools bool
	// User is who runs it; empty is root.
	User string
}

// All returns the project's images.
func All() []Image {
	return []Image{
		{Name: "nearflash-controller", User: User},
		{Name: "nearflash-node", HostTools: true},
		{Name: "nearflash-target", HostTools: true},
	}
}
