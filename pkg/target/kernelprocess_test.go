//go:build kernel

package target_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
)

const (
	// serveVariable makes the test binary the server itself, with that configuration.
	serveVariable = "NEARFLASH_TEST_SERVE"
	processListen = "127.0.0.1:9443"
	metricsListen = "127.0.0.1:9811"
	chapPassword  = "password-of-a"
)

func TestMain(m *testing.M) {
	config := os.Getenv(serveVariable)
	if config == "" {
		os.Exit(guest.Main(m))
	}
	cfg, err := target.LoadConfig(config)
	if err == nil {
		err = target.Run(klog.NewContext(context.Background(), klog.Background()), cfg, "test")
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// process is the server as a process of its own, reached with gRPC as the
// controller does.
type process struct {
	*rig

	config string
	log    string
	client *targetclient.Client
	cmd    *exec.Cmd
}

func newProcess(t *testing.T) *process {
	t.Helper()
	p := &process{rig: newRig(t), log: filepath.Join(t.TempDir(), "log")}
	ca := newAuthority(t, "ca")
	ca.issue("server")
	ca.issue("controller")
	cfg := p.cfg
	cfg.Listen, cfg.Metrics.Listen = processListen, metricsListen
	cfg.TLS = target.TLSConfig{
		CertFile: ca.file("server.pem"), KeyFile: ca.file("server-key.pem"), ClientCAFile: ca.file("ca.pem"),
		AllowedClientNames: []string{"controller"},
	}
	text, err := yaml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.config = filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(p.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	p.client = connect(t, ca.client(processListen, "controller"))
	t.Cleanup(p.kill)
	p.start()
	return p
}

// start returns when the server says, as it does to systemd, that it is ready.
func (p *process) start() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	notify := filepath.Join(p.t.TempDir(), "notify")
	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = ready.Close() }()
	// Ended by kill: the test's context ends before the clean-up that needs it.
	p.cmd = exec.CommandContext(context.WithoutCancel(p.t.Context()), "/proc/self/exe")
	p.cmd.Env = append(os.Environ(), serveVariable+"="+p.config, "NOTIFY_SOCKET="+notify)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	if err := ready.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		p.t.Fatal(err)
	}
	said := make([]byte, 64)
	if n, err := ready.Read(said); err != nil || string(said[:n]) != "READY=1" {
		p.t.Fatalf("the server says %q, %v:\n%s", said[:n], err, p.logged())
	}
}

// kill gives the process no chance to end well.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // "killed" is what is wanted
		p.cmd = nil
	}
}

func (p *process) logged() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Error(err)
	}
	return string(b)
}

// retry calls until the server answers again, as a controller does.
func (p *process) retry(what string, call func(ctx context.Context) error) {
	p.t.Helper()
	var err error
	for range 60 {
		ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
		err = call(ctx)
		cancel()
		if !errors.Is(err, targetclient.ErrUnavailable) && !errors.Is(err, targetclient.ErrInProgress) {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", what, err, p.logged())
	}
}

func (p *process) exportTo(initiator, volume string, generation int64) target.Connection {
	p.t.Helper()
	var out target.Connection
	p.retry("export", func(ctx context.Context) error {
		c, err := p.client.ExportVolume(ctx, targetclient.ExportRequest{
			Name: volume, InitiatorIQN: initiator, CHAPUsername: "user", CHAPPassword: chapPassword, Generation: generation,
		})
		out = target.Connection{Portals: c.Portals, IQN: c.TargetIQN, LUN: c.LUN, WWID: c.WWID}
		return err
	})
	return out
}

// TestKernelProcess kills the real server, over its real interface, in the middle
// of its work, with and without a reboot of the machine.
func TestKernelProcess(t *testing.T) {
	p := newProcess(t)
	p.killedWhileZeroing()
	p.survivesKillAndReboot()
	p.killedWhileExporting()
	p.refusesOutdatedAndDeletes()
	if log := p.logged(); strings.Contains(log, chapPassword) {
		t.Errorf("the log has a password:\n%s", log)
	}
}

// killedWhileZeroing ends with the volume "v1", of zeros only.
func (p *process) killedWhileZeroing() {
	p.t.Helper()
	const size = 400 * mib
	met := false
	for range 10 { // on a busy machine the server may be done before anybody has looked
		if met = p.killedMeanwhile(size); met {
			break
		}
		p.retry("delete", func(ctx context.Context) error { return p.client.DeleteVolume(ctx, "v1") })
	}
	if !met {
		p.t.Fatal("the server had always zeroed before it was killed")
	}
	p.retry("create after the kill", func(ctx context.Context) error {
		_, err := p.client.CreateVolume(ctx, "v1", size, targetclient.Thick)
		return err
	})
	disk := p.mustLogin(p.exportTo(p.node, "v1", 1))
	p.wantZero("volume made again after a kill", disk, 0, size)
}

// killedMeanwhile has the volume made and the server killed when it is seen unfinished, and
// starts it again. It returns false if that came too late.
func (p *process) killedMeanwhile(size int64) bool {
	p.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := p.client.CreateVolume(p.t.Context(), "v1", size, targetclient.Thick)
		done <- err
	}()
	for !strings.Contains(p.must("lvs", "--noheadings", "-o", "lv_tags", kernelVG), "nearflash.unzeroed") {
		select {
		case err := <-done:
			if err != nil {
				p.t.Fatalf("create: %v", err)
			}
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	p.kill()
	err := <-done
	p.start()
	return err != nil
}

// wantMetrics wants the server to tell of one volume with a session, and of the real pool.
func (p *process) wantMetrics() {
	p.t.Helper()
	got := (&metered{address: metricsListen}).scrape(p.t)
	for key, want := range map[string]float64{
		"target_check_success{}": 1, "target_problems{}": 0, "target_volumes{provisioning=thick}": 1,
		"target_exports{}": 1, "target_admissions{}": 1, "target_sessions{}": 1, "target_exported_bytes{}": 400 * mib,
	} {
		if v, ok := got[key]; !ok || v != want {
			p.t.Errorf("%s = %v, there: %v; want %v\n%s", key, v, ok, want, p.logged())
		}
	}
	if got["target_pool_metadata_capacity_bytes{}"] <= 0 || got["target_pool_metadata_used_ratio{}"] <= 0 {
		p.t.Errorf("the pool has no metadata: %v", got)
	}
}

// survivesKillAndReboot finds a session on "v1" and leaves none.
func (p *process) survivesKillAndReboot() {
	p.t.Helper()
	c := p.exportTo(p.node, "v1", 1)
	disk := p.mustFind(c)
	data := p.random(mib)
	p.write(disk, data, 8*mib)
	p.kill()
	if !p.holds(disk, data, 8*mib) {
		p.t.Error("the export ended with the process")
	}
	p.start()
	if !p.holds(disk, data, 8*mib) {
		p.t.Error("the session did not survive the next start")
	}
	p.wantMetrics()
	p.logout(c)

	p.kill()
	p.clearLIO()
	p.must("vgchange", "--activate", "n", kernelVG)
	p.start()
	if _, err := p.login(c, otherIface, "user", chapPassword); err == nil {
		p.t.Error("the restored export lets another initiator in")
	}
	if disk = p.mustLogin(c); !p.holds(disk, data, 8*mib) {
		p.t.Error("data is gone after the reboot")
	}
	p.logout(c)
}

// killedWhileExporting kills the server at 8 moments of changes of owner.
func (p *process) killedWhileExporting() {
	p.t.Helper()
	nodes := []string{p.node, otherNode}
	for i := range 8 {
		ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
		done := make(chan struct{})
		go func() {
			defer close(done)
			// Cut off somewhere; the retry below must do the rest.
			_ = p.client.UnexportVolume(ctx, "v1", "", "")
			_, _ = p.client.ExportVolume(ctx, targetclient.ExportRequest{
				Name: "v1", InitiatorIQN: nodes[i%2], CHAPUsername: "user", CHAPPassword: chapPassword, Generation: int64(i + 2),
			})
		}()
		time.Sleep(time.Duration(i) * 50 * time.Millisecond)
		p.kill()
		cancel()
		<-done
		p.start()
		p.retry("unexport", func(ctx context.Context) error { return p.client.UnexportVolume(ctx, "v1", "", "") })
		c := p.exportTo(nodes[i%2], "v1", int64(i+2))
		ifaces := []string{"default", otherIface}
		if _, err := p.login(c, ifaces[(i+1)%2], "user", chapPassword); err == nil {
			p.t.Fatalf("killed after %d x 50 ms: the former owner is let in", i)
		}
		if _, err := p.login(c, ifaces[i%2], "user", chapPassword); err != nil {
			p.t.Fatalf("killed after %d x 50 ms: the owner is not let in: %v", i, err)
		}
		p.logout(c)
	}
}

func (p *process) refusesOutdatedAndDeletes() {
	p.t.Helper()
	ctx := p.t.Context()
	_, err := p.client.ExportVolume(ctx, targetclient.ExportRequest{
		Name: "v1", InitiatorIQN: otherNode, CHAPUsername: "user", CHAPPassword: chapPassword, Generation: 1,
	})
	if !errors.Is(err, targetclient.ErrStaleGeneration) {
		p.t.Errorf("export with an outdated generation: %v", err)
	}
	if err := p.client.DeleteVolume(ctx, "v1"); !errors.Is(err, targetclient.ErrExported) {
		p.t.Errorf("delete while exported: %v", err)
	}
	p.retry("unexport", func(ctx context.Context) error { return p.client.UnexportVolume(ctx, "v1", "", "") })
	p.retry("delete", func(ctx context.Context) error { return p.client.DeleteVolume(ctx, "v1") })
	if h, err := p.client.Health(ctx); err != nil || !h.Healthy {
		p.t.Errorf("health at the end: %+v, %v", h, err)
	}
	if lvs := strings.Fields(p.must("lvs", "--noheadings", "-o", "lv_name", kernelVG)); len(lvs) != 1 || lvs[0] != "pool" {
		p.t.Errorf("logical volumes left: %v", lvs)
	}
	tree := lio.NewTree(lio.NewFS(lio.DefaultRoot))
	targets, terr := tree.Targets("iqn.")
	stores, serr := tree.Backstores("")
	if err := errors.Join(terr, serr); err != nil || len(targets)+len(stores) > 0 {
		p.t.Errorf("left in the kernel: %v %v, %v", targets, stores, err)
	}
}
