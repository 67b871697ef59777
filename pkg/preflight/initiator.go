package preflight

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/nearflash/nearflash/pkg/durable"
)

// madePrefix begins the initiator names that are made here.
const madePrefix = "iqn.2026-11.io.nearflash:node-"

// MakeInitiatorName writes an initiator name that no other node has into a file as open-iscsi's
// initiatorname.iscsi, unless the file is there, whatever is in it. Of several callers one makes it.
func MakeInitiatorName(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := fmt.Sprintf("InitiatorName=%s%s\n", madePrefix, strings.ToLower(rand.Text()))
	if err := durable.CreateFile(file, []byte(text)); err != nil {
		return fmt.Errorf("initiator name: %w", err)
	}
	return nil
}
