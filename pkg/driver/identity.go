package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/klog/v2"
)

// Name is the CSI driver's name.
const Name = "csi.nearflash.io"

// Identity is the CSI identity service.
type Identity struct {
	csi.UnimplementedIdentityServer
	version  string
	ready    func(context.Context) error
	topology bool
	groups   bool
}

// NewIdentity returns an identity service. ready reports why the plugin cannot
// serve yet; nil means always ready.
func NewIdentity(version string, ready func(context.Context) error) *Identity {
	return &Identity{version: version, ready: ready}
}

// WithTopology has the plugin announce that volumes may be out of reach of some nodes, if on: the
// scheduler then says for which node a volume is made, and volumes of other CSI drivers say
// from which ones they can be reached.
func (i *Identity) WithTopology(on bool) *Identity {
	i.topology = on
	return i
}

// WithGroups has the plugin announce the group controller service, if on.
func (i *Identity) WithGroups(on bool) *Identity {
	i.groups = on
	return i
}

// GetPluginInfo implements csi.IdentityServer.
func (i *Identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: i.version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer. A volume of a storage server can be
// reached from every node that reaches that.
func (i *Identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	resp := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}
	if i.topology {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
		}}})
	}
	if i.groups {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE,
		}}})
	}
	return resp, nil
}

// Probe implements csi.IdentityServer.
func (i *Identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if i.ready == nil {
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
	}
	if err := i.ready(ctx); err != nil {
		// "Not ready yet" is an answer and not an error of the call.
		klog.FromContext(ctx).V(2).Info("Not ready", "reason", fmt.Sprint(err))
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
