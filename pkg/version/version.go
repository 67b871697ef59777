// Package version carries the build identity, stamped by the linker.
package version

// Version is the semantic version of the build and Commit its source revision.
// Both are set with -ldflags "-X ..."; an unstamped build says so.
var (
	Version = "v0.0.0-dev"
	Commit  = "unknown"
)
