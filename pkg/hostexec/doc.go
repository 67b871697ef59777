// Package hostexec runs programs of the host. It is the only package that may
// import os/exec: everything the project asks of a host tool passes through
// [Runner], so that locale, process groups, cancellation, separate output
// streams and redaction are decided once.
//
// Secrets do not belong in an argument list at all (any user of the machine can
// read it): hand them over on [Cmd].Stdin or in a file. The redaction done by
// [ExitError] is only the second line of defence.
package hostexec
