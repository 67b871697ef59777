// Package e2e holds the cluster suite: Ginkgo specs against a lab with the
// driver installed. They have the build tag e2e and are run by
// hack/cluster-ring.sh; see README.md beside this file.
package e2e
