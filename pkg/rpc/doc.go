// Package rpc serves gRPC on a unix socket, and does for every call what no
// service should repeat: a logger with request and volume ID in the context,
// one log line per call without secrets, a metric, and a panic turned into an
// error.
package rpc
