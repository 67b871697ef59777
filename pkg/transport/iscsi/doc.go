// Package iscsi attaches iSCSI LUNs through the host's iscsid.
//
// Sessions are set up with iscsiadm(8), that of this container or the host's (package openiscsi). What the kernel then has is read from
// sysfs, not from iscsiadm's text: session, connection and LUN are files there.
// A session is told to scan nothing by itself (node.session.scan = manual), and
// only the wanted LUN is added to it: an array's other LUNs, which may belong
// to other nodes, never appear on this one, and the session is logged out when
// its last LUN has been taken away.
//
// CHAP secrets are written into the initiator's record of the node, a file of
// mode 0600 that iscsid keeps them in anyway. They are never arguments of a
// command.
package iscsi
