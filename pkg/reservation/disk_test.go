package reservation

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestOneAfterTheOther: whoever has an answer can send the next command. A path counts as
// one that does not answer only while a command is under way.
func TestOneAfterTheOther(t *testing.T) {
	var disks Disks
	u := disks.LUN(filepath.Join(t.TempDir(), "none"))
	for range 20_000 {
		if _, err := u.Keys(t.Context()); err == nil || strings.Contains(err.Error(), "the command before") {
			t.Fatalf("a disk that does not exist: %v", err)
		}
	}
}
