package target

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of Service besides InvalidError; test with errors.Is or errors.As.
var (
	// ErrNotFound: there is no such volume.
	ErrNotFound = errors.New("volume not found")
	// ErrAlreadyExists: the name is taken by a different volume.
	ErrAlreadyExists = errors.New("volume exists with other properties")
	// ErrNoSpace: no room on the server.
	ErrNoSpace = errors.New("no space left on the storage server")
	// ErrBusy: something on the server itself uses the volume.
	ErrBusy = errors.New("volume is in use on the storage server")
	// ErrInProgress: the caller's deadline has passed; the work goes on.
	ErrInProgress = errors.New("operation continues in the background, call again")
	// ErrStopping: the server is being stopped.
	ErrStopping = errors.New("server is stopping")
)

// ExportedError says that a volume is exported to initiators that stand in the way
// of a request.
type ExportedError struct {
	Volume     string
	Initiators []string
}

// Error implements error.
func (e *ExportedError) Error() string {
	return fmt.Sprintf("volume %s is exported to %s", e.Volume, strings.Join(e.Initiators, ", "))
}

// StaleGenerationError says that a volume was exported with a higher generation
// before: the caller's knowledge is outdated.
type StaleGenerationError struct {
	Volume            string
	Stored, Requested int64
}

// Error implements error.
func (e *StaleGenerationError) Error() string {
	return fmt.Sprintf("volume %s was exported with generation %d before; generation %d is outdated", e.Volume, e.Stored, e.Requested)
}
