package csi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestLife attaches and detaches with each set of capabilities; the driver finds breaches.
func TestLife(t *testing.T) {
	for i := range 16 {
		c := origintest.Capabilities{Attach: i&1 != 0, Stage: i&2 != 0, Expand: i&4 != 0, MultiWriter: i&8 != 0}
		for _, links := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v links %v", c, links), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, c, func(_ *origintest.Config, f *origintest.Files) { f.Links = links; f.Leave = !links })
				o := w.mustConnect()
				want := transport.Origin{
					Paths: []string{"/dev/fake1"}, DevNos: []string{"240:1"}, Products: []string{""}, SizeBytes: 64 * mib, LogicalBlock: 512,
					WWID: "csi:" + driverName + ":vol-" + pv,
				}
				if diff := cmp.Diff(want, o); diff != "" {
					t.Errorf("origin (-want +got):\n%s", diff)
				}
				calls := []string{"GetInfo", "GetPluginInfo", "NodeGetCapabilities", "NodeStageVolume", "NodePublishVolume"}
				if !c.Stage {
					calls = slices.DeleteFunc(calls, func(s string) bool { return s == "NodeStageVolume" })
				}
				if diff := cmp.Diff(calls, w.d.Calls()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				w.d.Forget()
				if again := w.mustConnect(); !cmp.Equal(again, o) || len(w.d.Calls()) > 0 {
					t.Errorf("again: %+v, calls %v", again, w.d.Calls())
				}
				w.restart()
				if !w.found() {
					t.Error("not found by a new process")
				}
				w.mustDisconnect()
				if w.found() {
					t.Error("found after it was detached")
				}
				w.d.Forget()
				w.mustDisconnect()
				if len(w.d.Calls()) > 0 {
					t.Errorf("detached twice: %v", w.d.Calls())
				}
			})
		}
	}
}

// TestDriverIsDown looks up, connects what is connected, and never takes for detached what
// was not.
func TestDriverIsDown(t *testing.T) {
	w := newWorld(t, all)
	want := w.mustConnect()
	w.d.Crash()
	for _, restart := range []bool{false, true} {
		if restart {
			w.restart()
		}
		if o, found, err := w.tr.Lookup(t.Context(), w.at); err != nil || !found || !cmp.Equal(o, want) {
			t.Errorf("lookup: %+v, %v, %v", o, found, err)
		}
		if o, err := w.tr.Connect(t.Context(), w.at, nil); err != nil || !cmp.Equal(o, want) {
			t.Errorf("connect: %+v, %v", o, err)
		}
		err := w.tr.Disconnect(t.Context(), w.at)
		if !errors.Is(err, transport.ErrNoDaemon) || !strings.Contains(err.Error(), driverName) || !strings.Contains(err.Error(), "DaemonSet") {
			t.Errorf("disconnect: %v", err)
		}
		if !w.found() {
			t.Error("lost by a disconnect that did nothing")
		}
		if err := w.tr.Rescan(t.Context(), w.at, nil); !errors.Is(err, transport.ErrNoDaemon) {
			t.Errorf("rescan: %v", err)
		}
	}
	if err := w.d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.mustDisconnect()
}

func TestNeverAttached(t *testing.T) {
	w := newWorld(t, all)
	w.d.Stop()
	w.mustDisconnect()
	if _, err := w.connect(); !errors.Is(err, transport.ErrNoDaemon) {
		t.Errorf("connect: %v", err)
	}
	w.mustDisconnect() // and nothing was begun
	if w.found() {
		t.Error("found")
	}
	if err := w.tr.Rescan(t.Context(), w.at, nil); !errors.Is(err, transport.ErrNoLUN) {
		t.Errorf("rescan: %v", err)
	}
	if m, err := w.tr.Marks(t.Context(), w.at); err != nil || len(m) > 0 {
		t.Errorf("marks: %v, %v", m, err)
	}
}

// TestDeviceOpen wants the driver's refusal passed on, and the volume kept until it is closed.
func TestDeviceOpen(t *testing.T) {
	w := newWorld(t, origintest.Capabilities{Stage: true})
	w.mustConnect()
	// Not by SetOpen, which is a breach.
	w.d.Inject("NodeUnstageVolume", origintest.Fault{Code: codes.Internal, Message: "device or resource busy"})
	err := w.tr.Disconnect(t.Context(), w.at)
	if err == nil || !strings.Contains(err.Error(), "resource busy") {
		t.Errorf("disconnect: %v", err)
	}
	if _, err := os.Stat(w.staging()); err != nil {
		t.Errorf("staging directory: %v", err)
	}
	w.mustDisconnect()
}

// TestUnpublishFails wants no unstage after it.
func TestUnpublishFails(t *testing.T) {
	w := newWorld(t, all)
	w.mustConnect()
	w.d.Inject("NodeUnpublishVolume", origintest.Fault{Code: codes.Internal})
	w.d.Forget()
	if err := w.tr.Disconnect(t.Context(), w.at); err == nil {
		t.Error("disconnected")
	}
	if calls := w.d.Calls(); slices.Contains(calls, "NodeUnstageVolume") {
		t.Errorf("calls: %v", calls)
	}
	w.mustConnect() // it is used again instead
	w.mustDisconnect()
}

func TestReboot(t *testing.T) {
	w := newWorld(t, all, func(_ *origintest.Config, f *origintest.Files) { f.Links = true })
	w.mustConnect()
	w.reboot("b2")
	w.restart()
	// The target is a link to a device that is there: of some disk.
	if w.found() {
		t.Error("a target from before the reboot was taken for the volume")
	}
	w.mustConnect()
	if !w.found() {
		t.Error("not found")
	}
	w.mustDisconnect()
}

// TestReplaced wants a device refused that has come under the number of the volume's.
func TestReplaced(t *testing.T) {
	set := func(w *world, name, value string) {
		t.Helper()
		path := filepath.Join(w.files.Root, "sys/devices/fake1", name)
		if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]struct {
		wwid, then, diskseq string
		refused             bool
	}{
		"another disk without identity": {"", "", "99", true},
		"the same disk came back":       {"naa.1", "naa.1", "99", false},
		"another disk":                  {"naa.1", "naa.2", "99", true},
		"another identity":              {"naa.1", "naa.2", "1", true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, all, func(_ *origintest.Config, f *origintest.Files) {
				if tc.wwid != "" {
					f.Attributes = map[string]string{"wwid": tc.wwid}
				}
			})
			w.mustConnect()
			if tc.then != "" {
				set(w, "wwid", tc.then)
			}
			set(w, "diskseq", tc.diskseq)
			_, _, err := w.tr.Lookup(t.Context(), w.at)
			_, again := w.connect()
			if errors.Is(err, transport.ErrMismatch) != tc.refused || errors.Is(again, transport.ErrMismatch) != tc.refused {
				t.Errorf("lookup: %v, connect: %v", err, again)
			}
			w.mustDisconnect()
			w.mustConnect()
			w.mustDisconnect()
		})
	}
}

// TestGone is a device that the kernel has no more, which is asked for anew, or a target that is
// something else.
func TestGone(t *testing.T) {
	w := newWorld(t, all)
	w.mustConnect()
	if err := os.Remove(filepath.Join(w.files.Root, "sys/dev/block/240:1")); err != nil {
		t.Fatal(err)
	}
	if w.found() {
		t.Error("found without a device")
	}
	if m, err := w.tr.Marks(t.Context(), w.at); err != nil || len(m) > 0 {
		t.Errorf("marks: %v, %v", m, err)
	}
	w.mustConnect() // the driver unpublishes it first
	if !w.found() {
		t.Error("not found after it was attached anew")
	}
	if err := os.WriteFile(w.target(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if w.found() {
		t.Error("found without a device node")
	}
	w.mustDisconnect()
}

// TestGoneAndReused: what has begun to leave is not taken for published, whichever disk has its number
// by then: it leaves first.
func TestGoneAndReused(t *testing.T) {
	w := newWorld(t, all)
	w.mustConnect()
	number := filepath.Join(w.files.Root, "sys/dev/block/240:1")
	at, err := os.Readlink(number)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(number); err != nil {
		t.Fatal(err)
	}
	w.d.Inject("NodeUnpublishVolume", origintest.Fault{Code: codes.Internal, Message: "busy"})
	if _, err := w.connect(); err == nil {
		t.Error("connected although the device of before was not unpublished")
	}
	w.d.Heal()
	if err := os.Symlink(at, number); err != nil { // another disk
		t.Fatal(err)
	}
	w.d.Forget()
	w.mustConnect()
	calls := slices.DeleteFunc(w.d.Calls(), func(c string) bool { return c == "NodeGetCapabilities" })
	if want := []string{"NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume"}; !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	w.mustDisconnect()
}

func TestExpand(t *testing.T) {
	for _, c := range []origintest.Capabilities{all, {Expand: true}, {Stage: true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c)
			w.mustConnect()
			w.at.CSI.CapacityBytes = 128 * mib
			if _, err := w.d.ControllerExpandVolume(t.Context(), &csipb.ControllerExpandVolumeRequest{
				VolumeId: w.at.CSI.Handle, CapacityRange: &csipb.CapacityRange{RequiredBytes: 128 * mib},
			}); err != nil {
				t.Fatal(err)
			}
			if c.Expand {
				w.d.Inject("NodeExpandVolume", origintest.Fault{Code: codes.Unavailable, After: true})
				if err := w.tr.Rescan(t.Context(), w.at, nil); !errors.Is(err, transport.ErrUnreachable) {
					t.Errorf("rescan: %v", err)
				}
			}
			if err := w.tr.Rescan(t.Context(), w.at, nil); err != nil {
				t.Errorf("rescan: %v", err)
			}
			want := int64(64 * mib)
			if c.Expand {
				want = 128 * mib
			}
			if o, _, err := w.tr.Lookup(t.Context(), w.at); err != nil || o.SizeBytes != want {
				t.Errorf("size %d, %v", o.SizeBytes, err)
			}
			w.mustDisconnect()
		})
	}
}

// TestExpandAfterRestart: a new process has no secrets of a Connect. The kubelet stages nothing
// anew for it, and hands the secrets on with the expansion.
func TestExpandAfterRestart(t *testing.T) {
	w := newWorld(t, all)
	w.mustConnect()
	w.at.CSI.CapacityBytes = 128 * mib
	if _, err := w.d.ControllerExpandVolume(t.Context(), &csipb.ControllerExpandVolumeRequest{
		VolumeId: w.at.CSI.Handle, CapacityRange: &csipb.CapacityRange{RequiredBytes: 128 * mib},
	}); err != nil {
		t.Fatal(err)
	}
	w.restart()
	if err := w.tr.Rescan(t.Context(), w.at, w.cred); err != nil {
		t.Errorf("rescan: %v", err)
	}
	w.mustDisconnect()
}

func TestExpandHadNoEffect(t *testing.T) {
	w := newWorld(t, all)
	w.mustConnect()
	if err := os.WriteFile(filepath.Join(w.files.Root, "sys/devices/fake1/size"), []byte("8"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.d.Inject("NodeExpandVolume", origintest.Fault{Code: codes.OK})
	if err := w.tr.Rescan(t.Context(), w.at, nil); err == nil || !strings.Contains(err.Error(), "4096") {
		t.Errorf("rescan: %v", err)
	}
	w.mustDisconnect()
}

// TestErrors maps codes, and keeps secrets out of errors.
func TestErrors(t *testing.T) {
	w := newWorld(t, all)
	cases := map[codes.Code]error{
		codes.Unavailable: transport.ErrUnreachable, codes.DeadlineExceeded: transport.ErrUnreachable, codes.Unauthenticated: transport.ErrAuth,
		codes.PermissionDenied: transport.ErrAuth, codes.NotFound: transport.ErrNoTarget, codes.InvalidArgument: transport.ErrInvalid,
		codes.FailedPrecondition: volume.ErrInUse, codes.Aborted: volume.ErrBusy, codes.ResourceExhausted: volume.ErrUnavailable,
		codes.AlreadyExists: transport.ErrMismatch, codes.Internal: volume.ErrUnavailable, codes.Unknown: volume.ErrUnavailable,
		codes.Canceled: context.Canceled, codes.OutOfRange: transport.ErrInvalid, codes.Unimplemented: transport.ErrInvalid, codes.DataLoss: volume.ErrUnavailable,
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if cases[code] == nil {
			t.Errorf("code %s is not tried", code)
		}
	}
	for code, want := range cases {
		w.d.Inject("NodeStageVolume", origintest.Fault{Code: code, Message: "mount -o key=" + secretWord + "\nfor admin-of-it: " + strings.Repeat("x", 5000)})
		_, err := w.connect()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v is no %v", code, err, want)
		}
		text := fmt.Sprintf("%v %+v %#v", err, err, err)
		if strings.Contains(text, "horse") || strings.Contains(text, "admin-of") || len(err.Error()) > 1500 || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %s", code, text)
		}
	}
	w.mustDisconnect()
}

func TestWrongSecrets(t *testing.T) {
	w := newWorld(t, nothing, func(c *origintest.Config, _ *origintest.Files) { c.Secrets = nil })
	w.cred = nil
	w.mustConnect()
	w.mustDisconnect()
}

// TestSecretsAreKept is for repairs, which have none.
func TestSecretsAreKept(t *testing.T) {
	w := newWorld(t, all)
	w.d.Inject("NodePublishVolume", origintest.Fault{Code: codes.Unavailable})
	if _, err := w.connect(); err == nil {
		t.Fatal("connected")
	}
	if _, err := w.tr.Connect(t.Context(), w.at, nil); err != nil {
		t.Errorf("connect without secrets: %v", err)
	}
	w.mustDisconnect()
}

func TestInvalid(t *testing.T) {
	w := newWorld(t, all)
	good := *w.at.CSI
	cases := map[string]func(*volume.CSISource){
		"PV with a path":     func(s *volume.CSISource) { s.PV = "../../x" },
		"PV of two dots":     func(s *volume.CSISource) { s.PV = ".." },
		"no PV":              func(s *volume.CSISource) { s.PV = "" },
		"driver with a path": func(s *volume.CSISource) { s.Driver = "a/b" },
		"no driver":          func(s *volume.CSISource) { s.Driver = "" },
		"no handle":          func(s *volume.CSISource) { s.Handle = "" },
		"handle of no text":  func(s *volume.CSISource) { s.Handle = "\xff" },
		"negative size":      func(s *volume.CSISource) { s.CapacityBytes = -1 },
	}
	for name, change := range cases {
		s := good
		change(&s)
		at := transport.Target{Source: volume.Source{CSI: &s}}
		_, err := w.tr.Connect(t.Context(), at, nil)
		_, _, lookup := w.tr.Lookup(t.Context(), at)
		if !errors.Is(err, transport.ErrInvalid) || !errors.Is(lookup, transport.ErrInvalid) ||
			!errors.Is(w.tr.Disconnect(t.Context(), at), transport.ErrInvalid) || !errors.Is(w.tr.Rescan(t.Context(), at, nil), transport.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, err, lookup)
		}
	}
	if _, err := w.tr.Connect(t.Context(), transport.Target{}, nil); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("a LUN: %v", err)
	}
}

func TestContextEnds(t *testing.T) {
	w := newWorld(t, all)
	w.d.Inject("NodeStageVolume", origintest.Fault{Hang: true, After: true})
	start := time.Now()
	_, err := w.tr.Connect(within(t, 100*time.Millisecond), w.at, w.cred)
	if !errors.Is(err, transport.ErrUnreachable) || time.Since(start) > 2*time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
	w.mustDisconnect()
}

// TestAnotherAdmission: a device of an attachment that has ended is not taken for the volume's, of
// which the driver has to say so.
func TestAnotherAdmission(t *testing.T) {
	w := newWorld(t, all)
	w.at.CSI.Admission = "first"
	w.mustConnect()
	w.d.Stop()
	w.mustConnect() // what is attached needs no driver
	w.at.CSI.Admission = "second"
	if _, err := w.connect(); !errors.Is(err, transport.ErrNoDaemon) {
		t.Errorf("connect under another admission: %v", err)
	}
	if err := w.d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.mustConnect()
	w.mustBePublished()
	w.mustDisconnect()
}
