// Package cluster is what the e2e suite and the demo need of a running cluster
// with nearflash installed: its API, commands inside pods and on nodes, and the
// few objects that a workload consists of.
//
// Nothing here asserts: every function returns an error that says what was
// waited for and what was seen last.
package cluster
