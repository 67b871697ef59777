package registration

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func TestKubeletRegisters(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.example-reg.sock")
	// What a killed process left must not keep the new one from its socket.
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var refused error
	s := New("x.example", "/plugins/x/csi.sock", func(err error) { refused = err })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, dir) }()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	kubelet := registerapi.NewRegistrationClient(conn)
	info, err := kubelet.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if info.GetType() != "CSIPlugin" || info.GetName() != "x.example" || info.GetEndpoint() != "/plugins/x/csi.sock" || len(info.GetSupportedVersions()) == 0 {
		t.Errorf("GetInfo = %v", info)
	}
	if _, err := kubelet.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	if !s.Registered() {
		t.Error("Registered() = false after kubelet accepted")
	}
	if _, err := kubelet.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{Error: "no"}); err != nil {
		t.Fatal(err)
	}
	if s.Registered() || refused == nil {
		t.Errorf("Registered() = %t, refused = %v after kubelet refused", s.Registered(), refused)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("socket is left: %v", err)
	}
}
