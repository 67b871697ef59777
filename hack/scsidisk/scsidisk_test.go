package scsidisk

import (
	"regexp"
	"testing"
)

// TestNames: the kernel takes the name of a port only in this form, and each device has another.
func TestNames(t *testing.T) {
	form := regexp.MustCompile(`^naa\.3[0-9a-f]{15}$`)
	seen := map[string]string{}
	for _, device := range []string{"ubdc", "ubdd", "rbd0", "rbd1", "rbd10", "ubdc nexus"} {
		name := naa(device)
		if !form.MatchString(name) || name != naa(device) {
			t.Errorf("%s: %q, then %q", device, name, naa(device))
		}
		if other, found := seen[name]; found {
			t.Errorf("%s and %s are both %s", device, other, name)
		}
		seen[name] = device
	}
}
