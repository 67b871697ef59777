// Package conform is what suites share that hold a fake and the real thing to the same.
package conform

import (
	"errors"
	"testing"
)

// T is a test of a suite.
type T struct{ *testing.T }

// Must ends the test unless err is nil.
func (t T) Must(what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Want fails the test unless err is of a kind (errors.Is).
func (t T) Want(what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: %v, want %v", what, err, kind)
	}
}
