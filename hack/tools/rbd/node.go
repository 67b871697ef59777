package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// contextFenced is the key of the publish context with the addresses of fenced clients.
const contextFenced = "fenced"

// Keys of the secret that a node maps images with, those of ceph-csi.
const (
	secretUser = "userID"
	secretKey  = "userKey"
)

// expandLimit bounds the wait for a new size.
const expandLimit = 30 * time.Second

// kernel is what maps images; tests have one in memory.
type kernel interface {
	find(image string) (mapping, bool, error)
	attach(r mapRequest) error
	lock(m mapping) error
	detach(m mapping) error
	refresh(m mapping) error
	device(m mapping) string
	disk(ctx context.Context, m mapping) (string, error)
	awaitSize(ctx context.Context, m mapping, want int64) (int64, error)
}

// mounter binds device nodes; tests have one in memory.
type mounter interface {
	// bound tells whether a device is there already.
	bound(device, target string) (bool, error)
	bind(device, target string) error
	unbind(target string) error
}

// node maps images.
type node struct {
	csi.UnimplementedNodeServer
	name, dir, boot string
	kernel          kernel
	mounts          mounter
	inProgress
}

// staged is what is kept of a volume that is staged, in a file: the calls that end it do
// not say where it was published.
type staged struct {
	Boot    string   `json:"boot"`
	ID      int      `json:"id"`
	Client  string   `json:"client"`
	Staging string   `json:"staging"`
	Targets []string `json:"targets"`
	// SCSI says that the image is a disk of SCSI.
	SCSI bool `json:"scsi,omitempty"`
}

func newNode(name, dir string) (*node, error) {
	if name == "" {
		return nil, errors.New("--mode node wants --node-name")
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("boot id: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return &node{name: name, dir: dir, boot: strings.TrimSpace(string(boot)), kernel: krbd{sys: "/sys", dev: "/dev"}, mounts: binds{}}, nil
}

// NodeGetInfo implements NodeServer.
func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.name}, nil
}

// NodeGetCapabilities implements NodeServer.
func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	} {
		rpc := &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}}
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{Type: rpc})
	}
	return answer, nil
}

func (n *node) file(image string) string {
	return filepath.Join(n.dir, strings.ReplaceAll(image, "/", "@")+".json")
}

// load reads what is kept of a volume; what an earlier boot has left does not count.
func (n *node) load(image string) (s staged, found bool, err error) {
	b, err := os.ReadFile(n.file(image))
	if errors.Is(err, os.ErrNotExist) {
		return staged{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return staged{}, false, status.Errorf(codes.Internal, "state of %s: %v", image, err)
	}
	return s, s.Boot == n.boot, nil
}

func (n *node) save(image string, s staged) error {
	b, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(n.file(image)+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(n.file(image)+".new", n.file(image))
	}
	if err != nil {
		return status.Errorf(codes.Internal, "state of %s: %v", image, err)
	}
	return nil
}

// NodeStageVolume implements NodeServer. A mapping that a killed call has left, or whose
// client was fenced, is unmapped first: only one that was made for this publication is
// taken.
func (n *node) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	end, err := n.begin(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	image := r.GetVolumeId()
	request := mapRequest{
		image: image, monitors: r.GetVolumeContext()[paramMonitors], user: r.GetSecrets()[secretUser], key: r.GetSecrets()[secretKey],
	}
	if err := checkStage(r, request); err != nil {
		return nil, err
	}
	s, found, err := n.load(image)
	if err != nil {
		return nil, err
	}
	m, mapped, err := n.kernel.find(image)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	isFenced := mapped && slices.Contains(strings.Fields(r.GetPublishContext()[contextFenced]), m.Client)
	switch {
	case found && s.Staging != r.GetStagingTargetPath():
		return nil, status.Errorf(codes.FailedPrecondition, "%s is staged at %s", image, s.Staging)
	case found && isFenced:
		return nil, status.Errorf(codes.FailedPrecondition, "client %s of %s is fenced: unstage the volume first", m.Client, image)
	case found && mapped && m.ID == s.ID && m.Client == s.Client:
		return &csi.NodeStageVolumeResponse{}, nil
	}
	if mapped {
		if err := n.kernel.detach(m); err != nil {
			return nil, unmapError(err)
		}
	}
	if err := n.stage(request, r.GetStagingTargetPath(), r.GetVolumeContext()[paramDisk] == diskSCSI); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func checkStage(r *csi.NodeStageVolumeRequest, request mapRequest) error {
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return err
	}
	for name, word := range map[string]string{
		"volume context " + paramMonitors: request.monitors, "secret " + secretUser: request.user, "secret " + secretKey: request.key,
		"staging path": r.GetStagingTargetPath(),
	} {
		if word == "" || strings.ContainsAny(word, " \t\n") {
			return status.Errorf(codes.InvalidArgument, "%s is absent, or has blanks", name)
		}
	}
	if st, err := os.Stat(r.GetStagingTargetPath()); err != nil || !st.IsDir() {
		return status.Errorf(codes.FailedPrecondition, "staging path %s is no folder (%v)", r.GetStagingTargetPath(), err)
	}
	return nil
}

func (n *node) stage(request mapRequest, path string, scsi bool) error {
	if err := n.kernel.attach(request); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	m, mapped, err := n.kernel.find(request.image)
	if err != nil || !mapped {
		return status.Errorf(codes.Internal, "%s was mapped and is not there: %v", request.image, err)
	}
	if err := n.kernel.lock(m); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return n.save(request.image, staged{Boot: n.boot, ID: m.ID, Client: m.Client, Staging: path, SCSI: scsi})
}

// unmapError says that a device is open where it is.
func unmapError(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// NodeUnstageVolume implements NodeServer.
func (n *node) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	end, err := n.begin(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	image := r.GetVolumeId()
	s, found, err := n.load(image)
	if err != nil {
		return nil, err
	}
	if found && s.Staging != r.GetStagingTargetPath() {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is staged at %s, not at %s", image, s.Staging, r.GetStagingTargetPath())
	}
	if found && len(s.Targets) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is still published at %s", image, strings.Join(s.Targets, ", "))
	}
	m, mapped, err := n.kernel.find(image)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if mapped {
		if err := n.kernel.detach(m); err != nil {
			return nil, unmapError(err)
		}
	}
	if err := os.Remove(n.file(image)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Errorf(codes.Internal, "state of %s: %v", image, err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// current returns the mapping of a volume that is staged.
func (n *node) current(image string) (staged, mapping, error) {
	s, found, err := n.load(image)
	if err != nil {
		return staged{}, mapping{}, err
	}
	m, mapped, err := n.kernel.find(image)
	if err != nil {
		return staged{}, mapping{}, status.Error(codes.Internal, err.Error())
	}
	if !found || !mapped || m.ID != s.ID || m.Client != s.Client {
		return staged{}, mapping{}, status.Errorf(codes.FailedPrecondition, "%s is not staged", image)
	}
	return s, m, nil
}

// NodePublishVolume implements NodeServer.
func (n *node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	end, err := n.begin(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	target := r.GetTargetPath()
	if target == "" || r.GetReadonly() {
		return nil, status.Error(codes.InvalidArgument, "want a target path, and not read-only")
	}
	s, m, err := n.current(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if s.Staging != r.GetStagingTargetPath() {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is staged at %s, not at %s", r.GetVolumeId(), s.Staging, r.GetStagingTargetPath())
	}
	// Before the mount: a publication that was killed in between keeps the volume staged.
	if !slices.Contains(s.Targets, target) {
		s.Targets = append(s.Targets, target)
		if err := n.save(r.GetVolumeId(), s); err != nil {
			return nil, err
		}
	}
	device := n.kernel.device(m)
	if s.SCSI {
		device, err = n.kernel.disk(ctx, m)
	}
	bound := false
	if err == nil {
		bound, err = n.mounts.bound(device, target)
	}
	if err == nil && !bound {
		err = n.mounts.bind(device, target)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "publish at %s: %v", target, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume implements NodeServer.
func (n *node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	end, err := n.begin(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	s, found, err := n.load(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	target := r.GetTargetPath()
	if target == "" {
		return nil, status.Error(codes.InvalidArgument, "no target path")
	}
	if err := n.mounts.unbind(target); err != nil {
		return nil, status.Errorf(codes.Internal, "unpublish at %s: %v", target, err)
	}
	if found && slices.Contains(s.Targets, target) {
		s.Targets = slices.DeleteFunc(s.Targets, func(t string) bool { return t == target })
		if err := n.save(r.GetVolumeId(), s); err != nil {
			return nil, err
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume implements NodeServer: the kernel hears of a new size by itself, and
// is asked all the same, so that the answer can say that it has it. The lock went to who
// has changed the size, and is taken back.
func (n *node) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	end, err := n.begin(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	s, m, err := n.current(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if s.SCSI {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is a disk of SCSI, which does not grow", r.GetVolumeId())
	}
	if err := n.kernel.refresh(m); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, expandLimit)
	defer cancel()
	size, err := n.kernel.awaitSize(ctx, m, r.GetCapacityRange().GetRequiredBytes())
	if err == nil {
		err = n.kernel.lock(m)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}
