package volume

import (
	"fmt"
	"maps"
)

// Credentials prove this node to the storage: CHAP credentials to an iSCSI target, the secrets
// of a class to another CSI driver. They never print, in no format.
type Credentials struct {
	// Username and Password are CHAP credentials.
	Username, Password string
	// Previous is the account to try when the storage refuses this one, nil if there is none:
	// what was admitted before a rotation, or by a controller of before, still has it
	// (states.md, The account of an admission).
	Previous *Credentials
	// Secrets are for the CSI driver of a Source that has one, by its own keys (the "secrets"
	// of the calls in the CSI specification).
	Secrets map[string]string
}

// Equal reports whether both have the same content.
func (c Credentials) Equal(other Credentials) bool {
	if (c.Previous == nil) != (other.Previous == nil) || c.Previous != nil && !c.Previous.Equal(*other.Previous) {
		return false
	}
	return c.Username == other.Username && c.Password == other.Password && maps.Equal(c.Secrets, other.Secrets)
}

// Format implements fmt.Formatter for every verb.
func (Credentials) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[redacted]")) }

// String implements fmt.Stringer.
func (Credentials) String() string { return "[redacted]" }

// GoString implements fmt.GoStringer.
func (Credentials) GoString() string { return "[redacted]" }

// MarshalJSON keeps credentials out of structured logs and records.
func (Credentials) MarshalJSON() ([]byte, error) { return []byte(`"[redacted]"`), nil }
