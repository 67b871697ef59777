package target_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
)

// calls calls until an answer is as wanted: a connection that the server ends is noticed a
// moment later.
func calls(t *testing.T, c *targetclient.Client, want error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err = c.Health(ctx)
		cancel()
		if errors.Is(err, want) {
			return
		}
	}
	t.Errorf("got %v, want %v", err, want)
}

// TestWithdrawnCA: whoever is connected with a certificate of a CA that is taken out of the file is
// refused at the next call, and cannot connect any more; the file that cannot be read refuses for
// as long.
func TestWithdrawnCA(t *testing.T) {
	svc, _ := started(t)
	ca, next := newAuthority(t, "ca"), newAuthority(t, "next")
	ca.issue("controller")
	c := connect(t, ca.client(serve(t, svc, ca, logr.Discard()), "controller"))
	if _, err := c.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(ca.file("ca.pem"), ca.file("away.pem")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Health(t.Context()); !errors.Is(err, targetclient.ErrUnavailable) {
		t.Errorf("without the file: %v", err)
	}
	if err := os.Rename(ca.file("away.pem"), ca.file("ca.pem")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Health(t.Context()); err != nil {
		t.Errorf("with the file again: %v", err)
	}
	ca.copyOver(next, "ca.pem")
	if _, err := c.CreateVolume(t.Context(), "v1", 8*mib, targetclient.Thin); !errors.Is(err, targetclient.ErrUnavailable) || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("the withdrawn client's call: %v", err)
	}
	if _, err := svc.GetVolume(t.Context(), "v1"); err == nil {
		t.Error("the withdrawn client has made a volume")
	}
}

// TestExpiredConnection: a certificate that ends takes its connection along, and one that is
// renewed in time is shown by the next.
func TestExpiredConnection(t *testing.T) {
	svc, _ := started(t)
	ca := newAuthority(t, "ca")
	ca.issueUntil("controller", time.Now().Add(3*time.Second))
	c := connect(t, ca.client(serve(t, svc, ca, logr.Discard()), "controller"))
	calls(t, c, nil)
	calls(t, c, targetclient.ErrUnavailable)
	ca.issue("controller")
	calls(t, c, nil)
	if _, client := c.CertificatesEnd(); time.Until(client) < time.Minute {
		t.Errorf("the connection has the certificate of before, which ends %s", client)
	}
}

// TestRenewedCertificateIsSeen: both ends show what they have now, however long the client is
// connected, and no call fails of it.
func TestRenewedCertificateIsSeen(t *testing.T) {
	svc, _ := started(t)
	ca := newAuthority(t, "ca")
	soon := time.Now().Add(30 * time.Minute)
	ca.issueUntil("controller", soon)
	ca.issueUntil("server", soon)
	g, err := target.NewShortLivedGRPC(logr.Discard(), ca.server(), target.NewServer(svc, "v9"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, ca.client(listen(t, g), "controller"))
	if _, err := c.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	ca.issue("controller")
	ca.issue("server")
	late := func(end time.Time) bool { return end.After(soon.Add(time.Minute)) }
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := c.Health(t.Context()); err != nil {
			t.Fatalf("a call when a connection got old: %v", err)
		}
		server, client := c.CertificatesEnd()
		if late(server) && late(client) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("certificates that end %s and %s are still the connection's", server, client)
		}
	}
}
