package csi_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi"
	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	driverName = "origin.example.com"
	pv         = "pvc-8d0c4a53"
	mib        = 1 << 20
	secretWord = "correct-horse-battery"
)

var (
	all     = origintest.Capabilities{Attach: true, Stage: true, Expand: true, MultiWriter: true}
	nothing = origintest.Capabilities{}
)

// world is a node with kubelet's folders, the strict driver and one volume of it.
type world struct {
	t      *testing.T
	root   string
	files  *origintest.Files
	d      *origintest.Driver
	config csi.Config
	tr     *csi.Transport
	at     transport.Target
	cred   *volume.Credentials
}

// shortDir is a folder whose path leaves room for the name of a socket (108 bytes).
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func newWorld(t *testing.T, c origintest.Capabilities, change ...func(*origintest.Config, *origintest.Files)) *world {
	t.Helper()
	root := shortDir(t)
	files := &origintest.Files{Root: filepath.Join(root, "machine")}
	config := origintest.Config{
		Name: driverName, Node: "node-1", Kubelet: filepath.Join(root, "k"), Capabilities: c, Devices: files,
		Secrets: map[string]string{"userID": "admin-of-it", "userKey": secretWord},
	}
	for _, f := range change {
		f(&config, files)
	}
	d := origintest.New(config)
	d.Check(t)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	source, err := d.Provision(t.Context(), pv, 64*mib)
	if err != nil {
		t.Fatal(err)
	}
	boot := filepath.Join(root, "boot_id")
	w := &world{
		t: t, root: root, files: files, d: d,
		config: csi.Config{
			Kubelet: config.Kubelet, Sysfs: filepath.Join(files.Root, "sys"), Dev: filepath.Join(files.Root, "dev"), BootID: boot,
			CallTimeout: 5 * time.Second, Stat: files.Stat,
		},
		at:   transport.Target{Source: volume.Source{CSI: source}},
		cred: &volume.Credentials{Secrets: config.Secrets},
	}
	w.reboot("b1")
	w.restart()
	d.Forget()
	return w
}

// restart is a new process of the plugin.
func (w *world) restart() { w.tr = csi.New(w.config) }

// reboot gives the kernel another boot id.
func (w *world) reboot(id string) {
	w.t.Helper()
	if err := os.WriteFile(w.config.BootID, []byte(id+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) connect() (transport.Origin, error) {
	return w.tr.Connect(w.t.Context(), w.at, w.cred)
}

func (w *world) mustConnect() transport.Origin {
	w.t.Helper()
	o, err := w.connect()
	if err != nil {
		w.t.Fatalf("connect: %v", err)
	}
	return o
}

func (w *world) mustDisconnect() {
	w.t.Helper()
	if err := w.tr.Disconnect(w.t.Context(), w.at); err != nil {
		w.t.Fatalf("disconnect: %v", err)
	}
	w.mustBeClean()
}

// mustBeClean wants nothing left: on the node by the driver's word, and below kubelet's folder.
func (w *world) mustBeClean() {
	w.t.Helper()
	left, err := w.d.OnNode()
	if err != nil || len(left) > 0 {
		w.t.Errorf("left on the node: %v, %v", left, err)
	}
	for _, kind := range []string{"staging", "publish"} {
		entries, _ := filepath.Glob(filepath.Join(w.config.Kubelet, "plugins/kubernetes.io/csi/volumeDevices", kind, "*"))
		if len(entries) > 0 {
			w.t.Errorf("left in kubelet's folder: %v", entries)
		}
	}
}

// mustBePublished wants the device found, and published by the driver's word.
func (w *world) mustBePublished() {
	w.t.Helper()
	left, err := w.d.OnNode()
	if err != nil || !strings.Contains(strings.Join(left, "\n"), " is published ") || !w.found() {
		w.t.Errorf("on the node: %v, %v", left, err)
	}
}

// found is whether Lookup finds the device.
func (w *world) found() bool {
	w.t.Helper()
	_, found, err := w.tr.Lookup(w.t.Context(), w.at)
	if err != nil {
		w.t.Fatalf("lookup: %v", err)
	}
	return found
}

func (w *world) staging() string {
	return filepath.Join(w.config.Kubelet, "plugins/kubernetes.io/csi/volumeDevices/staging", pv)
}

// target is the one target of the volume.
func (w *world) target() string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.config.Kubelet, "plugins/kubernetes.io/csi/volumeDevices/publish", pv))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			return filepath.Join(w.config.Kubelet, "plugins/kubernetes.io/csi/volumeDevices/publish", pv, e.Name())
		}
	}
	w.t.Fatal("no target")
	return ""
}

// within is a context that ends soon.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
