// Package orders is what programs have in common that outlast the node plugin because a volume must
// not stay as they have made it, whatever becomes of the plugin: a frozen filesystem (states.md, A
// freeze), a suspended device (states.md, Scrub). Each has its order in a file, which is there for as
// long as something may have to be undone.
package orders

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

const orderExt = ".order"

// File is the file of the order about a volume, in the folder of one kind of guard.
func File(dir string, id volume.ID) string { return filepath.Join(dir, string(id)+orderExt) }

// Beside is the name of another file about the same volume.
func Beside(file, ext string) string { return strings.TrimSuffix(file, orderExt) + ext }

// Left lists the volumes of which a folder has orders.
func Left(dir string) ([]volume.ID, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []volume.ID
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), orderExt); ok {
			out = append(out, volume.ID(name))
		}
	}
	return out, nil
}

// Said is what a guard said at its end, by the error of its command; killed if it could not.
func Said(err error, killed string) error {
	var exit *hostexec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if said := strings.TrimSpace(string(exit.Stderr)); exit.ExitCode > 0 && said != "" {
		return errors.New(said)
	}
	return errors.New(killed)
}
