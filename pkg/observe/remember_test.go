package observe_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestRemember(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volumes")
	store, err := journal.Open[string](dir)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	var fail error
	volumes := observe.Remember(dir, func() ([]observe.Volume, error) {
		calls++
		keys, err := store.Keys()
		var out []observe.Volume
		for _, k := range keys {
			out = append(out, observe.Volume{ID: volume.ID(k)})
		}
		return out, errors.Join(err, fail)
	})
	want := func(what string, wantVolumes, wantCalls int) {
		t.Helper()
		list, err := volumes()
		if !errors.Is(err, fail) || len(list) != wantVolumes || calls != wantCalls {
			t.Errorf("%s: %d volumes, %d calls, want %d and %d; %v", what, len(list), calls, wantVolumes, wantCalls, err)
		}
		if len(list) > 0 {
			list[0].ID = "changed by the caller"
		}
	}
	old := time.Now().Add(-time.Minute)
	age := func() {
		t.Helper()
		old = old.Add(time.Second)
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
	}
	want("new directory", 0, 1)
	want("too new to be trusted", 0, 2)
	for _, key := range []string{"a", "b"} {
		if err := store.Save(key, key); err != nil {
			t.Fatal(err)
		}
	}
	want("just saved", 2, 3)
	age()
	want("first look at it", 2, 4)
	want("nothing happened", 2, 4)
	if err := store.Save("a", "x"); err != nil {
		t.Fatal(err)
	}
	want("saved again", 2, 5)
	age()
	fail = errors.New("corrupt")
	want("failed", 2, 6)
	want("failed again", 2, 7)
	fail = nil
	want("repaired", 2, 8)
	want("nothing happened", 2, 8)
	if err := store.Delete("a"); err != nil {
		t.Fatal(err)
	}
	want("deleted", 1, 9)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := volumes(); err == nil {
		t.Error("a directory that is gone is no error")
	}
}
