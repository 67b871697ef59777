package attach_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
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

// TestStayIsNotedLate: the process that attached the volume was killed before it noted that. The next
// one, which finds the device, does so before it says that the volume is attached.
func TestStayIsNotedLate(t *testing.T) {
	l := newWarmLife(t, volume.ModeWritethrough, "")
	l.stay(l.a, 1, 0, 1)
	l.arrive(l.b)
	note := func() string { return filepath.Join(l.b.files(), string(volumeID)+".stay") } // each process has its own files
	l.must("remove the note", os.Remove(note()))
	e := l.b.entry()
	e.State = state.Staging
	l.must("journal", l.b.Journal.Save(string(volumeID), *e))
	l.b.start()
	l.must("stage", l.b.Stage(l.ctx, l.req))
	if _, err := os.Stat(note()); err != nil {
		t.Errorf("the note of the attachment: %v", err)
	}
	l.leave(l.b)
}
