// Package openiscsi knows open-iscsi on a node: whose mount namespace has its files and its
// iscsiadm ([Host]), and whether its daemon understands that iscsiadm ([Daemon]).
//
// iscsiadm and iscsid talk by structures of C (open-iscsi, usr/mgmt_ipc.h), whose size changes
// between versions and is checked by neither. A daemon that wants more than it was sent waits for
// the rest, and serves nobody else meanwhile; one that wants less takes what it has read for a
// whole request, in which settings are not where it looks for them.
package openiscsi
