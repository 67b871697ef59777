package driver_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/testutil/hostile"
)

const password = "kept-to-ourselves-4711"

// logged collects what a driver logs at the highest level.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) context(ctx context.Context) context.Context {
	log := funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, prefix+args)
	}, funcr.Options{Verbosity: 10})
	return klog.NewContext(ctx, log)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// serve runs the driver and returns a connection to it.
func serve(ctx context.Context, t *testing.T) *grpc.ClientConn {
	t.Helper()
	s := rpc.NewServer(ctx, nil)
	for _, service := range newServices() {
		s.RegisterService(&service.desc, service.srv)
	}
	l := bufconn.Listen(1 << 20)
	go func() { _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// withSecrets lists the calls whose request has a secret, by the mark csi_secret that
// the specification puts on the field.
func withSecrets(t *testing.T) map[string]protoreflect.MethodDescriptor {
	t.Helper()
	out := map[string]protoreflect.MethodDescriptor{}
	services := csi.File_csi_proto.Services()
	for _, name := range []protoreflect.Name{"Controller", "Node"} {
		methods := services.ByName(name).Methods()
		for i := range methods.Len() {
			m := methods.Get(i)
			fields := m.Input().Fields()
			for j := range fields.Len() {
				if proto.GetExtension(fields.Get(j).Options(), csi.E_CsiSecret).(bool) {
					out["/csi.v1."+string(name)+"/"+string(m.Name())] = m
				}
			}
		}
	}
	if len(out) < 5 {
		t.Fatalf("only %d calls have a secret", len(out))
	}
	return out
}

// TestNoCallLogsItsSecret makes every call that has a secret, with right and wrong
// requests, at the highest log level.
func TestNoCallLogsItsSecret(t *testing.T) {
	pairs := map[string]map[string]string{
		"both":         {"chap.username": "u", "chap.password": password},
		"rotated":      {"chap.username": "u", "chap.password": password, "chap.previous.username": "u", "chap.previous.password": password + "-before"},
		"half rotated": {"chap.username": "u", "chap.password": password, "chap.previous.password": password + "-before"},
		"no user":      {"chap.password": password},
		"other names":  {"node.session.auth.username": "u", "node.session.auth.password": password},
		"unknown keys": {"key": password, password: "x"},
		"twisted":      {"chap.username": password, "chap.password": password + "\n"},
	}
	for full, m := range withSecrets(t) {
		for name, secret := range pairs {
			for _, text := range []string{"", "v", "../x"} {
				t.Run(fmt.Sprintf("%s/%s/%q", m.Name(), name, text), func(t *testing.T) {
					var log logged
					conn := serve(log.context(t.Context()), t)
					req := newMessage(t, m.Input())
					hostile.Fill(req, text, 1, 3)
					setSecrets(req.ProtoReflect(), secret)
					err := conn.Invoke(t.Context(), full, req, newMessage(t, m.Output()))
					if text := log.String(); !strings.Contains(text, string(m.Name())) {
						t.Errorf("the call is not in the log:\n%s", text)
					} else if strings.Contains(text, password) {
						t.Errorf("the log shows the secret:\n%s", text)
					}
					if strings.Contains(status.Convert(err).Message(), password) {
						t.Errorf("the answer shows the secret: %v", err)
					}
				})
			}
		}
	}
}

// newMessage returns an empty message of the Go type of a descriptor.
func newMessage(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}

// setSecrets fills the fields that are marked as secret.
func setSecrets(m protoreflect.Message, secret map[string]string) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !proto.GetExtension(f.Options(), csi.E_CsiSecret).(bool) {
			continue
		}
		m.Clear(f)
		for k, v := range secret {
			m.Mutable(f).Map().Set(protoreflect.ValueOfString(k).MapKey(), protoreflect.ValueOfString(v))
		}
	}
}
