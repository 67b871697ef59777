package kubectl

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/quantity"
	domain "github.com/nearflash/nearflash/pkg/volume"
)

func checkClasses(d *diagnosis, f *clusterFacts) {
	if len(f.classes) == 0 {
		d.ok("storageclasses", "none of provisioner %s: only existing LUNs can be used", driverName)
	}
	for _, c := range f.classes {
		object := "storageclass/" + c.Name
		if problems := append(classProblems(c.Parameters), originClassProblems(f, c.Parameters)...); len(problems) > 0 {
			d.add(sevError, object, "parameters of a class cannot be changed: delete it and make it anew; its volumes stay", "claims of it will fail: %s", strings.Join(problems, "; "))
		} else if target := c.Parameters["target"]; c.Parameters["backend"] != "csi" && f.reportsNo(target) {
			d.add(sevError, object, "add the server to targets of the chart; or delete the class and make it anew with another target, its volumes stay",
				"claims of it will fail: target %q is no storage server that a controller reports (accepted: %s)", target, f.reportedTargets())
		} else {
			d.ok(object, "valid")
		}
	}
}

// classParameters are the parameters of docs/reference/storageclass.md with the
// values that are enumerated there.
var classParameters = map[string][]string{
	"backend": {"iscsi", "csi"}, "target": nil, "originStorageClass": nil, "withoutFence": {domain.AcceptTwoWriters}, "cacheMode": modes, "acceptDirtyLoss": {"none", "node-loss", "power-loss"}, "redundancy": {"none", "mirror"}, "fsType": {"ext4", "xfs"}, "provisioning": {"thin", "thick"},
	"warmStart": {"peer", "origin", "off"}, "warmStartMethod": {"auto", "clone", "stream"}, "preload": {"none", "all"},
	"cacheSize": nil, "maxCacheSize": nil, "chunkSize": nil, "maxDirtyBytes": nil, "maxDirtyAge": nil, "warmStartBandwidth": nil, "warmStartDeadline": nil,
}

// maxCacheProblems says why the controller will refuse maxCacheSize, or cacheSize for it.
func maxCacheProblems(most, size string) []string {
	n, err := quantity.Bytes(most)
	if err != nil || n < driver.MinMaxCacheBytes {
		return []string{fmt.Sprintf("maxCacheSize %q is not accepted (accepted: whole bytes of at least %s)", most, quantity.Text(driver.MinMaxCacheBytes))}
	}
	if s, err := quantity.Size(size); err == nil && s.Bytes > n {
		return []string{fmt.Sprintf("cacheSize %q is more than maxCacheSize %q", size, most)}
	}
	return nil
}

// classProblems says why the controller will refuse the parameters of a class.
func classProblems(params map[string]string) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(params)) {
		value := params[key]
		accepted, known := classParameters[key]
		switch {
		case strings.HasPrefix(key, "csi.storage.k8s.io/"):
		case !known:
			out = append(out, fmt.Sprintf("unknown parameter %q", key))
		case accepted != nil && !slices.Contains(accepted, value):
			out = append(out, fmt.Sprintf("%s %q is not accepted (accepted: %s)", key, value, strings.Join(accepted, ", ")))
		case key == "cacheSize" && params["cacheMode"] != "none":
			if _, err := quantity.Size(value); err != nil {
				out = append(out, strings.TrimPrefix(err.Error(), domain.ErrInvalid.Error()+": "))
			}
		case key == "maxCacheSize":
			out = append(out, maxCacheProblems(value, params["cacheSize"])...)
		}
	}
	csi, origin := params["backend"] == "csi", params["originStorageClass"]
	if target := params["target"]; csi && target != "" {
		out = append(out, "target is for backend iscsi only")
	} else if target != "" && !domain.IsTarget(target) {
		out = append(out, fmt.Sprintf("target %q is not accepted (accepted: %s)", target, domain.TargetNames))
	}
	if csi && origin == "" {
		out = append(out, "backend csi needs originStorageClass")
	}
	if !csi && origin != "" {
		out = append(out, "originStorageClass is for backend csi only")
	}
	if !csi && params["withoutFence"] != "" {
		out = append(out, "withoutFence is for backend csi only")
	}
	if csi && params["provisioning"] != "" {
		out = append(out, "backend csi takes no provisioning")
	}
	out = append(out, warmProblems(params)...)
	mode := params["cacheMode"]
	out = append(out, consentProblems(v1alpha1.CacheMode(mode), v1alpha1.DirtyLoss(params["acceptDirtyLoss"]))...)
	for _, key := range []string{"maxDirtyAge", "maxDirtyBytes"} {
		if value := params[key]; !v1alpha1.CacheMode(mode).TakesWrites() && value != "" && value != "none" {
			out = append(out, key+" is for cacheMode writeback only")
		}
	}
	if mode == string(v1alpha1.CacheModeNone) && params["redundancy"] == string(v1alpha1.RedundancyMirror) {
		out = append(out, "cacheMode none takes no redundancy mirror")
	}
	if mode == string(v1alpha1.CacheModeNone) && params["cacheSize"] != "" {
		out = append(out, "cacheMode none takes no cacheSize")
	}
	return out
}

// consentProblems is classProblems for the loss that a mode needs accepted.
func consentProblems(mode v1alpha1.CacheMode, loss v1alpha1.DirtyLoss) []string {
	var out []string
	if mode.TakesWrites() && loss != mode.Consent() {
		out = append(out, fmt.Sprintf("cacheMode %s needs acceptDirtyLoss %s", mode, mode.Consent()))
	}
	for _, m := range []v1alpha1.CacheMode{v1alpha1.CacheModeWriteback, v1alpha1.CacheModeWritebackUnsafe} {
		if loss == m.Consent() && mode != m {
			out = append(out, fmt.Sprintf("acceptDirtyLoss %s is for cacheMode %s only", loss, m))
		}
	}
	return out
}

// warmProblems is classProblems for the warm start.
func warmProblems(params map[string]string) []string {
	var out []string
	from, bandwidth, deadline := params["warmStart"], params["warmStartBandwidth"], params["warmStartDeadline"]
	if bandwidth != "" {
		if n, err := quantity.Bytes(bandwidth); err != nil || n < 1<<20 || n > 1<<40 {
			out = append(out, fmt.Sprintf("warmStartBandwidth %q is not accepted (accepted: 1Mi to 1Ti)", bandwidth))
		}
	}
	if deadline != "" {
		if d, err := time.ParseDuration(deadline); err != nil || d < time.Minute || d > 24*time.Hour || d%time.Second != 0 {
			out = append(out, fmt.Sprintf("warmStartDeadline %q is not accepted (accepted: 1m to 24h)", deadline))
		}
	}
	switch {
	case params["cacheMode"] == string(v1alpha1.CacheModeNone):
		for _, key := range []string{"warmStart", "warmStartMethod", "warmStartBandwidth", "warmStartDeadline", "preload"} {
			if params[key] != "" {
				out = append(out, "cacheMode none takes no "+key)
			}
		}
	case from == "off" && bandwidth != "":
		out = append(out, "warmStart off takes no warmStartBandwidth")
	}
	if from == "off" && params["preload"] == "all" && params["cacheMode"] != string(v1alpha1.CacheModeNone) {
		out = append(out, "warmStart off takes no preload all")
	}
	if (from == "off" || from == "origin") && params["cacheMode"] != string(v1alpha1.CacheModeNone) {
		for _, key := range []string{"warmStartMethod", "warmStartDeadline"} {
			if params[key] != "" {
				out = append(out, "warmStart "+from+" takes no "+key)
			}
		}
	}
	return out
}
