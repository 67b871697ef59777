package csi_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
)

// faults are what may go wrong with each call. Other codes end alike (TestErrors).
var faults = map[string]origintest.Fault{
	"internal": {Code: codes.Internal}, "unavailable": {Code: codes.Unavailable}, "hang": {Hang: true}, "crash": {Crash: true},
}

// eachFault runs a test for each fault of each call, before and after it had its effect, with
// a driver that stages and with one that does not; every other one with a plugin that is
// started anew after the fault.
func eachFault(t *testing.T, methods []string, f func(w *world, inject, mend func())) {
	for name, fault := range faults {
		for _, method := range methods {
			for i := range 4 {
				fault.After = i&1 != 0
				stage, restart := i&2 != 0, i == 1 || i == 2
				if !stage && strings.HasSuffix(strings.ToLower(method), "stagevolume") {
					continue
				}
				t.Run(fmt.Sprintf("%s %s after %v stage %v restart %v", method, name, fault.After, stage, restart), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, origintest.Capabilities{Attach: true, Stage: stage}, func(_ *origintest.Config, f *origintest.Files) { f.Leave = i%3 != 0 })
					f(w, func() {
						w.d.Inject(method, fault)
						if fault.Hang {
							w.config.CallTimeout = 100 * time.Millisecond
							w.restart()
						}
					}, func() {
						t.Helper()
						w.d.Heal()
						if fault.Crash {
							w.d.Crash() // if the call was not made
							if err := w.d.Start(t.Context()); err != nil {
								t.Fatal(err)
							}
						}
						w.config.CallTimeout = 5 * time.Second
						if restart || fault.Hang {
							w.restart()
						}
					})
				})
			}
		}
	}
}

var (
	connectCalls    = []string{"NodeGetCapabilities", "NodeStageVolume", "NodePublishVolume"}
	disconnectCalls = []string{"NodeGetCapabilities", "NodeUnpublishVolume", "NodeUnstageVolume"}
)

// eachFailedConnect runs what comes after each fault of a Connect, which has failed.
func eachFailedConnect(t *testing.T, then func(*world)) {
	eachFault(t, connectCalls, func(w *world, inject, mend func()) {
		inject()
		if _, err := w.connect(); err == nil {
			w.t.Error("connected")
		}
		mend()
		then(w)
	})
}

// TestFaultThenDisconnect: whatever happened to a Connect, a Disconnect cleans up.
func TestFaultThenDisconnect(t *testing.T) {
	t.Parallel()
	eachFailedConnect(t, func(w *world) { w.mustDisconnect() })
}

// TestFaultThenConnect: whatever happened to a Connect, the next one is as good as the first.
func TestFaultThenConnect(t *testing.T) {
	t.Parallel()
	eachFailedConnect(t, func(w *world) {
		w.mustConnect()
		w.mustBePublished()
		w.mustDisconnect()
	})
}

// TestFaultOfDisconnect: what was begun is ended by the next, or the volume is used again.
func TestFaultOfDisconnect(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		eachFault(t, disconnectCalls, func(w *world, inject, mend func()) {
			w.mustConnect()
			inject()
			if err := w.tr.Disconnect(w.t.Context(), w.at); err == nil {
				w.mustBeClean() // what it can do is asked a second time
			}
			mend()
			if again {
				w.mustConnect()
				w.mustBePublished()
			}
			w.mustDisconnect()
		})
	}
}

// TestKilledBetweenSteps has what a kill leaves where no call was under way.
func TestKilledBetweenSteps(t *testing.T) {
	cases := map[string]func(t *testing.T, w *world){
		"publish directory made": func(t *testing.T, w *world) {
			mkdir(t, filepath.Join(w.config.Kubelet, "plugins/kubernetes.io/csi/volumeDevices/publish", pv))
		},
		"both directories made": func(t *testing.T, w *world) {
			mkdir(t, filepath.Join(w.config.Kubelet, "plugins/kubernetes.io/csi/volumeDevices/publish", pv))
			mkdir(t, w.staging())
		},
		"published, not recorded": func(t *testing.T, w *world) {
			w.mustConnect()
			remove(t, w.target()+".json")
		},
		"the record half written": func(t *testing.T, w *world) {
			w.mustConnect()
			write(t, w.target()+".json", `{"boot":"b1","dri`)
			write(t, filepath.Join(filepath.Dir(w.target()), ".tmp-1"), "{")
		},
		"staging directory removed, publish directory not": func(t *testing.T, w *world) {
			w.mustConnect()
			dir := filepath.Dir(w.target())
			w.mustDisconnect()
			mkdir(t, dir)
		},
	}
	for name, kill := range cases {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, connect %v", name, again), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, all)
				kill(t, w)
				w.restart()
				if again {
					w.mustConnect()
				} else if w.found() {
					t.Error("found")
				}
				w.mustDisconnect()
			})
		}
	}
}

// TestUnknownVolume: a driver that does not know the volume does not keep it from being
// forgotten, unless it was attached.
func TestUnknownVolume(t *testing.T) {
	unknown := origintest.Fault{Code: codes.NotFound}
	for _, c := range []origintest.Capabilities{all, nothing} {
		w := newWorld(t, c)
		good := w.at.CSI.Handle
		w.at.CSI.Handle = "vol-none"
		if _, err := w.connect(); err == nil {
			t.Fatal("connected")
		}
		w.mustDisconnect()
		w.at.CSI.Handle = good
		w.mustConnect()
		w.d.Inject("NodeUnpublishVolume", unknown)
		if err := w.tr.Disconnect(t.Context(), w.at); err == nil {
			t.Error("an attached volume was forgotten")
		}
		if c.Stage {
			w.d.Inject("NodeUnstageVolume", unknown)
			if err := w.tr.Disconnect(t.Context(), w.at); err == nil {
				t.Error("a staged volume was forgotten")
			}
		}
		w.mustDisconnect()
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o750); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
