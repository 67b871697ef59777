// Package layout is how a volume and its cache look on a node: the names of their
// devices and logical volumes, and what the tags on the SSD say (docs/design/states.md,
// Names on the host). It only computes; nothing here touches a host.
package layout
