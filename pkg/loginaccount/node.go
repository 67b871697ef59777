package loginaccount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/keyagreement"
)

// OpenKey reads the node's key, and makes one if there is none, or none that can be read: what
// the node is admitted to is admitted anew then (states.md, The account of an admission).
func OpenKey(file string) (*keyagreement.Key, error) {
	text, err := os.ReadFile(file)
	switch {
	case err == nil:
		if key, err := keyagreement.Parse(string(text)); err == nil {
			return key, nil
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("key of the node: %w", err)
	}
	key, err := keyagreement.New()
	if err != nil {
		return nil, err
	}
	if err := durable.WriteFile(file, []byte(key.Text()+"\n")); err != nil {
		return nil, fmt.Errorf("key of the node: %w", err)
	}
	return key, nil
}
