// Package kubectl is the kubectl plugin of nearflash: `kubectl nearflash VERB`.
//
// Each verb has a file with its options, which know three steps: Complete turns
// words and flags into values, Validate refuses what cannot be meant, Run does
// the work. What the steps need of the world (streams, a clock, a client) is in
// the Factory.
//
// Everything shown is read from the API server, and everything changed is a
// field of an object there; adopt and release make objects again. Two commands run
// programs in pods: top asks the node plugins what they count, and so does bench, which
// also runs fio in pods of its own.
//
// Users know volumes as claims of a namespace. A claim leads to its
// PersistentVolume, whose volumeHandle is the name of the CachedVolume.
//
// Errors are one line and say what to do.
package kubectl
