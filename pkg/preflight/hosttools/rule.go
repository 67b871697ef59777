package hosttools

import (
	_ "embed" // for the rule
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nearflash/nearflash/pkg/durable"
)

// RuleFile is the name of the rule on the host. The rules of the device mapper and those that
// look into disks come after it on every distribution: 10 and 13, or 55 and 60.
const RuleFile = "05-nearflash.rules"

// RuleDir is where the node plugin writes the rule: what is there is gone after a reboot, and
// can be written on hosts whose /etc cannot.
const RuleDir = "/run/udev/rules.d"

//go:embed nearflash.rules
var rule string

// Rule is the text of the rule.
func Rule() string { return rule }

// PlaceRule writes the rule into a directory, or removes it.
func PlaceRule(dir string, wanted bool) error {
	if wanted {
		return writeRule(dir)
	}
	return removeRule(dir)
}

// writeRule writes the rule into a directory. udev reads it when the next event comes. A rule
// that is right is not written again, because udev would read all of its rules again.
func writeRule(dir string) error {
	path := filepath.Join(dir, RuleFile)
	if have, err := os.ReadFile(path); err == nil && string(have) == rule {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return durable.WriteFile(path, []byte(rule))
}

// removeRule removes the rule from a directory; one that is not there is success.
func removeRule(dir string) error {
	path := filepath.Join(dir, RuleFile)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return durable.Remove(path)
}

// sameRule compares two rules without comments.
func sameRule(a, b string) bool {
	return strings.Join(active(a), "\n") == strings.Join(active(b), "\n")
}

// active are the lines of a file of rules that udev reads.
func active(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			out = append(out, line)
		}
	}
	return out
}
