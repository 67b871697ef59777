package attach_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestRecordOutOfABackup: a record that was set back to before a node attached the volume
// names the retained cache of the owner before. The node has written past it, and has forgotten
// the volume since.
func TestRecordOutOfABackup(t *testing.T) {
	l := newWarmLife(t, volume.ModeWritethrough, "")
	l.stay(l.a, 1, 0, 1, 2, 3, 10, 11)
	l.req = l.publish(l.b.name)
	saved := l.record().Status
	if saved.WarmSource.NodeName == "" {
		t.Fatal("the record names no retained cache")
	}
	l.b.WarmProblem = func(context.Context) string { return "the other node is down" }
	l.begin(l.b)
	l.b.podWrites(2, 1, 2)
	l.b.powerLoss()
	l.b.start()
	l.must("repair", l.b.Repair(l.ctx))
	if e := l.b.entry(); e != nil {
		t.Fatalf("the journal still has %+v", e)
	}
	obj := l.record()
	obj.Status = saved
	l.must("set the record back", l.api.Status().Update(l.ctx, obj))

	l.podReads(l.b)
	l.leave(l.b)
	l.stay(l.a, 3, 4)
	note := filepath.Join(l.b.files(), string(volumeID)+".stay")
	if _, err := os.Stat(note); err != nil {
		t.Fatalf("the note of the attachment: %v", err)
	}
	l.givenBack(l.b)
	l.pass(2 * time.Hour)
	l.must("repair", l.b.Repair(l.ctx))
	if _, err := os.Stat(note); !os.IsNotExist(err) {
		t.Errorf("the note is still there under a later ownership: %v", err)
	}
}
