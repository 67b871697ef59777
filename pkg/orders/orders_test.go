package orders

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestOrders(t *testing.T) {
	dir := t.TempDir()
	order := File(dir, "pvc-1")
	for _, file := range []string{order, Beside(order, ".phase"), File(dir, "pvc-2"), filepath.Join(dir, "stray")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Left(dir); err != nil || !slices.Equal(got, []volume.ID{"pvc-1", "pvc-2"}) {
		t.Errorf("left are %v, %v", got, err)
	}
	if got, want := Beside(order, ".phase"), filepath.Join(dir, "pvc-1.phase"); got != want {
		t.Errorf("beside %s is %s", order, got)
	}
	if _, err := Left(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left of no folder: %v", err)
	}
}

func TestSaid(t *testing.T) {
	plain := errors.New("not begun")
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"another error":      {plain, "not begun"},
		"words":              {&hostexec.ExitError{ExitCode: 1, Stderr: []byte(" no such device\n")}, "no such device"},
		"an end without any": {&hostexec.ExitError{ExitCode: 1}, "it was killed"},
		"killed":             {&hostexec.ExitError{ExitCode: -1, Stderr: []byte("half a")}, "it was killed"},
	} {
		if got := Said(tc.err, "it was killed"); got.Error() != tc.want {
			t.Errorf("%s: %v, want %s", name, got, tc.want)
		}
	}
	if err := Said(nil, "it was killed"); err != nil {
		t.Errorf("an end that went well: %v", err)
	}
}
