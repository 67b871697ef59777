package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/GoogleCloudPlatform/k8s-cloud-provider/pkg/cloud/meta"
	"github.com/container-storage-interface/spec/lib/go/csi"
	computebeta "google.golang.org/api/compute/v0.beta"
	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/common"
	gce "sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/gce-cloud-provider/compute"
	"sigs.k8s.io/gcp-compute-persistent-disk-csi-driver/pkg/parameters"
)

// cloud is what the driver's controller takes for Compute Engine. Upstream's fake
// answers what has no state; disks and attachments are its own, on files. Zonal disks
// alone exist.
type cloud struct {
	*gce.FakeCloudProvider
	project string
	// zones maps machines to where they are.
	zones   map[string]string
	plugger plugger

	// mu is held over whole operations, plugs included: a disk is never in two
	// machines because of two calls at a time.
	mu    sync.Mutex
	store *store
}

var _ gce.GCECompute = (*cloud)(nil)

// newCloud opens the cloud with its state in dir, and brings machines into line with
// it: what is attached is plugged in, what was being changed is taken out.
func newCloud(ctx context.Context, project string, zones map[string]string, dir string, p plugger) (*cloud, error) {
	store, err := openStore(dir)
	if err != nil {
		return nil, err
	}
	fake, err := gce.CreateFakeCloudProvider(project, slices.Min(slices.Collect(maps.Values(zones))), nil)
	if err != nil {
		return nil, fmt.Errorf("cloud: %w", err)
	}
	c := &cloud{FakeCloudProvider: fake, project: project, zones: zones, plugger: p, store: store}
	for name, r := range store.disks {
		for _, a := range slices.Clone(r.Attachments) {
			if err := c.settle(ctx, name, r, a); err != nil {
				// The disk stays the machine's; the next call for it tries again.
				klog.ErrorS(err, "Disk is not as recorded", "disk", name, "instance", a.Instance)
			}
		}
	}
	return c, store.save()
}

// settle makes true what is recorded of one attachment.
func (c *cloud) settle(ctx context.Context, name string, r *record, a attachment) error {
	if !a.Changing {
		return c.plugger.plug(ctx, a.Instance, c.store.image(name), name, a.Mode == readOnly)
	}
	if err := c.plugger.unplug(ctx, a.Instance, name); err != nil {
		return err
	}
	r.forget(a.Instance)
	return nil
}

// Modes of attachments, in the words of the API.
const (
	readOnly       = "READ_ONLY"
	resourceInUse  = "resourceInUseByAnotherResource"
	reasonNotFound = "notFound"
	reasonInvalid  = "invalid"
)

func failure(code int, reason, format string, args ...any) error {
	msg := fmt.Sprintf(format, args...)
	return &googleapi.Error{Code: code, Message: msg, Errors: []googleapi.ErrorItem{{Reason: reason, Message: msg}}}
}

// lookup finds a disk; c.mu is held.
func (c *cloud) lookup(key *meta.Key) (*record, error) {
	r := c.store.disks[key.Name]
	if r == nil || key.Type() != meta.Zonal || r.Disk.Zone != key.Zone {
		return nil, failure(http.StatusNotFound, reasonNotFound, "The resource '%s' was not found", key)
	}
	return r, nil
}

func (c *cloud) instanceURI(name string) string {
	return fmt.Sprintf("%sprojects/%s/zones/%s/instances/%s", gce.BasePath, c.project, c.zones[name], name)
}

// view is a disk as the API shows it.
func (c *cloud) view(r *record) *computebeta.Disk {
	d := *r.Disk
	d.Users = nil
	for _, a := range r.Attachments {
		d.Users = append(d.Users, c.instanceURI(a.Instance))
	}
	return &d
}

// GetDisk implements GCECompute.
func (c *cloud) GetDisk(_ context.Context, _ string, key *meta.Key) (*gce.CloudDisk, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.lookup(key)
	if err != nil {
		return nil, err
	}
	return gce.CloudDiskFromBeta(c.view(r)), nil
}

// InsertDisk implements GCECompute: an empty disk, or the copy of another.
func (c *cloud) InsertDisk(ctx context.Context, project string, key *meta.Key, params parameters.DiskParameters, capBytes int64, capacity *csi.CapacityRange, _ []string, snapshot, source string, multiWriter bool, accessMode string) error {
	if key.Type() != meta.Zonal {
		return failure(http.StatusBadRequest, reasonInvalid, "This cloud has zonal disks only, not '%s'", key)
	}
	if snapshot != "" {
		return failure(http.StatusNotImplemented, reasonInvalid, "This cloud has no snapshots")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, err := c.lookup(key); err == nil {
		return gce.ValidateExistingDisk(ctx, gce.CloudDiskFromBeta(c.view(r)), params,
			capacity.GetRequiredBytes(), capacity.GetLimitBytes(), multiWriter, accessMode)
	}
	if c.store.disks[key.Name] != nil {
		return failure(http.StatusConflict, "alreadyExists", "This cloud has a disk '%s' in another zone", key.Name)
	}
	sourceName := ""
	if source != "" {
		_, sourceKey, err := common.VolumeIDToKey(source)
		if err != nil {
			return failure(http.StatusBadRequest, reasonInvalid, "%v", err)
		}
		if _, err := c.lookup(sourceKey); err != nil {
			return err
		}
		sourceName = sourceKey.Name
	}
	d := &computebeta.Disk{
		Name: key.Name, Zone: key.Zone, SizeGb: common.BytesToGbRoundUp(capBytes), Status: "READY",
		Type: c.GetDiskTypeURI(project, key, params.DiskType), SelfLink: c.GetDiskSourceURI(project, key),
		SourceDiskId: source, Labels: params.Labels, AccessMode: accessMode, MultiWriter: multiWriter,
		ProvisionedIops: params.ProvisionedIOPSOnCreate, ProvisionedThroughput: params.ProvisionedThroughputOnCreate,
	}
	if err := c.store.makeImage(key.Name, sourceName, common.GbToBytes(d.SizeGb)); err != nil {
		return err
	}
	c.store.disks[key.Name] = &record{Disk: d}
	return c.store.save()
}

// DeleteDisk implements GCECompute; a disk that is attached stays.
func (c *cloud) DeleteDisk(_ context.Context, _ string, key *meta.Key) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.lookup(key)
	if gce.IsGCENotFoundError(err) {
		return nil
	}
	if err := c.mustBeFree(r); err != nil {
		return err
	}
	delete(c.store.disks, key.Name)
	return errors.Join(c.store.save(), c.store.removeImage(key.Name))
}

// mustBeFree fails as Compute Engine does when a disk is attached.
func (c *cloud) mustBeFree(r *record) error {
	if len(r.Attachments) == 0 {
		return nil
	}
	return failure(http.StatusBadRequest, resourceInUse, "The disk resource '%s' is already being used by '%s'",
		r.Disk.SelfLink, c.instanceURI(r.Attachments[0].Instance))
}

// ResizeDisk implements GCECompute; disks do not shrink. A machine that has the disk
// sees the new size when it is attached anew.
func (c *cloud) ResizeDisk(_ context.Context, _ string, key *meta.Key, bytes int64) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.lookup(key)
	if err != nil {
		return -1, err
	}
	if size := common.BytesToGbRoundUp(bytes); size > r.Disk.SizeGb {
		if err := c.store.growImage(key.Name, common.GbToBytes(size)); err != nil {
			return -1, err
		}
		r.Disk.SizeGb = size
	}
	return r.Disk.SizeGb, c.store.save()
}

// AttachDisk implements GCECompute: on return the machine has the device, if it runs.
func (c *cloud) AttachDisk(ctx context.Context, _ string, key *meta.Key, mode, _, zone, instance string, _ bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.lookup(key)
	if err != nil {
		return err
	}
	if c.zones[instance] != zone || key.Zone != zone {
		return failure(http.StatusBadRequest, reasonInvalid, "The disk '%s' and the instance '%s' are not both in zone %s", key, instance, zone)
	}
	for _, a := range slices.Clone(r.Attachments) {
		if a.Instance == instance || mode == readOnly && a.Mode == readOnly {
			continue
		}
		if !a.Changing {
			return c.mustBeFree(r)
		}
		if err := c.settle(ctx, key.Name, r, a); err != nil {
			return errors.Join(c.mustBeFree(r), err)
		}
	}
	if r.find(instance) == nil {
		if err := c.mustHaveRoom(instance); err != nil {
			return err
		}
		r.Attachments = append(r.Attachments, attachment{Instance: instance})
	}
	a := r.find(instance)
	a.Mode, a.Changing = mode, true
	if err := c.store.save(); err != nil {
		return err
	}
	if err := c.plugger.plug(ctx, instance, c.store.image(key.Name), key.Name, mode == readOnly); err != nil {
		// Whether it was plugged in is not known: the machine keeps it until it is
		// known to be out.
		if undo := c.plugger.unplug(ctx, instance, key.Name); undo != nil {
			return errors.Join(err, undo)
		}
		r.forget(instance)
		return errors.Join(err, c.store.save())
	}
	a.Changing = false
	return c.store.save()
}

// mustHaveRoom fails as Compute Engine does when a machine has as many disks as it takes: the
// driver makes InvalidArgument of it. What is being changed counts. c.mu is held.
func (c *cloud) mustHaveRoom(instance string) error {
	limit, err := c.store.limit(instance)
	if err != nil {
		return err
	}
	have := int64(0)
	for _, r := range c.store.disks {
		if r.find(instance) != nil {
			have++
		}
	}
	if have < limit {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "operation failed (UNSUPPORTED_OPERATION): Maximum disks count should be less than or equal to [%d], Requested : [%d]", limit, have+1)
}

// DetachDisk implements GCECompute. It fails while the machine has the device open.
func (c *cloud) DetachDisk(ctx context.Context, _, device, _, instance string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.store.disks[device]
	if r == nil || r.find(instance) == nil {
		return nil
	}
	if err := c.plugger.unplug(ctx, instance, device); err != nil {
		return fmt.Errorf("detach %s from %s: %w", device, instance, err)
	}
	r.forget(instance)
	return c.store.save()
}

// SetDiskAccessMode implements GCECompute.
func (c *cloud) SetDiskAccessMode(_ context.Context, _ string, key *meta.Key, mode string) error {
	return c.update(key, func(d *computebeta.Disk) { d.AccessMode = mode })
}

// SetDiskLabels implements GCECompute.
func (c *cloud) SetDiskLabels(_ context.Context, _ string, key *meta.Key, _ *gce.CloudDisk, labels map[string]string) error {
	return c.update(key, func(d *computebeta.Disk) { d.Labels = labels })
}

// UpdateDisk implements GCECompute.
func (c *cloud) UpdateDisk(_ context.Context, _ string, key *meta.Key, _ *gce.CloudDisk, params parameters.ModifyVolumeParameters) error {
	return c.update(key, func(d *computebeta.Disk) {
		if params.IOPS != nil {
			d.ProvisionedIops = *params.IOPS
		}
		if params.Throughput != nil {
			d.ProvisionedThroughput = *params.Throughput
		}
	})
}

func (c *cloud) update(key *meta.Key, change func(*computebeta.Disk)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.lookup(key)
	if err != nil {
		return err
	}
	change(r.Disk)
	return c.store.save()
}

// ListDisks implements GCECompute.
func (c *cloud) ListDisks(context.Context, []googleapi.Field) ([]*compute.Disk, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*compute.Disk
	for _, name := range slices.Sorted(maps.Keys(c.store.disks)) {
		// The two versions of the API have the same JSON, but for fields that one
		// does not know.
		b, err := json.Marshal(c.view(c.store.disks[name]))
		if err != nil {
			return nil, "", fmt.Errorf("disk %s: %w", name, err)
		}
		d := &compute.Disk{}
		if err := json.Unmarshal(b, d); err != nil {
			return nil, "", fmt.Errorf("disk %s: %w", name, err)
		}
		list = append(list, d)
	}
	return list, "", nil
}

// ListDisksWithFilter implements GCECompute; it knows no filter.
func (c *cloud) ListDisksWithFilter(ctx context.Context, fields []googleapi.Field, _ string) ([]*compute.Disk, string, error) {
	return c.ListDisks(ctx, fields)
}

// ListInstances implements GCECompute.
func (c *cloud) ListInstances(context.Context, []googleapi.Field) ([]*compute.Instance, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*compute.Instance
	for _, name := range slices.Sorted(maps.Keys(c.zones)) {
		list = append(list, c.instance(name))
	}
	return list, "", nil
}

// GetInstanceOrError implements GCECompute.
func (c *cloud) GetInstanceOrError(_ context.Context, _, zone, name string) (*compute.Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.zones[name] != zone {
		return nil, failure(http.StatusNotFound, reasonNotFound, "The resource '%s' was not found", name)
	}
	return c.instance(name), nil
}

// instance is a machine as the API shows it; c.mu is held.
func (c *cloud) instance(name string) *compute.Instance {
	i := &compute.Instance{Name: name, Zone: c.zones[name], SelfLink: c.instanceURI(name), Status: "RUNNING"}
	for disk, r := range c.store.disks {
		// A change that failed in the middle is not there to the one who attaches: it
		// is tried again. DetachDisk knows it all the same.
		if a := r.find(name); a != nil && !a.Changing {
			i.Disks = append(i.Disks, &compute.AttachedDisk{DeviceName: disk, Mode: a.Mode, Source: r.Disk.SelfLink, Type: "PERSISTENT"})
		}
	}
	return i
}

// ListZones implements GCECompute.
func (c *cloud) ListZones(context.Context, string) ([]string, error) {
	return slices.Compact(slices.Sorted(maps.Values(c.zones))), nil
}

// RepairUnderspecifiedVolumeKey implements GCECompute, for keys that say everything.
func (c *cloud) RepairUnderspecifiedVolumeKey(_ context.Context, project string, key *meta.Key, _ string) (string, *meta.Key, error) {
	return project, key, nil
}

// CreateSnapshot implements GCECompute: upstream's fake would make one without data.
func (c *cloud) CreateSnapshot(context.Context, string, *meta.Key, string, parameters.SnapshotParameters) (*compute.Snapshot, error) {
	return nil, failure(http.StatusNotImplemented, reasonInvalid, "This cloud has no snapshots")
}

// CreateImage implements GCECompute, as CreateSnapshot.
func (c *cloud) CreateImage(context.Context, string, *meta.Key, string, parameters.SnapshotParameters) (*compute.Image, error) {
	return nil, failure(http.StatusNotImplemented, reasonInvalid, "This cloud has no images")
}
