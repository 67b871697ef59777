package csi_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
)

// liar is a registration socket that says what it is told to, and optionally an identity.
type liar struct {
	registerapi.UnimplementedRegistrationServer
	csipb.UnimplementedIdentityServer
	info *registerapi.PluginInfo
	name string
	hang bool
}

func (l *liar) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if l.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.info, nil
}

func (l *liar) GetPluginInfo(ctx context.Context, _ *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	if l.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &csipb.GetPluginInfoResponse{Name: l.name}, nil
}

// serve serves a liar at a path.
func (l *liar) serve(t *testing.T, path string) {
	t.Helper()
	socket := listen(t, path)
	s := grpc.NewServer()
	registerapi.RegisterRegistrationServer(s, l)
	csipb.RegisterIdentityServer(s, l)
	go func() { _ = s.Serve(socket) }()
	t.Cleanup(s.Stop)
}

func listen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	mkdir(t, filepath.Dir(path))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// info is a true answer of a driver.
func info(change func(*registerapi.PluginInfo)) *registerapi.PluginInfo {
	i := &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: driverName, Endpoint: "/nowhere.sock", SupportedVersions: []string{"1.0.0"}}
	change(i)
	return i
}

// hostile makes sockets that claim to be the driver, younger than the true one, or are broken.
var hostile = map[string]func(t *testing.T, dir string){
	"endpoint that is not there": func(t *testing.T, dir string) {
		(&liar{info: info(func(*registerapi.PluginInfo) {})}).serve(t, filepath.Join(dir, "a.sock"))
	},
	"endpoint of another driver": func(t *testing.T, dir string) {
		(&liar{name: "other.example.com", info: info(func(i *registerapi.PluginInfo) { i.Endpoint = "" })}).serve(t, filepath.Join(dir, "a.sock"))
	},
	"endpoint that is no path": func(t *testing.T, dir string) {
		(&liar{info: info(func(i *registerapi.PluginInfo) { i.Endpoint = "tcp://127.0.0.1:1" })}).serve(t, filepath.Join(dir, "a.sock"))
	},
	"endpoint that hangs": func(t *testing.T, dir string) {
		(&liar{hang: true}).serve(t, filepath.Join(dir, "..", "hang.sock"))
		(&liar{info: info(func(i *registerapi.PluginInfo) { i.Endpoint = filepath.Join(dir, "..", "hang.sock") })}).serve(t, filepath.Join(dir, "a.sock"))
	},
	"another type of plugin": func(t *testing.T, dir string) {
		(&liar{name: driverName, info: info(func(i *registerapi.PluginInfo) { i.Type, i.Endpoint = "DevicePlugin", "" })}).serve(t, filepath.Join(dir, "a.sock"))
	},
	"another version of CSI": func(t *testing.T, dir string) {
		(&liar{name: driverName, info: info(func(i *registerapi.PluginInfo) { i.SupportedVersions, i.Endpoint = []string{"0.3.0", "", "10.0"}, "" })}).serve(t, filepath.Join(dir, "a.sock"))
	},
	"a name that is none": func(t *testing.T, dir string) {
		(&liar{info: info(func(i *registerapi.PluginInfo) { i.Name = "../x\n\x1b[2J" })}).serve(t, filepath.Join(dir, "a.sock"))
	},
	"a large answer": func(t *testing.T, dir string) {
		(&liar{info: info(func(i *registerapi.PluginInfo) { i.Endpoint = "/" + strings.Repeat("x", 3<<20) })}).serve(t, filepath.Join(dir, "a.sock"))
	},
	"no answer":      func(t *testing.T, dir string) { (&liar{hang: true}).serve(t, filepath.Join(dir, "a.sock")) },
	"nobody accepts": func(t *testing.T, dir string) { listen(t, filepath.Join(dir, "a.sock")) },
	"nobody listens": func(t *testing.T, dir string) {
		l := listen(t, filepath.Join(dir, "a.sock"))
		l.SetUnlinkOnClose(false)
		_ = l.Close()
	},
	"no gRPC": func(t *testing.T, dir string) {
		l := listen(t, filepath.Join(dir, "a.sock"))
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(strings.Repeat("HTTP/1.1 400 no\r\n", 100)))
				_ = c.Close()
			}
		}()
	},
	"no sockets": func(t *testing.T, dir string) {
		write(t, filepath.Join(dir, "file.sock"), "x")
		mkdir(t, filepath.Join(dir, "folder.sock"))
		if err := os.Symlink("/nowhere", filepath.Join(dir, "link.sock")); err != nil {
			t.Fatal(err)
		}
	},
	"many that hang": func(t *testing.T, dir string) {
		for i := range 40 {
			(&liar{hang: true}).serve(t, filepath.Join(dir, fmt.Sprintf("h%d", i)))
		}
	},
}

// TestHostileRegistrations: none hides the driver, and all together cost a bounded time.
func TestHostileRegistrations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, all)
	w.config.AskTimeout = 500 * time.Millisecond
	w.restart()
	for i, name := range slices.Sorted(maps.Keys(hostile)) {
		dir := filepath.Join(filepath.Dir(w.d.Registration()), strconv.Itoa(i))
		mkdir(t, dir)
		hostile[name](t, dir)
	}
	start := time.Now()
	w.mustConnect()
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	w.mustDisconnect()
	// Without the driver each has its word in an error that can be read.
	w.d.Stop()
	w.restart()
	_, err := w.connect()
	if !errors.Is(err, transport.ErrNoDaemon) || len(err.Error()) > 20000 || strings.ContainsRune(err.Error(), 0x1b) {
		t.Errorf("connect: %v", err)
	}
}

// TestOthersAreNamed helps whoever has mistyped a name.
func TestOthersAreNamed(t *testing.T) {
	w := newWorld(t, all)
	w.at.CSI.Driver = "orign.example.com"
	if _, err := w.connect(); !errors.Is(err, transport.ErrNoDaemon) || !strings.Contains(err.Error(), `"`+driverName+`"`) {
		t.Errorf("connect: %v", err)
	}
}

// TestEndpointMoves: a plugin that comes back elsewhere is found there, and one that is known
// is not looked for.
func TestEndpointMoves(t *testing.T) {
	for _, stop := range []func(*origintest.Driver){(*origintest.Driver).Stop, (*origintest.Driver).Crash} {
		w := newWorld(t, all)
		w.mustConnect()
		stop(w.d)
		w.d.SetEndpoint(filepath.Join(w.root, "elsewhere.sock"))
		if err := w.d.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.mustDisconnect()
		w.d.Forget()
		w.mustConnect()
		if calls := w.d.Calls(); slices.Contains(calls, "GetInfo") {
			t.Errorf("it was looked for again: %v", calls)
		}
		w.mustDisconnect()
	}
}

// TestEndpointForms are those that drivers register, in a folder of its own too.
func TestEndpointForms(t *testing.T) {
	for _, scheme := range []string{"", "unix://", "unix:"} {
		w := newWorld(t, all)
		remove(t, w.d.Registration())
		l := &liar{info: info(func(i *registerapi.PluginInfo) { i.Endpoint = scheme + w.d.Endpoint() })}
		l.serve(t, filepath.Join(filepath.Dir(w.d.Registration()), "folder", "any-name"))
		w.mustConnect()
		w.mustDisconnect()
	}
}

// TestNoRegistry: kubelet's folder is not there.
func TestNoRegistry(t *testing.T) {
	w := newWorld(t, all)
	w.d.Stop()
	if err := os.RemoveAll(filepath.Dir(w.d.Registration())); err != nil {
		t.Fatal(err)
	}
	if _, err := w.connect(); !errors.Is(err, transport.ErrNoDaemon) {
		t.Errorf("connect: %v", err)
	}
}

// TestLargeAnswer: what a plugin may send is bounded.
func TestLargeAnswer(t *testing.T) {
	w := newWorld(t, all)
	w.d.Inject("NodeStageVolume", origintest.Fault{Code: 13, Message: strings.Repeat("x", 1<<20)})
	if _, err := w.connect(); err == nil || len(err.Error()) > 2000 {
		t.Errorf("connect: %.200v", err)
	}
	w.mustConnect()
	w.mustDisconnect()
}
