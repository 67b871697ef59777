package rpc

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

const secret = "correct-horse-battery"

// node is a CSI node service whose NodeStageVolume does what the test says.
type node struct {
	csi.UnimplementedNodeServer
	stage func(ctx context.Context) error
}

func (n *node) NodeStageVolume(ctx context.Context, _ *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, n.stage(ctx)
}

type call struct {
	method string
	code   codes.Code
}

type recorder struct {
	mu    sync.Mutex
	calls []call
}

func (r *recorder) RecordMetrics(name string, err error, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call{name, status.Code(err)})
}

// safeBuffer is a log destination for several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// fixture is a running server, its log at V(9), and a client.
type fixture struct {
	log    *safeBuffer
	rec    *recorder
	client csi.NodeClient
	stop   context.CancelFunc
	done   chan error
	path   string
}

func start(t *testing.T, stage func(ctx context.Context) error) *fixture {
	t.Helper()
	f := &fixture{log: &safeBuffer{}, rec: &recorder{}, done: make(chan error, 1), path: filepath.Join(t.TempDir(), "csi.sock")}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(f.log), textlogger.Verbosity(9)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	f.stop = cancel
	t.Cleanup(cancel)
	l, err := Listen(ctx, f.path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(ctx, f.rec)
	csi.RegisterNodeServer(s, &node{stage: stage})
	go func() { f.done <- Serve(ctx, s, l) }()
	conn, err := grpc.NewClient("unix://"+f.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	f.client = csi.NewNodeClient(conn)
	return f
}

func (f *fixture) call(t *testing.T) error {
	t.Helper()
	_, err := f.client.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: "pvc-1", StagingTargetPath: "/stage", Secrets: map[string]string{"chap.password": secret},
	})
	return err
}

func TestCallIsLoggedWithoutSecrets(t *testing.T) {
	f := start(t, func(ctx context.Context) error {
		klog.FromContext(ctx).Info("Inside")
		return nil
	})
	if err := f.call(t); err != nil {
		t.Fatal(err)
	}
	log := f.log.String()
	for _, want := range []string{`"Inside" requestID="`, `method="NodeStageVolume" volumeID="pvc-1"`, `"Call done"`, `code="OK"`, "duration=", "***stripped***", "/stage"} {
		if !strings.Contains(log, want) {
			t.Errorf("log lacks %q:\n%s", want, log)
		}
	}
	if strings.Contains(log, secret) {
		t.Errorf("log shows the secret:\n%s", log)
	}
	if want := (call{"/csi.v1.Node/NodeStageVolume", codes.OK}); len(f.rec.calls) != 1 || f.rec.calls[0] != want {
		t.Errorf("recorded %v, want %v", f.rec.calls, want)
	}
}

func TestErrorIsLoggedOnce(t *testing.T) {
	f := start(t, func(context.Context) error { return status.Error(codes.Aborted, "come again") })
	if got := status.Code(f.call(t)); got != codes.Aborted {
		t.Errorf("code %v, want Aborted", got)
	}
	if log := f.log.String(); strings.Count(log, "come again") != 1 || !strings.Contains(log, `code="Aborted"`) {
		t.Errorf("want the error in one line with its code:\n%s", log)
	}
	if f.rec.calls[0].code != codes.Aborted {
		t.Errorf("recorded %v", f.rec.calls)
	}
}

func TestPanicBecomesInternal(t *testing.T) {
	f := start(t, func(context.Context) error { panic("boom " + t.Name()) })
	err := f.call(t)
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "boom") {
		t.Errorf("got %v, want Internal without the panic's value", err)
	}
	if log := f.log.String(); !strings.Contains(log, "boom") || !strings.Contains(log, "rpc_test.go") {
		t.Errorf("log lacks value or stack:\n%s", log)
	}
	if f.rec.calls[0].code != codes.Internal {
		t.Errorf("recorded %v", f.rec.calls)
	}
}

func TestServeEndsGracefully(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	f := start(t, func(context.Context) error {
		close(entered)
		<-release
		return nil
	})
	result := make(chan error, 1)
	go func() { result <- f.call(t) }()
	<-entered
	f.stop()
	select {
	case err := <-f.done:
		t.Fatalf("Serve ended with %v under a running call", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if err := <-result; err != nil {
		t.Errorf("running call got %v", err)
	}
	if err := <-f.done; err != nil {
		t.Errorf("Serve returned %v", err)
	}
	if _, err := os.Lstat(f.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket is left: %v", err)
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale.sock")
	leaveStaleSocket(t, stale)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	served := filepath.Join(dir, "served.sock")
	l, err := Listen(t.Context(), served)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cases := map[string]struct {
		path    string
		wantErr string
	}{
		"fresh":          {path: filepath.Join(dir, "fresh.sock")},
		"stale socket":   {path: stale},
		"regular file":   {path: file, wantErr: "not a socket"},
		"served socket":  {path: served, wantErr: "served by another process"},
		"no such folder": {path: filepath.Join(dir, "none", "x.sock"), wantErr: "no such file or directory"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l, err := Listen(t.Context(), tc.path)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			info, err := os.Stat(tc.path)
			if err != nil || info.Mode().Perm() != socketMode {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		})
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "keep" {
		t.Errorf("the regular file was touched: %q, %v", b, err)
	}
}

func TestSocketPath(t *testing.T) {
	cases := map[string]struct {
		endpoint, want string
	}{
		"url":        {"unix:///csi/csi.sock", "/csi/csi.sock"},
		"short":      {"unix:/csi/csi.sock", "/csi/csi.sock"},
		"path":       {"/csi/csi.sock", "/csi/csi.sock"},
		"relative":   {"csi.sock", ""},
		"rel. url":   {"unix://csi.sock", ""},
		"tcp":        {"tcp://127.0.0.1:1", ""},
		"empty":      {"", ""},
		"empty path": {"unix://", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := SocketPath(tc.endpoint)
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("SocketPath(%q) = %q, %v; want %q", tc.endpoint, got, err, tc.want)
			}
		})
	}
}

// leaveStaleSocket makes a socket as a killed process leaves it.
func leaveStaleSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCallMetrics wants what dashboards for CSI drivers look for.
func TestCallMetrics(t *testing.T) {
	m := NewCallMetrics("csi.example.com")
	m.RecordMetrics("/csi.v1.Node/NodeStageVolume", nil, 300*time.Millisecond)
	m.RecordMetrics("/csi.v1.Node/NodeStageVolume", status.Error(codes.Aborted, "come again"), time.Second)
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetName() != "csi_plugin_operations_seconds" {
		t.Fatalf("got %v, want only csi_plugin_operations_seconds", families)
	}
	counts := map[string]uint64{}
	for _, metric := range families[0].GetMetric() {
		var labels []string
		for _, l := range metric.GetLabel() {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		counts[strings.Join(labels, " ")] = metric.GetHistogram().GetSampleCount()
	}
	for _, code := range []string{"OK", "Aborted"} {
		labels := "driver_name=csi.example.com grpc_status_code=" + code + " method_name=/csi.v1.Node/NodeStageVolume"
		if counts[labels] != 1 {
			t.Errorf("no call with %s in %v", labels, counts)
		}
	}
}
