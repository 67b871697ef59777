package volume

// DefaultFSType is used when nobody chose a filesystem.
const DefaultFSType = "ext4"

// Formatted says whether a volume's filesystem was ever made. The zero value is
// FormatDone: what nobody knows anything of is never formatted.
type Formatted string

// The states of states.md, The filesystem.
const (
	// FormatDone: the volume has, or may have, content.
	FormatDone Formatted = ""
	// FormatNever: nothing was ever written to the volume.
	FormatNever Formatted = "NeverFormatted"
	// FormatBegun: its owner may have begun to make a filesystem, which nobody has
	// mounted yet.
	FormatBegun Formatted = "Formatting"
)

// Content is what was read of a device, all of it without an error.
type Content struct {
	// Type is what libblkid recognises: a filesystem or anything else; "" if nothing.
	Type string
	// Unfinished is true of a filesystem whose making was interrupted.
	Unfinished bool
	// Blank is true if every byte at the head and at the tail is zero.
	Blank bool
}
