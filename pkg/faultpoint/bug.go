package faultpoint

// Bug is a defect that a test can put into a running program, to show that it would
// be noticed. In an ordinary build On is always false.
type Bug struct {
	name string
}

// NewBug declares a defect. Its name begins with "bug." and is as unique as that of a
// Point, but it is not in List.
func NewBug(name string) Bug {
	return Bug{name: "bug." + name}
}

// Name returns the name of the file that turns the defect on.
func (b Bug) Name() string { return b.name }

// On reports whether the file of that name is in the directory NEARFLASH_FAULT_DIR. It
// stays there.
func (b Bug) On() bool { return on(b.name) }
