package driver

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/volume"
)

// fromPeer is the warm start of a class that says nothing of it.
func fromPeer() volume.WarmStart { return volume.WarmStart{From: volume.WarmPeer} }

func TestParseClass(t *testing.T) {
	cases := map[string]struct {
		params map[string]string
		want   class
		// wantErr are words that the error must have: parameter, value and what
		// is accepted.
		wantErr []string
	}{
		"defaults": {want: class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: fromPeer()}}},
		"everything": {
			params: map[string]string{
				"backend": "iscsi", "cacheMode": "writeback", "cacheSize": "10Gi", "maxCacheSize": "20Gi", "chunkSize": "256Ki", "acceptDirtyLoss": "node-loss",
				"maxDirtyBytes": "2Gi", "maxDirtyAge": "5m", "warmStart": "peer", "warmStartMethod": "stream", "warmStartBandwidth": "100Mi", "warmStartDeadline": "1h30m",
				"fsType": "xfs", "provisioning": "thick", "csi.storage.k8s.io/pvc/name": "c", "csi.storage.k8s.io/pvc/namespace": "ns", "csi.storage.k8s.io/pv/name": "pv",
			},
			want: class{FSType: "xfs", Spec: volume.Spec{
				Provisioning: "thick", Mode: volume.ModeWriteback, Cache: volume.Size{Bytes: 10 << 30}, MaxCacheBytes: 20 << 30, ChunkBytes: 256 << 10, AcceptNodeLoss: true,
				DirtyLimit: volume.DirtyLimit{Max: volume.Size{Bytes: 2 << 30}, Age: 5 * time.Minute},
				WarmStart:  volume.WarmStart{From: volume.WarmPeer, Method: volume.MethodStream, Bandwidth: 100 << 20, Deadline: 90 * time.Minute},
				Claim:      &volume.Claim{Namespace: "ns", Name: "c"},
			}},
		},
		"a maximum of a percentage": {
			params: map[string]string{"cacheSize": "25%", "maxCacheSize": "1.5Gi"},
			want:   class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 25}, MaxCacheBytes: 3 << 29, WarmStart: fromPeer()}},
		},
		"a maximum for later": {
			params: map[string]string{"cacheMode": "none", "maxCacheSize": "50Gi"},
			want:   class{Spec: volume.Spec{Mode: volume.ModeNone, MaxCacheBytes: 50 << 30, WarmStart: fromPeer()}},
		},
		"none has no cache": {params: map[string]string{"cacheMode": "none"}, want: class{Spec: volume.Spec{Mode: volume.ModeNone, WarmStart: fromPeer()}}},
		"percent":           {params: map[string]string{"cacheSize": "25%"}, want: class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 25}, WarmStart: fromPeer()}}},
		"auto method":       {params: map[string]string{"warmStartMethod": "auto"}, want: class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: fromPeer()}}},
		"clone": {
			params: map[string]string{"warmStartMethod": "clone"},
			want:   class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: volume.WarmStart{From: volume.WarmPeer, Method: volume.MethodClone}}},
		},
		"preload":    {params: map[string]string{"preload": "all"}, want: class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: volume.WarmStart{From: volume.WarmPeer, Preload: true}}}},
		"no preload": {params: map[string]string{"preload": "none", "warmStart": "off"}, want: class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: volume.WarmStart{From: volume.WarmOff}}}},
		"auto chunk": {params: map[string]string{"chunkSize": "auto"}, want: class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: fromPeer()}}},

		"warm start from the origin": {
			params: map[string]string{"warmStart": "origin", "warmStartBandwidth": "1Mi"},
			want: class{Spec: volume.Spec{
				Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: volume.WarmStart{From: volume.WarmOrigin, Bandwidth: 1 << 20},
			}},
		},
		"no warm start": {
			params: map[string]string{"warmStart": "off"},
			want:   class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: volume.WarmStart{From: volume.WarmOff}}},
		},

		"unknown":         {params: map[string]string{"cachemod": "none"}, wantErr: []string{"cachemod", `"none"`, "cacheMode", "did you mean"}},
		"unknown mode":    {params: map[string]string{"cacheMode": "writearound"}, wantErr: []string{"cacheMode", "writearound", "none, writethrough, writeback"}},
		"unknown backend": {params: map[string]string{"backend": "nvme"}, wantErr: []string{"backend", "nvme", "iscsi"}},
		"another driver's": {
			params: map[string]string{"backend": "csi", "originStorageClass": "premium-rwo"},
			want: class{Spec: volume.Spec{
				Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: fromPeer(),
				Origin: &volume.Origin{StorageClass: "premium-rwo"},
			}},
		},
		"without a fence": {
			params: map[string]string{"backend": "csi", "originStorageClass": "rbd", "withoutFence": "AcceptTwoWriters", "cacheMode": "writeback", "acceptDirtyLoss": "node-loss"},
			want: class{Spec: volume.Spec{
				Mode: volume.ModeWriteback, Cache: volume.Size{Percent: 10}, AcceptNodeLoss: true, WarmStart: fromPeer(),
				Origin: &volume.Origin{StorageClass: "rbd", AcceptTwoWriters: true},
			}},
		},
		"a named server": {
			params: map[string]string{"target": "second-1", "backend": "iscsi"},
			want:   class{Spec: volume.Spec{Target: "second-1", Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: fromPeer()}},
		},
		"the default server":   {params: map[string]string{"target": ""}, want: class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: fromPeer()}}},
		"no name of a server":  {params: map[string]string{"target": "storage.example.org"}, wantErr: []string{"parameter target", `"storage.example.org" is not accepted; accepted is`, "1 to 58"}},
		"long name of one":     {params: map[string]string{"target": strings.Repeat("a", 59)}, wantErr: []string{"parameter target", "1 to 58"}},
		"server with csi":      {params: map[string]string{"backend": "csi", "originStorageClass": "rbd", "target": "second"}, wantErr: []string{"parameter target", `"second" goes with backend iscsi only, and backend is csi`}},
		"another consent":      {params: map[string]string{"backend": "csi", "originStorageClass": "rbd", "withoutFence": "true"}, wantErr: []string{"parameter withoutFence", `"true" is not accepted; accepted are AcceptTwoWriters`}},
		"consent without csi":  {params: map[string]string{"withoutFence": "AcceptTwoWriters"}, wantErr: []string{"parameter withoutFence", "backend csi only", "backend is iscsi"}},
		"csi without a class":  {params: map[string]string{"backend": "csi"}, wantErr: []string{"parameter originStorageClass", `""`, "backend csi needs", "StorageClass"}},
		"csi of a bad class":   {params: map[string]string{"backend": "csi", "originStorageClass": "Premium"}, wantErr: []string{"originStorageClass", `"Premium" is not accepted`}},
		"class without csi":    {params: map[string]string{"originStorageClass": "premium-rwo"}, wantErr: []string{"originStorageClass", `"premium-rwo"`, "backend csi only", "backend is iscsi"}},
		"csi and provisioning": {params: map[string]string{"backend": "csi", "originStorageClass": "premium-rwo", "provisioning": "thin"}, wantErr: []string{"parameter provisioning", `"thin" contradicts backend csi`, "premium-rwo"}},
		"unknown fs":           {params: map[string]string{"fsType": "btrfs"}, wantErr: []string{"fsType", "btrfs", "ext4, xfs"}},
		"writeback no consent": {params: map[string]string{"cacheMode": "writeback"}, wantErr: []string{"acceptDirtyLoss", "node-loss"}},
		"mirrored": {
			params: map[string]string{"redundancy": "mirror"},
			want:   class{Spec: volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, Mirror: true, WarmStart: fromPeer()}},
		},
		"mirrored twice":      {params: map[string]string{"redundancy": "raid5"}, wantErr: []string{"parameter redundancy", `"raid5" is not accepted`, "none, mirror"}},
		"a mirror of nothing": {params: map[string]string{"redundancy": "mirror", "cacheMode": "none"}, wantErr: []string{"redundancy", `"mirror" contradicts cacheMode none`}},
		"unsafe": {
			params: map[string]string{"cacheMode": "writeback-unsafe", "acceptDirtyLoss": "power-loss"},
			want:   class{Spec: volume.Spec{Mode: volume.ModeWriteback, Unsafe: true, Cache: volume.Size{Percent: 10}, AcceptNodeLoss: true, WarmStart: fromPeer()}},
		},
		"unsafe, no consent":       {params: map[string]string{"cacheMode": "writeback-unsafe"}, wantErr: []string{"acceptDirtyLoss", `""`, "power-loss", "in any order"}},
		"unsafe, another consent":  {params: map[string]string{"cacheMode": "writeback-unsafe", "acceptDirtyLoss": "node-loss"}, wantErr: []string{"acceptDirtyLoss", `"node-loss"`, "accepted with it is power-loss"}},
		"writeback, power-loss":    {params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "power-loss"}, wantErr: []string{"acceptDirtyLoss", `"power-loss"`, "accepted with it is node-loss"}},
		"writethrough, power-loss": {params: map[string]string{"acceptDirtyLoss": "power-loss"}, wantErr: []string{"acceptDirtyLoss", `"power-loss"`, "accepted with it is none"}},
		"consent for nothing":      {params: map[string]string{"acceptDirtyLoss": "node-loss"}, wantErr: []string{"acceptDirtyLoss", "node-loss", "writethrough"}},
		"size without cache":       {params: map[string]string{"cacheMode": "none", "cacheSize": "1Gi"}, wantErr: []string{"cacheSize", "1Gi", "none"}},
		"chunk without cache":      {params: map[string]string{"cacheMode": "none", "chunkSize": "64Ki"}, wantErr: []string{"chunkSize", "64Ki", "none"}},
		"percent above 100":        {params: map[string]string{"cacheSize": "101%"}, wantErr: []string{"cacheSize", "101%"}},
		"size 0":                   {params: map[string]string{"cacheSize": "0"}, wantErr: []string{"cacheSize"}},
		"more than the most":       {params: map[string]string{"cacheSize": "10Gi", "maxCacheSize": "5Gi"}, wantErr: []string{"cacheSize", `"10Gi"`, "maxCacheSize 5Gi", "percentage"}},
		"most in percent":          {params: map[string]string{"maxCacheSize": "5%"}, wantErr: []string{"maxCacheSize", `"5%"`, "50Gi"}},
		"most without a unit":      {params: map[string]string{"maxCacheSize": "50"}, wantErr: []string{"maxCacheSize", `"50"`, "at least 1Mi"}},
		"most of nothing":          {params: map[string]string{"maxCacheSize": "0"}, wantErr: []string{"maxCacheSize", `"0"`, "50Gi"}},
		"size no number":           {params: map[string]string{"cacheSize": "big"}, wantErr: []string{"cacheSize", "big"}},
		"chunk too small":          {params: map[string]string{"chunkSize": "16Ki"}, wantErr: []string{"chunkSize", "16Ki", "32Ki"}},
		"chunk odd":                {params: map[string]string{"chunkSize": "48Ki"}, wantErr: []string{"chunkSize", "48Ki", "multiple"}},
		"chunk too large":          {params: map[string]string{"chunkSize": "2Gi"}, wantErr: []string{"chunkSize", "2Gi", "1Gi"}},
		"bound of the cache": {
			params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "maxDirtyBytes": "10%", "maxDirtyAge": "none"},
			want: class{Spec: volume.Spec{
				Mode: volume.ModeWriteback, Cache: volume.Size{Percent: 10}, AcceptNodeLoss: true, WarmStart: fromPeer(),
				DirtyLimit: volume.DirtyLimit{Max: volume.Size{Percent: 10}},
			}},
		},
		"bound of nothing":      {params: map[string]string{"maxDirtyBytes": "2Gi"}, wantErr: []string{"maxDirtyBytes", `"2Gi"`, "contradicts cacheMode writethrough", "writeback"}},
		"age of nothing":        {params: map[string]string{"cacheMode": "none", "maxDirtyAge": "5m"}, wantErr: []string{"maxDirtyAge", `"5m"`, "contradicts cacheMode none", "writeback"}},
		"bound too small":       {params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "maxDirtyBytes": "1Mi"}, wantErr: []string{"maxDirtyBytes", `"1Mi"`, "16Mi", "1% to 100%", "none"}},
		"bound no number":       {params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "maxDirtyBytes": "much"}, wantErr: []string{"maxDirtyBytes", `"much"`, "16Mi"}},
		"bound below chunks":    {params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "maxDirtyBytes": "16Mi", "chunkSize": "2Mi"}, wantErr: []string{"maxDirtyBytes", `"16Mi"`, "16 chunks", "33554432"}},
		"age too short":         {params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "maxDirtyAge": "9s"}, wantErr: []string{"maxDirtyAge", `"9s"`, "10s to 168h"}},
		"age too long":          {params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "maxDirtyAge": "169h"}, wantErr: []string{"maxDirtyAge", `"169h"`, "10s to 168h"}},
		"age in between":        {params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "maxDirtyAge": "10500ms"}, wantErr: []string{"maxDirtyAge", "10500ms", "whole seconds"}},
		"unknown preload":       {params: map[string]string{"preload": "al"}, wantErr: []string{"preload", `"al"`, "none, all", "did you mean"}},
		"preload of nothing":    {params: map[string]string{"preload": "all", "warmStart": "off"}, wantErr: []string{"preload", `"all"`, "contradicts warmStart off", "accepted with it is none"}},
		"preload of no cache":   {params: map[string]string{"preload": "all", "cacheMode": "none"}, wantErr: []string{"preload", `"all"`, "contradicts cacheMode none"}},
		"unknown warm start":    {params: map[string]string{"warmStart": "pear"}, wantErr: []string{"warmStart", `"pear"`, "peer, origin, off", "did you mean"}},
		"warm without cache":    {params: map[string]string{"cacheMode": "none", "warmStart": "peer"}, wantErr: []string{"warmStart", `"peer"`, "cacheMode none"}},
		"bandwidth no cache":    {params: map[string]string{"cacheMode": "none", "warmStartBandwidth": "2Mi"}, wantErr: []string{"warmStartBandwidth", `"2Mi"`, "cacheMode none"}},
		"deadline no cache":     {params: map[string]string{"cacheMode": "none", "warmStartDeadline": "5m"}, wantErr: []string{"warmStartDeadline", `"5m"`, "cacheMode none"}},
		"bandwidth for off":     {params: map[string]string{"warmStart": "off", "warmStartBandwidth": "2Mi"}, wantErr: []string{"warmStartBandwidth", `"2Mi"`, "warmStart off", "peer or origin"}},
		"deadline for off":      {params: map[string]string{"warmStart": "off", "warmStartDeadline": "5m"}, wantErr: []string{"warmStartDeadline", `"5m"`, "warmStart off", "peer"}},
		"deadline for origin":   {params: map[string]string{"warmStart": "origin", "warmStartDeadline": "5m"}, wantErr: []string{"warmStartDeadline", `"5m"`, "warmStart origin", "peer"}},
		"method of tomorrow":    {params: map[string]string{"warmStartMethod": "teleport"}, wantErr: []string{"parameter warmStartMethod", `"teleport" is not accepted; accepted are auto, clone, stream`}},
		"method is an object's": {params: map[string]string{"warmStartMethod": "Clone"}, wantErr: []string{"warmStartMethod", `"Clone"`, "auto, clone, stream"}},
		"method from origin":    {params: map[string]string{"warmStart": "origin", "warmStartMethod": "clone"}, wantErr: []string{"warmStartMethod", `"clone" contradicts warmStart origin`, "peer"}},
		"method of no cache":    {params: map[string]string{"cacheMode": "none", "warmStartMethod": "auto"}, wantErr: []string{"warmStartMethod", `"auto" contradicts cacheMode none`}},
		"bandwidth too small":   {params: map[string]string{"warmStartBandwidth": "1023Ki"}, wantErr: []string{"warmStartBandwidth", "1023Ki", "1Mi to 1Ti"}},
		"bandwidth too large":   {params: map[string]string{"warmStartBandwidth": "2Ti"}, wantErr: []string{"warmStartBandwidth", "2Ti", "1Mi to 1Ti"}},
		"bandwidth per second":  {params: map[string]string{"warmStartBandwidth": "100Mi/s"}, wantErr: []string{"warmStartBandwidth", "100Mi/s", "1Mi to 1Ti"}},
		"bandwidth 0":           {params: map[string]string{"warmStartBandwidth": "0"}, wantErr: []string{"warmStartBandwidth", `"0"`, "1Mi to 1Ti"}},
		"deadline too short":    {params: map[string]string{"warmStartDeadline": "59s"}, wantErr: []string{"warmStartDeadline", "59s", "1m to 24h"}},
		"deadline too long":     {params: map[string]string{"warmStartDeadline": "24h1s"}, wantErr: []string{"warmStartDeadline", "24h1s", "1m to 24h"}},
		"deadline in between":   {params: map[string]string{"warmStartDeadline": "1m0.5s"}, wantErr: []string{"warmStartDeadline", "1m0.5s", "whole seconds"}},
		"deadline in days":      {params: map[string]string{"warmStartDeadline": "1d"}, wantErr: []string{"warmStartDeadline", "1d", "1m to 24h"}},
		"all at once":           {params: map[string]string{"cacheMode": "x", "fsType": "y"}, wantErr: []string{"cacheMode", "fsType"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseClass(tc.params)
			if len(tc.wantErr) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("class differs (-want +got):\n%s", diff)
				}
				return
			}
			if !errors.Is(err, volume.ErrInvalid) {
				t.Fatalf("error = %v, want ErrInvalid", err)
			}
			for _, w := range tc.wantErr {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

func TestCheckGeometry(t *testing.T) {
	spec := func(capacity int64, cache volume.Size, chunk int64) volume.Spec {
		return volume.Spec{CapacityBytes: capacity, Mode: volume.ModeWritethrough, Cache: cache, ChunkBytes: chunk}
	}
	cases := map[string]struct {
		spec    volume.Spec
		wantErr string
	}{
		"auto":             {spec: spec(1<<30, volume.Size{Percent: 10}, 0)},
		"fits":             {spec: spec(1<<30, volume.Size{Percent: 10}, 1<<20)},
		"not one block":    {spec: spec(64<<20, volume.Size{Percent: 1}, 1<<20), wantErr: "larger than the cache"},
		"too many blocks":  {spec: spec(1<<40, volume.Size{Percent: 100}, 32<<10), wantErr: "at most 1000000"},
		"size not known":   {spec: spec(0, volume.Size{Percent: 10}, 1<<20)},
		"more than volume": {spec: spec(64<<20, volume.Size{Bytes: 1 << 40}, 32<<10)},
		"more than the most": {
			spec:    volume.Spec{CapacityBytes: 1 << 30, Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, MaxCacheBytes: 1 << 20, ChunkBytes: 2 << 20},
			wantErr: "larger than the cache of 1048576 bytes",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := checkGeometry(tc.spec)
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("got %v, want %q", err, tc.wantErr)
			}
		})
	}
}

func FuzzParseClass(f *testing.F) {
	f.Add("cacheSize", "10%", "chunkSize", "64Ki")
	f.Add("cacheMode", "writeback", "acceptDirtyLoss", "node-loss")
	f.Add("cacheMode", "writeback-unsafe", "acceptDirtyLoss", "power-loss")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		c, err := parseClass(map[string]string{k1: v1, k2: v2})
		if err != nil {
			if !errors.Is(err, volume.ErrInvalid) {
				t.Errorf("error %v does not wrap ErrInvalid", err)
			}
			return
		}
		if (c.Spec.Mode == volume.ModeNone) != c.Spec.Cache.IsZero() || (c.Spec.Mode == volume.ModeWriteback) != c.Spec.AcceptNodeLoss || c.Spec.Unsafe && c.Spec.Mode != volume.ModeWriteback {
			t.Errorf("accepted a contradiction: %+v", c)
		}
	})
}
