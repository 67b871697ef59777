package kubectl_test

import (
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

const preloadToken = "2026-11-21T12:00:00Z"

// fills has the node say how far a preload is.
func fills(request string, s v1alpha1.PreloadState, cached, total int64, message string) func(*v1alpha1.CachedVolume) {
	return func(v *v1alpha1.CachedVolume) {
		v.Status.Preload = v1alpha1.PreloadStatus{Request: request, State: s, Message: message}
		if total > 0 {
			v.Status.Preload.TotalBytes, v.Status.Preload.CachedBytes = &total, &cached
		}
	}
}

func TestPreload(t *testing.T) {
	asks := func(path string, bandwidth int64) v1alpha1.CachedVolumeSpec {
		s := spec(wt, "10%")
		s.Preload = &v1alpha1.PreloadRequest{Request: preloadToken, Path: path}
		if bandwidth > 0 {
			s.Preload.BandwidthBytesPerSecond = &bandwidth
		}
		return s
	}
	asked := func(v *v1alpha1.CachedVolume) {
		v.Spec.Preload = &v1alpha1.PreloadRequest{Request: "r", Path: "models"}
	}
	documented := documentedOutput(t, "preload")[0]
	for tc, c := range map[string]changeCase{
		"with progress": {
			args: documented.args,
			objs: bound("shop", "data", "pvc-1", on("node-a"), fills("before", v1alpha1.PreloadCompleted, 1, 1, "everything is cached")),
			ticks: []func(*v1alpha1.CachedVolume){
				fills(preloadToken, v1alpha1.PreloadPending, 0, 0, "the cache is being filled already"),
				fills(preloadToken, v1alpha1.PreloadRunning, 0, 0, ""),
				fills(preloadToken, v1alpha1.PreloadRunning, 512*mib, 2*gib, ""),
				fills(preloadToken, v1alpha1.PreloadCompleted, 2*gib, 2*gib, "everything is cached"),
			},
			wantOut:  documented.out,
			wantSpec: asks("models/large", 0),
		},
		"the path is not there": {
			args:     []string{"preload", "data", "--path", "models"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			ticks:    []func(*v1alpha1.CachedVolume){fills(preloadToken, v1alpha1.PreloadFailed, 0, 0, "path models: there is no such directory or file in the volume")},
			wantOut:  "data: waiting for node node-a\n",
			wantErr:  "error: data: node node-a cannot do it: path models: there is no such directory or file in the volume\n",
			wantSpec: asks("models", 0),
		},
		"without waiting": {
			args:     []string{"preload", "data", "--wait=false", "--bandwidth", "100Mi"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantOut:  "data: preload requested: `kubectl nearflash describe -n default data` shows it, and --cancel ends it\n",
			wantSpec: asks("", 100*mib),
		},
		"detached meanwhile": {
			args:     []string{"preload", "data"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			ticks:    []func(*v1alpha1.CachedVolume){released("node-a")},
			wantOut:  "data: waiting for node node-a\n",
			wantErr:  "error: data: the volume was detached meanwhile: the preload goes on where it is attached next\n",
			wantSpec: asks("", 0),
		},
		"attached nowhere": {
			args:     []string{"preload", "data"},
			objs:     bound("default", "data", "pvc-1", released("node-a")),
			wantErr:  "error: data: it is attached nowhere: start its pod first; the class parameter preload fills the cache of a volume when it is attached\n",
			wantSpec: spec(wt, "10%"),
		},
		"cancelled": {
			args:     []string{"preload", "data", "--cancel"},
			objs:     bound("default", "data", "pvc-1", on("node-a"), asked, fills("r", v1alpha1.PreloadRunning, 1, 2, "")),
			wantOut:  "data: the preload is not asked for any more; what is cached stays\n",
			wantSpec: spec(wt, "10%"),
		},
		"cancelled when it was over": {
			args:     []string{"preload", "data", "--cancel"},
			objs:     bound("default", "data", "pvc-1", on("node-a"), asked, fills("r", v1alpha1.PreloadCompleted, 2, 2, "everything is cached")),
			wantOut:  "data: the preload was over (Completed)\n",
			wantSpec: spec(wt, "10%"),
		},
		"cancelled when there is none": {
			args:     []string{"preload", "data", "--cancel"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantOut:  "data: no preload was asked for\n",
			wantSpec: spec(wt, "10%"),
		},
	} {
		t.Run(tc, c.check)
	}
}
