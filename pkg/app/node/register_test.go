package node

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/driver"
)

// TestRegisterAfterListening: kubelet calls the driver as soon as it sees the registration socket,
// and refuses a driver that does not answer.
func TestRegisterAfterListening(t *testing.T) {
	p := &plugin{cfg: Config{RegistrationDir: t.TempDir()}, findings: &findings{}, listening: make(chan struct{})}
	nothing := ""
	p.findings.essential.Store(&nothing)
	p.findings.iscsi.Store(&nothing)
	socket := filepath.Join(p.cfg.RegistrationDir, driver.Name+"-reg.sock")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.register(ctx) }()
	time.Sleep(200 * time.Millisecond)
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Fatalf("registered before the CSI socket takes calls: %v", err)
	}
	close(p.listening)
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("not registered a minute after the CSI socket takes calls")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
