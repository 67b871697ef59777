package podexec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/nearflash/nearflash/pkg/podexec"
)

// server is an API server with one pod, which speaks the protocols of exec with the libraries
// that the kubelet has.
type server struct {
	t *testing.T
	// forbidWebSocket and forbidSPDY are for an account that may not; noWebSocket is for an API
	// server without.
	forbidWebSocket, forbidSPDY, noWebSocket bool
	// status is how the command ends, and hang keeps it from ending.
	status metav1.Status
	hang   bool

	mu sync.Mutex
	// asked are the requests, as "METHOD path?query" without the values that are the same.
	asked []string
}

var streamsOfCommand = []string{corev1.StreamTypeStdout, corev1.StreamTypeStderr, corev1.StreamTypeError}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := "SPDY"
	if wsstream.IsWebSocketRequest(r) {
		kind = "WebSocket"
	}
	q := r.URL.Query()
	s.mu.Lock()
	s.asked = append(s.asked, fmt.Sprintf("%s %s %s %s in %s", kind, r.Method, r.URL.Path, strings.Join(q["command"], " "), q.Get("container")))
	s.mu.Unlock()
	switch {
	case kind == "WebSocket" && s.noWebSocket:
		http.Error(w, "what is an upgrade?", http.StatusBadRequest)
	case kind == "WebSocket" && s.forbidWebSocket, kind == "SPDY" && s.forbidSPDY:
		refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "pods/exec"}, "plugin", errors.New("no role")).Status()
		refusal.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		if err := json.NewEncoder(w).Encode(refusal); err != nil {
			s.t.Error(err)
		}
	case kind == "WebSocket":
		s.webSocket(w, r)
	default:
		s.spdy(w, r)
	}
}

// command is the container's.
func (s *server) command(r *http.Request, stdout, stderr, status io.Writer) {
	if s.hang {
		<-r.Context().Done()
		return
	}
	end, err := json.Marshal(s.status)
	for _, part := range []struct {
		to   io.Writer
		text []byte
	}{{stdout, []byte("out")}, {stderr, []byte("err")}, {status, end}} {
		if _, writeErr := part.to.Write(part.text); err == nil {
			err = writeErr
		}
	}
	if err != nil {
		s.t.Error(err)
	}
}

func (s *server) webSocket(w http.ResponseWriter, r *http.Request) {
	channels := []wsstream.ChannelType{wsstream.IgnoreChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.ReadChannel}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels}})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	s.command(r, streams[remotecommand.StreamStdOut], streams[remotecommand.StreamStdErr], streams[remotecommand.StreamErr])
}

func (s *server) spdy(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV5Name, remotecommand.StreamProtocolV4Name}); err != nil {
		s.t.Error(err)
		return
	}
	opened := make(chan httpstream.Stream, len(streamsOfCommand))
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		opened <- stream
		return nil
	})
	if conn == nil {
		s.t.Error("no connection")
		return
	}
	defer func() { _ = conn.Close() }()
	streams := map[string]httpstream.Stream{}
	for range streamsOfCommand {
		stream := <-opened
		streams[stream.Headers().Get(corev1.StreamType)] = stream
	}
	s.command(r, streams[corev1.StreamTypeStdout], streams[corev1.StreamTypeStderr], streams[corev1.StreamTypeError])
	for _, stream := range streams {
		_ = stream.Close() // the caller, who has the end of the command, may have gone
	}
}

// failed is the end of a command with an exit status.
func failed(code int) metav1.Status {
	return metav1.Status{
		Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: "command terminated with non-zero exit code",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}}},
	}
}

// run runs a command at a server that is told how to be.
func run(ctx context.Context, t *testing.T, s *server) (stdout, stderr string, err error) {
	t.Helper()
	s.t = t
	if s.status.Status == "" {
		s.status.Status = metav1.StatusSuccess
	}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	e, err := podexec.New(&rest.Config{Host: h.URL})
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	err = e.Run(ctx, podexec.Command{Namespace: "nearflash", Pod: "plugin", Container: "nearflash-node", Args: []string{"/nearflash-node", "figures"}, Stdout: &out, Stderr: &errOut})
	return out.String(), errOut.String(), err
}

func TestRun(t *testing.T) {
	const at = " /api/v1/namespaces/nearflash/pods/plugin/exec /nearflash-node figures in nearflash-node"
	ws, post := "WebSocket GET"+at, "SPDY POST"+at
	for name, c := range map[string]struct {
		server    *server
		asked     []string
		exit      int
		forbidden bool
		wantErr   string
	}{
		"over a WebSocket":                   {server: &server{}, asked: []string{ws}},
		"over SPDY, without WebSockets":      {server: &server{noWebSocket: true}, asked: []string{ws, post}},
		"over SPDY, with the right to only":  {server: &server{forbidWebSocket: true}, asked: []string{ws, post}},
		"a command fails over a WebSocket":   {server: &server{status: failed(3)}, asked: []string{ws}, exit: 3},
		"a command fails over SPDY":          {server: &server{noWebSocket: true, status: failed(4)}, asked: []string{ws, post}, exit: 4},
		"a command fails after a refusal":    {server: &server{forbidWebSocket: true, status: failed(5)}, asked: []string{ws, post}, exit: 5},
		"no right":                           {server: &server{forbidWebSocket: true, forbidSPDY: true}, asked: []string{ws, post}, forbidden: true, wantErr: `exec in plugin: running commands in the pod is forbidden: unable to upgrade connection: pods/exec "plugin" is forbidden: no role`},
		"no right, and no WebSockets either": {server: &server{noWebSocket: true, forbidSPDY: true}, asked: []string{ws, post}, forbidden: true, wantErr: "is forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, err := run(t.Context(), t, c.server)
			if !slices.Equal(c.server.asked, c.asked) {
				t.Errorf("asked %q, want %q", c.server.asked, c.asked)
			}
			if errors.Is(err, podexec.ErrForbidden) != c.forbidden {
				t.Errorf("%v is ErrForbidden: %v", err, !c.forbidden)
			}
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("got %v, want %q", err, c.wantErr)
				}
				return
			}
			var exit exec.CodeExitError
			switch {
			case c.exit == 0 && err != nil:
				t.Error(err)
			case c.exit != 0 && (!errors.As(err, &exit) || exit.Code != c.exit):
				t.Errorf("got %v, want exit status %d", err, c.exit)
			case out != "out" || errOut != "err":
				t.Errorf("output %q, errors %q", out, errOut)
			}
		})
	}
}

// TestRunTimeout: a kubelet that is silent holds nobody up.
func TestRunTimeout(t *testing.T) {
	for name, s := range map[string]*server{"WebSocket": {hang: true}, "SPDY": {hang: true, noWebSocket: true}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			began := time.Now()
			if _, _, err := run(ctx, t, s); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}
