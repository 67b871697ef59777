package pool

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nearflash/nearflash/pkg/durable"
)

// readNotes reads what writeNotes has written to a file; into stays as it is if there is none.
func readNotes(path string, into any) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// writeNotes replaces a file in the plugin's state directory, in a folder that it has for itself.
func writeNotes(path string, notes any) error {
	b, err := json.Marshal(notes)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = durable.Sweep(filepath.Dir(path))
	}
	if err == nil {
		err = durable.WriteFile(path, b)
	}
	return err
}
