// Package format tells versions of what the controller keeps in ConfigMaps as JSON: each text has
// the number of its format, beside the rest.
package format

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrNewer says that a text was written by a newer version, in a format that this one does not know.
var ErrNewer = errors.New("it was written by a newer version of nearflash")

// Unmarshal reads a text whose format is known at most. One without a number is of format 1. Errors:
// ErrNewer.
func Unmarshal(text []byte, known int, into any) error {
	// The number alone first: what else a newer version writes may not even be of the same types.
	var f struct{ Format int }
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f.Format > known {
		return fmt.Errorf("%w: format %d, known is %d", ErrNewer, f.Format, known)
	}
	return json.Unmarshal(text, into)
}
