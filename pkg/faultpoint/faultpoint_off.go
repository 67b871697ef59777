//go:build !faultpoints

package faultpoint

// Enabled reports whether this build honours fault files.
const Enabled = false

func hit(string) {}

func on(string) bool { return false }
