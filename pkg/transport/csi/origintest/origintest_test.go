package origintest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/nearflash/nearflash/pkg/volume"
)

// caller calls the driver as it should be called, unless it is changed.
type caller struct {
	t       *testing.T
	d       *Driver
	files   *Files
	source  *volume.CSISource
	staging string
	target  string
}

func newCaller(t *testing.T, c Capabilities, state string) *caller {
	t.Helper()
	root := t.TempDir()
	files := &Files{Root: filepath.Join(root, "machine")}
	d := New(Config{
		Name: "d.example.com", Node: "n", Kubelet: root, State: state, Capabilities: c, Devices: files, Secrets: map[string]string{"k": "word-of-secret"},
	})
	source, err := d.Provision(t.Context(), "pv-1", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	devices := filepath.Join(root, "plugins/kubernetes.io/csi/volumeDevices")
	x := &caller{t: t, d: d, files: files, source: source, staging: filepath.Join(devices, "staging/pv-1"), target: filepath.Join(devices, "publish/pv-1/uid")}
	for _, dir := range []string{x.staging, filepath.Dir(x.target)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

func (x *caller) stage(change ...func(*csipb.NodeStageVolumeRequest)) {
	req := &csipb.NodeStageVolumeRequest{
		VolumeId: x.source.Handle, PublishContext: x.source.Attachment, VolumeContext: x.source.Attributes, StagingTargetPath: x.staging,
		VolumeCapability: proto.CloneOf(x.d.capability()), Secrets: map[string]string{"k": "word-of-secret"},
	}
	for _, f := range change {
		f(req)
	}
	_, err := x.d.NodeStageVolume(x.t.Context(), req)
	x.agree(err)
}

func (x *caller) publish(change ...func(*csipb.NodePublishVolumeRequest)) {
	req := &csipb.NodePublishVolumeRequest{
		VolumeId: x.source.Handle, PublishContext: x.source.Attachment, VolumeContext: x.source.Attributes, StagingTargetPath: x.staging,
		TargetPath: x.target, VolumeCapability: proto.CloneOf(x.d.capability()), Secrets: map[string]string{"k": "word-of-secret"},
	}
	for _, f := range change {
		f(req)
	}
	_, err := x.d.NodePublishVolume(x.t.Context(), req)
	x.agree(err)
}

func (x *caller) unpublish() {
	_, err := x.d.NodeUnpublishVolume(x.t.Context(), &csipb.NodeUnpublishVolumeRequest{VolumeId: x.source.Handle, TargetPath: x.target})
	x.agree(err)
}

func (x *caller) unstage() {
	_, err := x.d.NodeUnstageVolume(x.t.Context(), &csipb.NodeUnstageVolumeRequest{VolumeId: x.source.Handle, StagingTargetPath: x.staging})
	x.agree(err)
}

func (x *caller) expand(change ...func(*csipb.NodeExpandVolumeRequest)) {
	req := &csipb.NodeExpandVolumeRequest{
		VolumeId: x.source.Handle, VolumePath: x.target, StagingTargetPath: x.staging, VolumeCapability: x.d.capability(),
		CapacityRange: &csipb.CapacityRange{RequiredBytes: 1 << 20}, Secrets: map[string]string{"k": "word-of-secret"},
	}
	for _, f := range change {
		f(req)
	}
	_, err := x.d.NodeExpandVolume(x.t.Context(), req)
	x.agree(err)
}

func (x *caller) attach(node string) {
	_, err := x.d.ControllerPublishVolume(x.t.Context(), &csipb.ControllerPublishVolumeRequest{
		VolumeId: x.source.Handle, NodeId: node, VolumeCapability: x.d.capability(), VolumeContext: x.source.Attributes,
	})
	x.agree(err)
}

func (x *caller) detach() {
	_, err := x.d.ControllerUnpublishVolume(x.t.Context(), &csipb.ControllerUnpublishVolumeRequest{VolumeId: x.source.Handle, NodeId: "n"})
	x.agree(err)
}

func (x *caller) remove() {
	_, err := x.d.DeleteVolume(x.t.Context(), &csipb.DeleteVolumeRequest{VolumeId: x.source.Handle})
	x.agree(err)
}

// agree wants a breach refused.
func (x *caller) agree(err error) {
	x.t.Helper()
	breaches, other := x.d.Breaches()
	if other != nil || (len(breaches) > 0) != (err != nil) {
		x.t.Errorf("breaches %v, error %v, %v", breaches, err, other)
	}
}

type (
	stageReq   = csipb.NodeStageVolumeRequest
	publishReq = csipb.NodePublishVolumeRequest
	expandReq  = csipb.NodeExpandVolumeRequest
)

var breachesOf = map[string]struct {
	call func(x *caller)
	want string
}{
	"stage without attachment":    {func(x *caller) { x.detach(); x.stage() }, "attached to"},
	"stage with another context":  {func(x *caller) { x.stage(func(r *stageReq) { r.PublishContext = nil }) }, "publish_context"},
	"stage with other attributes": {func(x *caller) { x.stage(func(r *stageReq) { r.VolumeContext = nil }) }, "volume_context"},
	"stage without secrets":       {func(x *caller) { x.stage(func(r *stageReq) { r.Secrets = nil }) }, "secrets"},
	"stage without capability":    {func(x *caller) { x.stage(func(r *stageReq) { r.VolumeCapability = nil }) }, "no volume_capability"},
	"stage without access mode":   {func(x *caller) { x.stage(func(r *stageReq) { r.VolumeCapability.AccessMode = nil }) }, "no access mode"},
	"stage for another mode":      {func(x *caller) { x.stage(func(r *stageReq) { r.VolumeCapability.AccessMode.Mode = 7 }) }, "access mode"},
	"stage as a file system":      {func(x *caller) { x.stage(func(r *stageReq) { r.VolumeCapability.AccessType = nil }) }, "access type"},
	"stage elsewhere":             {func(x *caller) { x.stage(func(r *stageReq) { r.StagingTargetPath = "/tmp/x" }) }, "is not below"},
	"stage above":                 {func(x *caller) { x.stage(func(r *stageReq) { r.StagingTargetPath += "/../../../../../../x" }) }, "is not below"},
	"stage nowhere":               {func(x *caller) { x.stage(func(r *stageReq) { r.StagingTargetPath = "" }) }, "no staging_target_path"},
	"stage without directory":     {func(x *caller) { _ = os.Remove(x.staging); x.stage() }, "no directory"},
	"stage for everybody":         {func(x *caller) { _ = os.Chmod(x.staging, 0o755); x.stage() }, "has mode"},
	"stage twice": {func(x *caller) {
		x.stage()
		x.stage(func(r *stageReq) { r.StagingTargetPath = filepath.Dir(x.target) })
	}, "and now at"},
	"publish before stage":     {func(x *caller) { x.publish() }, "before it is staged"},
	"publish from elsewhere":   {func(x *caller) { x.stage(); x.publish(func(r *publishReq) { r.StagingTargetPath = "" }) }, "published from"},
	"publish readonly":         {func(x *caller) { x.stage(); x.publish(func(r *publishReq) { r.Readonly = true }) }, "readonly"},
	"publish elsewhere":        {func(x *caller) { x.stage(); x.publish(func(r *publishReq) { r.TargetPath = "/dev/x" }) }, "is not below"},
	"publish over a file":      {func(x *caller) { x.stage(); _ = os.WriteFile(x.target, nil, 0o600); x.publish() }, "made by the caller"},
	"publish twice":            {func(x *caller) { x.stage(); x.publish(); x.publish(func(r *publishReq) { r.TargetPath += "2" }) }, "second target"},
	"unpublish without target": {func(x *caller) { x.stage(); x.publish(); _ = os.Remove(x.target); x.unpublish() }, "taken away by the caller"},
	"unstage while published":  {func(x *caller) { x.stage(); x.publish(); x.unstage() }, "while published"},
	"unstage while open": {func(x *caller) {
		x.stage()
		x.publish()
		x.unpublish()
		x.files.SetOpen(x.source.Handle, true)
		x.unstage()
	}, "is open"},
	"unstage of a changed folder":  {func(x *caller) { x.stage(); _ = os.RemoveAll(x.staging); x.unstage() }, "changed by the caller"},
	"unstage elsewhere":            {func(x *caller) { x.stage(); x.staging += "2"; x.unstage() }, "unstaged at"},
	"expand what is not published": {func(x *caller) { x.stage(); x.expand() }, "not published"},
	"expand from elsewhere":        {func(x *caller) { x.stage(); x.publish(); x.expand(func(r *expandReq) { r.StagingTargetPath = "" }) }, "staging_target_path"},
	"expand beyond the controller": {func(x *caller) {
		x.stage()
		x.publish()
		x.expand(func(r *expandReq) { r.CapacityRange.RequiredBytes++ })
	}, "controller has made it"},
	"a second attachment":   {func(x *caller) { x.attach("m") }, "second attachment"},
	"detach while staged":   {func(x *caller) { x.stage(); x.detach() }, "in use"},
	"delete while attached": {func(x *caller) { x.remove() }, "in use"},
}

func TestBreaches(t *testing.T) {
	for name, tc := range breachesOf {
		t.Run(name, func(t *testing.T) {
			x := newCaller(t, Capabilities{Attach: true, Stage: true, Expand: true}, "")
			tc.call(x)
			breaches, err := x.d.Breaches()
			if err != nil || len(breaches) != 1 || !strings.Contains(breaches[0], tc.want) || strings.Contains(breaches[0], "word-of") {
				t.Errorf("breaches %q, %v", breaches, err)
			}
			if reports := len(check(x.d)); reports == 0 {
				t.Error("the test does not fail")
			}
		})
	}
}

func TestNotAnnounced(t *testing.T) {
	for _, call := range []func(*caller){func(x *caller) { x.stage() }, (*caller).unstage, func(x *caller) { x.expand() }, func(x *caller) { x.attach("n") }, (*caller).detach} {
		x := newCaller(t, Capabilities{}, "")
		call(x)
		if breaches, err := x.d.Breaches(); err != nil || len(breaches) != 1 || !strings.Contains(breaches[0], "not announced") {
			t.Errorf("breaches %q, %v", breaches, err)
		}
	}
}

// TestGoodCaller has no breach, and repeats each call. The state outlives the driver.
func TestGoodCaller(t *testing.T) {
	for _, state := range []string{"", t.TempDir()} {
		x := newCaller(t, Capabilities{Attach: true, Stage: true, Expand: true, MultiWriter: true}, state)
		again := func(f func()) {
			t.Helper()
			for range 2 {
				f()
				if state != "" {
					x.d = New(x.d.c)
				}
			}
		}
		again(func() { x.stage() })
		again(func() { x.publish() })
		again(func() { x.expand() })
		if left, err := x.d.Left(); err != nil || len(left) != 3 {
			t.Errorf("left: %v, %v", left, err)
		}
		if reports := check(x.d); len(reports) != 1 || !strings.Contains(reports[0], "published on n") {
			t.Errorf("reports: %v", reports)
		}
		again(x.unpublish)
		again(x.unstage)
		again(x.detach)
		again(x.remove)
		if reports := check(x.d); len(reports) > 0 {
			t.Errorf("reports: %v", reports)
		}
	}
}

// recorder is a TB.
type recorder struct {
	reports []string
	end     func()
}

func (*recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.reports = append(r.reports, fmt.Sprintf(format, args...))
}

func (r *recorder) Cleanup(f func()) { r.end = f }

// check is what Check reports at a test's end.
func check(d *Driver) []string {
	r := &recorder{}
	d.Check(r)
	r.end()
	return r.reports
}

func TestServe(t *testing.T) {
	root, err := os.MkdirTemp("", "nf")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(root) }()
	d := New(Config{Name: "d.example.com", Node: "n", Kubelet: root, Devices: &Files{}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Serve(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(d.Registration()); !os.IsNotExist(err) {
		t.Errorf("socket: %v", err)
	}
}
