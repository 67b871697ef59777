// Package doccommands reads the commands and the YAML out of the project's documents
// and checks them against what exists: targets of the Makefile, commands and flags of
// kubectl, of helm and of the project's own programs, values of the chart, fields of
// Kubernetes' objects and of the CustomResourceDefinitions, parameters of classes, metrics and
// their labels.
//
// It finds commands in indented and fenced blocks of code whose first word is a
// program that it knows, or that begin with "$ "; in a block that is fenced as sh or
// bash every program must be one that it knows. It also reads spans of code in the
// text that begin with kubectl, helm, make or a script of hack/. YAML is what is
// fenced as yaml, what begins with apiVersion, what is piped into kubectl, and what
// has keys of the chart's values. Queries of Prometheus are what is fenced as promql.
//
// Nothing is run against a cluster: what a command does is for the other rings.
package doccommands
