package lio

import (
	"fmt"
	"strings"
)

const (
	// hba is the directory of all our backstores; the number is ours by
	// convention (no tool assigns numbers that high).
	hba = "core/iblock_26110"
	// tpg is the only portal group of a target.
	tpg = "tpgt_1"
	// LUN is the number of the only LUN of a target.
	LUN = 0

	lunDir = "lun_0"

	// kernelProduct is the product that the kernel names for a block device by itself
	// (drivers/target/target_core_iblock.c).
	kernelProduct = "IBLOCK"

	// sessionDepth is the number of commands one session may have in flight. The
	// backstore takes 128; open-iscsi asks for 128 at most by default.
	sessionDepth = "128"
)

// naaPrefix is what LIO puts before the serial in a NAA identifier: type 6 and
// the OUI 00-14-05 of LIO.
const naaPrefix = "naa.6001405"

// naaSerialDigits is how many digits of the unit serial go into the identifier.
const naaSerialDigits = 25

// Target is one exported volume: a target with one LUN.
type Target struct {
	// IQN is the target's name.
	IQN string
	// Backstore names the backstore, unique among all targets.
	Backstore string
	// Device is the block device behind it.
	Device string
	// Serial is the unit serial: at least 25 lower-case hexadecimal digits.
	Serial string
	// Product is what the LUN names as its product, at most 16 characters; empty
	// leaves the kernel's own. Kernels before 5.0 cannot be told.
	Product string
	// Unmap offers discard to initiators.
	Unmap bool
	// ReadOnly opens the device for reading only and lets no initiator write.
	ReadOnly bool
	// Portals are the addresses to listen on, ip:port.
	Portals []string
	// ACLs are the initiators that may log in; at least one.
	ACLs []ACL
}

// ACL lets one initiator in.
type ACL struct {
	Initiator string
	Username  string
	Password  string
}

// String leaves the password out.
func (a ACL) String() string {
	return fmt.Sprintf("%s as %q", a.Initiator, a.Username)
}

// GoString leaves the password out, for %#v.
func (a ACL) GoString() string {
	return a.String()
}

// WWID is the identifier an initiator's sysfs shows in the file `wwid` of the
// SCSI device for a LUN with this unit serial.
func WWID(serial string) string {
	return naaPrefix + serial[:min(naaSerialDigits, len(serial))]
}

// attribute is a configfs file and its wanted value.
type attribute struct {
	path, value string
}

// tpgAttributes are the settings of a portal group.
//
// Only initiators with an ACL may log in (generate_node_acls) or see the target
// in a discovery (demo_mode_discovery), and only with CHAP (authentication). The
// parameters save a round trip for writes up to 256 KiB and let a data segment be
// larger than LIO's default of 8 KiB; initiators negotiate them down.
func tpgAttributes() []attribute {
	return []attribute{
		{"attrib/authentication", "1"},
		{"attrib/generate_node_acls", "0"},
		{"attrib/demo_mode_discovery", "0"},
		{"attrib/cache_dynamic_acls", "0"},
		{"attrib/default_cmdsn_depth", sessionDepth},
		{"param/AuthMethod", "CHAP"},
		{"param/InitialR2T", "No"},
		{"param/ImmediateData", "Yes"},
		{"param/MaxRecvDataSegmentLength", "262144"},
		{"param/FirstBurstLength", "262144"},
		{"param/MaxBurstLength", "1048576"},
	}
}

func targetDir(iqn string) string         { return "iscsi/" + iqn }
func tpgDir(iqn string) string            { return targetDir(iqn) + "/" + tpg }
func aclDir(iqn, initiator string) string { return tpgDir(iqn) + "/acls/" + initiator }
func backstoreDir(name string) string     { return hba + "/" + name }

func (t Target) validate() error {
	for _, part := range []string{t.IQN, t.Backstore} {
		if part == "" || strings.ContainsAny(part, "/\x00") || strings.HasPrefix(part, ".") {
			return fmt.Errorf("target %q, backstore %q: not a configfs name", t.IQN, t.Backstore)
		}
	}
	if len(t.Serial) < naaSerialDigits {
		return fmt.Errorf("target %s: unit serial %q is shorter than %d digits", t.IQN, t.Serial, naaSerialDigits)
	}
	if len(t.Portals) == 0 || len(t.ACLs) == 0 {
		return fmt.Errorf("target %s: needs a portal and an initiator", t.IQN)
	}
	for _, a := range t.ACLs {
		if a.Initiator == "" || strings.ContainsAny(a.Initiator, "/\x00") || strings.HasPrefix(a.Initiator, ".") {
			return fmt.Errorf("target %s: initiator %q is not a configfs name", t.IQN, a.Initiator)
		}
		if a.Username == "" || a.Password == "" {
			return fmt.Errorf("target %s: initiator %s has no CHAP account", t.IQN, a.Initiator)
		}
	}
	return nil
}
