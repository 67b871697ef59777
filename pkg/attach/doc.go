// Package attach is the node's side of a volume: it implements
// volume.Attacher over the transport, LVM, device-mapper and mounts.
//
// Every operation gathers facts, decides with a pure function (decide.go) and
// acts one journalled step at a time. The states, the invariants I1 to I8 and
// the decision tables are stated in docs/design/states.md; this package cites
// them and must not differ from that page.
package attach
