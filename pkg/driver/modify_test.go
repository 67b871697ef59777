package driver

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

func writethrough() volume.Spec {
	return volume.Spec{CapacityBytes: 10 << 30, Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, WarmStart: fromPeer()}
}

func writeback() volume.Spec {
	s := writethrough()
	s.Mode, s.AcceptNodeLoss = volume.ModeWriteback, true
	return s
}

func unsafe() volume.Spec {
	s := writeback()
	s.Unsafe = true
	return s
}

func mirrored(s *volume.Spec) { s.Mirror = true }

func uncached() volume.Spec {
	return volume.Spec{CapacityBytes: 10 << 30, Mode: volume.ModeNone, WarmStart: fromPeer()}
}

func with(s volume.Spec, change func(*volume.Spec)) volume.Spec {
	change(&s)
	return s
}

func TestModify(t *testing.T) {
	chunked := with(writethrough(), func(s *volume.Spec) { s.ChunkBytes = 1 << 20 })
	tests := map[string]struct {
		now    volume.Spec
		params map[string]string
		want   volume.Spec
		// wantErr is the whole text of the error.
		wantErr string
	}{
		"nothing":             {now: writethrough(), want: writethrough()},
		"keys of a sidecar":   {now: writethrough(), params: map[string]string{"csi.storage.k8s.io/pv/name": "pv"}, want: writethrough()},
		"what is":             {now: writethrough(), params: map[string]string{"cacheMode": "writethrough", "cacheSize": "10%"}, want: writethrough()},
		"size":                {now: writethrough(), params: map[string]string{"cacheSize": "2Gi"}, want: with(writethrough(), func(s *volume.Spec) { s.Cache = volume.Size{Bytes: 2 << 30} })},
		"size of a writeback": {now: writeback(), params: map[string]string{"cacheSize": "20%"}, want: with(writeback(), func(s *volume.Spec) { s.Cache.Percent = 20 })},
		"to writeback":        {now: writethrough(), params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss"}, want: writeback()},
		"to a mirror":         {now: writeback(), params: map[string]string{"redundancy": "mirror"}, want: with(writeback(), mirrored)},
		"a mirror stays":      {now: with(writeback(), mirrored), params: map[string]string{"cacheMode": "writethrough"}, want: with(writethrough(), mirrored)},
		"no mirror any more":  {now: with(writeback(), mirrored), params: map[string]string{"redundancy": "none"}, want: writeback()},
		"none keeps a mirror": {now: with(writethrough(), mirrored), params: map[string]string{"cacheMode": "none"}, want: with(writethrough(), func(s *volume.Spec) { s.Mode, s.Mirror = volume.ModeNone, true })},
		"a mirror of nothing": {now: uncached(), params: map[string]string{"redundancy": "mirror"},
			wantErr: `invalid argument: mutable parameter redundancy: "mirror" contradicts cacheMode none, which has no cache; leave redundancy out, or give a cacheMode of writethrough or writeback`},
		"to unsafe":              {now: writethrough(), params: map[string]string{"cacheMode": "writeback-unsafe", "acceptDirtyLoss": "power-loss"}, want: unsafe()},
		"writeback to unsafe":    {now: writeback(), params: map[string]string{"cacheMode": "writeback-unsafe", "acceptDirtyLoss": "power-loss"}, want: unsafe()},
		"unsafe again":           {now: unsafe(), params: map[string]string{"cacheMode": "writeback-unsafe"}, want: unsafe()},
		"size of an unsafe one":  {now: unsafe(), params: map[string]string{"cacheSize": "20%"}, want: with(unsafe(), func(s *volume.Spec) { s.Cache.Percent = 20 })},
		"unsafe to writeback":    {now: unsafe(), params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss"}, want: writeback()},
		"unsafe to writethrough": {now: unsafe(), params: map[string]string{"cacheMode": "writethrough"}, want: writethrough()},
		"unsafe, bounded":        {now: unsafe(), params: map[string]string{"maxDirtyBytes": "2Gi"}, want: with(unsafe(), bounded(volume.Size{Bytes: 2 << 30}, 0))},
		"unsafe without its consent": {now: writeback(), params: map[string]string{"cacheMode": "writeback-unsafe"},
			wantErr: `invalid argument: mutable parameter acceptDirtyLoss: "" does not go with cacheMode writeback-unsafe, which loses writes in any order, those that the application has flushed among them, when a node loses its power or its kernel crashes; accepted with it is power-loss`},
		"writeback with too much consent": {now: writethrough(), params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "power-loss"},
			wantErr: `invalid argument: mutable parameter acceptDirtyLoss: "power-loss" contradicts cacheMode writeback, which keeps what the application has flushed when a node loses its power; accepted with it is node-loss`},
		"unsafe to writeback, no consent": {now: unsafe(), params: map[string]string{"cacheMode": "writeback"},
			wantErr: `invalid argument: mutable parameter acceptDirtyLoss: "" does not go with cacheMode writeback, which loses acknowledged writes when a node is lost before they are flushed; accepted with it is node-loss`},
		"unsafe consent withdrawn": {now: unsafe(), params: map[string]string{"acceptDirtyLoss": "node-loss"},
			wantErr: `invalid argument: mutable parameter acceptDirtyLoss: "node-loss" does not go with cacheMode writeback-unsafe, which loses writes in any order, those that the application has flushed among them, when a node loses its power or its kernel crashes; accepted with it is power-loss`},
		"writeback again":                {now: writeback(), params: map[string]string{"cacheMode": "writeback"}, want: writeback()},
		"consent again":                  {now: writeback(), params: map[string]string{"acceptDirtyLoss": "node-loss"}, want: writeback()},
		"the consent goes with the mode": {now: writeback(), params: map[string]string{"cacheMode": "writethrough"}, want: writethrough()},
		"none keeps the size":            {now: writethrough(), params: map[string]string{"cacheMode": "none"}, want: with(writethrough(), func(s *volume.Spec) { s.Mode = volume.ModeNone })},
		"the kept size comes back": {
			now:    with(writethrough(), func(s *volume.Spec) { s.Mode, s.Cache = volume.ModeNone, volume.Size{Bytes: 3 << 30} }),
			params: map[string]string{"cacheMode": "writethrough"},
			want:   with(writethrough(), func(s *volume.Spec) { s.Cache = volume.Size{Bytes: 3 << 30} }),
		},
		"a first cache has the default size": {now: uncached(), params: map[string]string{"cacheMode": "writethrough"}, want: writethrough()},
		"a consent that nobody used":         {now: with(writethrough(), func(s *volume.Spec) { s.AcceptNodeLoss = true }), params: map[string]string{"cacheSize": "10%"}, want: with(writethrough(), func(s *volume.Spec) { s.AcceptNodeLoss = true })},

		"a bound": {now: writeback(), params: map[string]string{"maxDirtyBytes": "2Gi", "maxDirtyAge": "5m"}, want: with(writeback(), bounded(volume.Size{Bytes: 2 << 30}, 5*time.Minute))},
		"a bound by parts": {
			now: with(writeback(), bounded(volume.Size{Bytes: 2 << 30}, 5*time.Minute)), params: map[string]string{"maxDirtyBytes": "10%"},
			want: with(writeback(), bounded(volume.Size{Percent: 10}, 5*time.Minute)),
		},
		"a bound taken away": {
			now: with(writeback(), bounded(volume.Size{Bytes: 2 << 30}, 5*time.Minute)), params: map[string]string{"maxDirtyBytes": "none"},
			want: with(writeback(), bounded(volume.Size{}, 5*time.Minute)),
		},
		"writethrough keeps the bound": {
			now: with(writeback(), bounded(volume.Size{Bytes: 2 << 30}, 0)), params: map[string]string{"cacheMode": "writethrough"},
			want: with(writethrough(), bounded(volume.Size{Bytes: 2 << 30}, 0)),
		},
		"a bound with the mode": {
			now: writethrough(), params: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "maxDirtyAge": "10s"},
			want: with(writeback(), bounded(volume.Size{}, 10*time.Second)),
		},
		"no bound of nothing": {now: writethrough(), params: map[string]string{"maxDirtyBytes": "none"}, want: writethrough()},

		"warm start": {now: writethrough(), params: map[string]string{"warmStart": "origin"}, want: with(writethrough(), func(s *volume.Spec) { s.WarmStart.From = volume.WarmOrigin })},
		"warm start by parts": {
			now:    with(writethrough(), func(s *volume.Spec) { s.WarmStart.Bandwidth = 1 << 20 }),
			params: map[string]string{"warmStartDeadline": "2m"},
			want: with(writethrough(), func(s *volume.Spec) {
				s.WarmStart = volume.WarmStart{From: volume.WarmPeer, Bandwidth: 1 << 20, Deadline: 2 * time.Minute}
			}),
		},
		"off keeps what was said of the copy": {
			now:    with(writethrough(), func(s *volume.Spec) { s.WarmStart.Bandwidth = 1 << 20 }),
			params: map[string]string{"warmStart": "off"},
			want: with(writethrough(), func(s *volume.Spec) {
				s.WarmStart = volume.WarmStart{From: volume.WarmOff, Bandwidth: 1 << 20}
			}),
		},
		"none keeps the warm start": {
			now:    with(writethrough(), func(s *volume.Spec) { s.WarmStart.From = volume.WarmOff }),
			params: map[string]string{"cacheMode": "none"},
			want:   with(writethrough(), func(s *volume.Spec) { s.Mode, s.WarmStart.From = volume.ModeNone, volume.WarmOff }),
		},

		"a share of more than the most": {
			now:    with(writethrough(), func(s *volume.Spec) { s.MaxCacheBytes = 1 << 30 }),
			params: map[string]string{"cacheSize": "100%"},
			want:   with(writethrough(), func(s *volume.Spec) { s.MaxCacheBytes, s.Cache = 1<<30, volume.Size{Percent: 100} }),
		},
		"more than the most": {
			now:     with(writethrough(), func(s *volume.Spec) { s.MaxCacheBytes = 1 << 30 }),
			params:  map[string]string{"cacheSize": "2Gi"},
			wantErr: `invalid argument: mutable parameter cacheSize: "2Gi" is more than the volume's maxCacheSize of 1073741824 bytes; accepted are at most that, or a percentage of the volume, which is cut down to it`,
		},
		"the most is the class's": {now: writethrough(), params: map[string]string{"maxCacheSize": "2Gi"},
			wantErr: `invalid argument: unknown mutable parameter "maxCacheSize" (value "2Gi"); accepted are cacheMode, cacheSize, acceptDirtyLoss, redundancy, maxDirtyBytes, maxDirtyAge, warmStart, warmStartMethod, warmStartBandwidth, warmStartDeadline, preload`},
		"a bound of nothing": {now: writethrough(), params: map[string]string{"maxDirtyBytes": "2Gi"},
			wantErr: `invalid argument: mutable parameter maxDirtyBytes: "2Gi" contradicts cacheMode writethrough, which makes nothing dirty; leave maxDirtyBytes out, or give a cacheMode of writeback`},
		"a bound for the mode that is left": {now: writeback(), params: map[string]string{"cacheMode": "writethrough", "maxDirtyAge": "5m"},
			wantErr: `invalid argument: mutable parameter maxDirtyAge: "5m" contradicts cacheMode writethrough, which makes nothing dirty; leave maxDirtyAge out, or give a cacheMode of writeback`},
		"a bound below its chunks": {now: with(writeback(), func(s *volume.Spec) { s.ChunkBytes = 2 << 20 }), params: map[string]string{"maxDirtyBytes": "16Mi"},
			wantErr: `invalid argument: mutable parameter maxDirtyBytes: "16Mi" is less than 16 chunks of chunkSize 2097152; accepted are at least 33554432 bytes, or a smaller chunkSize`},
		"warm start without a cache": {now: uncached(), params: map[string]string{"warmStart": "peer"},
			wantErr: `invalid argument: mutable parameter warmStart: "peer" contradicts cacheMode none, which has no cache; leave warmStart out`},
		"method": {
			now:    with(writethrough(), func(s *volume.Spec) { s.WarmStart.Bandwidth = 1 << 20 }),
			params: map[string]string{"warmStartMethod": "clone"},
			want: with(writethrough(), func(s *volume.Spec) {
				s.WarmStart = volume.WarmStart{From: volume.WarmPeer, Method: volume.MethodClone, Bandwidth: 1 << 20}
			}),
		},
		"method stays": {
			now:    with(writethrough(), func(s *volume.Spec) { s.WarmStart.Method = volume.MethodStream }),
			params: map[string]string{"warmStartBandwidth": "1Mi"},
			want: with(writethrough(), func(s *volume.Spec) {
				s.WarmStart = volume.WarmStart{From: volume.WarmPeer, Method: volume.MethodStream, Bandwidth: 1 << 20}
			}),
		},
		"back to the node's method": {
			now:    with(writethrough(), func(s *volume.Spec) { s.WarmStart.Method = volume.MethodStream }),
			params: map[string]string{"warmStartMethod": "auto"},
			want:   writethrough(),
		},
		"preload": {now: writethrough(), params: map[string]string{"preload": "all"}, want: with(writethrough(), func(s *volume.Spec) { s.WarmStart.Preload = true })},
		"preload stays": {
			now:    with(writethrough(), func(s *volume.Spec) { s.WarmStart.Preload = true }),
			params: map[string]string{"warmStart": "origin"},
			want: with(writethrough(), func(s *volume.Spec) {
				s.WarmStart = volume.WarmStart{From: volume.WarmOrigin, Preload: true}
			}),
		},
		"no preload any more": {now: with(writethrough(), func(s *volume.Spec) { s.WarmStart.Preload = true }), params: map[string]string{"preload": "none"}, want: writethrough()},
		"off instead of preload": {
			now:    with(writethrough(), func(s *volume.Spec) { s.WarmStart.Preload = true }),
			params: map[string]string{"preload": "none", "warmStart": "off"},
			want:   with(writethrough(), func(s *volume.Spec) { s.WarmStart.From = volume.WarmOff }),
		},
		"preload of off": {now: with(writethrough(), func(s *volume.Spec) { s.WarmStart.From = volume.WarmOff }), params: map[string]string{"preload": "all"},
			wantErr: `invalid argument: mutable parameter preload: "all" contradicts warmStart off, which fills no cache; accepted with it is none; or give a warmStart of peer or origin`},
		"off of preload": {now: with(writethrough(), func(s *volume.Spec) { s.WarmStart.Preload = true }), params: map[string]string{"warmStart": "off"},
			wantErr: `invalid argument: mutable parameter warmStart: "off" contradicts preload all, which the volume has; give preload none too`},
		"preload without a cache": {now: uncached(), params: map[string]string{"preload": "all"},
			wantErr: `invalid argument: mutable parameter preload: "all" contradicts cacheMode none, which has no cache; leave preload out`},
		"another preload": {now: writethrough(), params: map[string]string{"preload": "everything"},
			wantErr: `invalid argument: mutable parameter preload: "everything" is not accepted; accepted are none, all`},
		"method of nobody": {now: writethrough(), params: map[string]string{"warmStart": "off", "warmStartMethod": "clone"},
			wantErr: `invalid argument: mutable parameter warmStartMethod: "clone" contradicts warmStart off, which reads no other node's cache; leave warmStartMethod out, or give a warmStart of peer`},
		"another method": {now: writethrough(), params: map[string]string{"warmStartMethod": "hotset"},
			wantErr: `invalid argument: mutable parameter warmStartMethod: "hotset" is not accepted; accepted are auto, clone, stream`},
		"bandwidth of nothing": {now: with(writethrough(), func(s *volume.Spec) { s.WarmStart.From = volume.WarmOff }), params: map[string]string{"warmStartBandwidth": "100Mi"},
			wantErr: `invalid argument: mutable parameter warmStartBandwidth: "100Mi" contradicts warmStart off, which copies nothing; leave warmStartBandwidth out, or give a warmStart of peer or origin`},
		"deadline of nobody": {now: writethrough(), params: map[string]string{"warmStart": "origin", "warmStartDeadline": "5m"},
			wantErr: `invalid argument: mutable parameter warmStartDeadline: "5m" contradicts warmStart origin, which asks no other node; leave warmStartDeadline out, or give a warmStart of peer`},
		"another warm start": {now: writethrough(), params: map[string]string{"warmStart": "disk"},
			wantErr: `invalid argument: mutable parameter warmStart: "disk" is not accepted; accepted are peer, origin, off`},
		"slow": {now: writethrough(), params: map[string]string{"warmStartBandwidth": "1k"},
			wantErr: `invalid argument: mutable parameter warmStartBandwidth: "1k" is not accepted; accepted are bytes per second from 1Mi to 1Ti, such as 100Mi`},
		"hasty": {now: writethrough(), params: map[string]string{"warmStartDeadline": "1s"},
			wantErr: `invalid argument: mutable parameter warmStartDeadline: "1s" is not accepted; accepted are 1m to 24h in whole seconds, such as 30m or 1h30m`},
		"unknown": {now: writethrough(), params: map[string]string{"chunkSize": "64Ki"},
			wantErr: `invalid argument: unknown mutable parameter "chunkSize" (value "64Ki"); accepted are cacheMode, cacheSize, acceptDirtyLoss, redundancy, maxDirtyBytes, maxDirtyAge, warmStart, warmStartMethod, warmStartBandwidth, warmStartDeadline, preload`},
		"mistyped": {now: writethrough(), params: map[string]string{"cacheMod": "none"},
			wantErr: `invalid argument: unknown mutable parameter "cacheMod" (value "none") (did you mean "cacheMode"?); accepted are cacheMode, cacheSize, acceptDirtyLoss, redundancy, maxDirtyBytes, maxDirtyAge, warmStart, warmStartMethod, warmStartBandwidth, warmStartDeadline, preload`},
		"mode": {now: writethrough(), params: map[string]string{"cacheMode": "writearound"},
			wantErr: `invalid argument: mutable parameter cacheMode: "writearound" is not accepted; accepted are none, writethrough, writeback, writeback-unsafe`},
		"loss": {now: writethrough(), params: map[string]string{"acceptDirtyLoss": "yes"},
			wantErr: `invalid argument: mutable parameter acceptDirtyLoss: "yes" is not accepted; accepted are none, node-loss, power-loss`},
		"percentage": {now: writethrough(), params: map[string]string{"cacheSize": "0%"},
			wantErr: `invalid argument: mutable parameter cacheSize: "0%" is not a percentage; accepted are 1% to 100%`},
		"two at once": {now: writethrough(), params: map[string]string{"cacheSize": "big", "cacheMode": "x"},
			wantErr: `invalid argument: mutable parameter cacheMode: "x" is not accepted; accepted are none, writethrough, writeback, writeback-unsafe; mutable parameter cacheSize: "big" is not a whole number of bytes; accepted are quantities such as 10Gi, 1.5Gi or 500M`},
		"writeback without consent": {now: writethrough(), params: map[string]string{"cacheMode": "writeback"},
			wantErr: `invalid argument: mutable parameter acceptDirtyLoss: "" does not go with cacheMode writeback, which loses acknowledged writes when a node is lost before they are flushed; accepted with it is node-loss`},
		"consent withdrawn": {now: writeback(), params: map[string]string{"acceptDirtyLoss": "none"},
			wantErr: `invalid argument: mutable parameter acceptDirtyLoss: "none" does not go with cacheMode writeback, which loses acknowledged writes when a node is lost before they are flushed; accepted with it is node-loss`},
		"consent for nothing": {now: writethrough(), params: map[string]string{"acceptDirtyLoss": "node-loss"},
			wantErr: `invalid argument: mutable parameter acceptDirtyLoss: "node-loss" contradicts cacheMode writethrough, which loses no acknowledged write; accepted with it is none`},
		"size without a cache": {now: uncached(), params: map[string]string{"cacheSize": "1Gi"},
			wantErr: `invalid argument: mutable parameter cacheSize: "1Gi" contradicts cacheMode none, which has no cache; leave cacheSize out, or give a cacheMode of writethrough or writeback`},
		"size smaller than a chunk": {now: chunked, params: map[string]string{"cacheSize": "512Ki"},
			wantErr: `invalid argument: mutable parameter cacheSize: "512Ki" gives a cache of 524288 bytes, which is 0 blocks of the volume's chunkSize 1048576, which cannot be changed; accepted are 1 to 1000000 blocks`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := parseChange(tc.params)
			var got volume.Spec
			if err == nil {
				got, err = c.apply(tc.now)
			}
			if tc.wantErr != "" {
				if !errors.Is(err, volume.ErrInvalid) || err.Error() != tc.wantErr {
					t.Errorf("error:\n%v\nwant ErrInvalid:\n%s", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if again, err := c.apply(got); err != nil || !cmp.Equal(got, again) {
				t.Errorf("applied again: %+v, %v", again, err)
			}
		})
	}
}

// TestCreateWithMutableParameters: those of the VolumeAttributesClass win over those
// of the StorageClass.
func TestCreateWithMutableParameters(t *testing.T) {
	tests := map[string]struct {
		class, mutable map[string]string
		want           volume.Spec
		wantErr        string
	}{
		"they win": {
			class: map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "cacheSize": "1Gi"}, mutable: map[string]string{"cacheMode": "writethrough", "cacheSize": "10%"},
			want: writethrough(),
		},
		"none":    {class: map[string]string{"cacheMode": "writethrough"}, want: writethrough()},
		"unknown": {mutable: map[string]string{"fsType": "xfs"}, wantErr: `unknown mutable parameter "fsType"`},
		"no consent": {class: map[string]string{"cacheMode": "writethrough"}, mutable: map[string]string{"cacheMode": "writeback"},
			wantErr: "mutable parameter acceptDirtyLoss"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			req := &csi.CreateVolumeRequest{
				Name: "v", Parameters: tc.class, MutableParameters: tc.mutable, CapacityRange: &csi.CapacityRange{RequiredBytes: 10 << 30},
				VolumeCapabilities: []*csi.VolumeCapability{{
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
					AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				}},
			}
			got, err := parseCreate(req)
			if tc.wantErr != "" {
				if !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want ErrInvalid with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Spec); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

// TestModifyCodes wants the codes that external-resizer acts on.
func TestModifyCodes(t *testing.T) {
	locks := &keylock.Set{}
	volumes := volumetest.NewProvisioner(1<<40, "node-1")
	c := NewController(volumes, locks)
	if _, err := volumes.Create(t.Context(), "v", writethrough()); err != nil {
		t.Fatal(err)
	}
	unlock, _ := locks.Lock(t.Context(), "busy")
	defer unlock()
	tests := map[string]struct {
		id     string
		params map[string]string
		want   codes.Code
	}{
		"done":             {id: "v", params: map[string]string{"cacheMode": "none"}, want: codes.OK},
		"done again":       {id: "v", params: map[string]string{"cacheMode": "none"}, want: codes.OK},
		"refused":          {id: "v", params: map[string]string{"cacheMode": "none", "cacheSize": "1Gi"}, want: codes.InvalidArgument},
		"without a volume": {id: "", want: codes.InvalidArgument},
		"unknown volume":   {id: "other", want: codes.NotFound},
		"busy":             {id: "busy", want: codes.Aborted},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := c.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: tc.id, MutableParameters: tc.params})
			if got := status.Code(err); got != tc.want {
				t.Errorf("code %s (%v), want %s", got, err, tc.want)
			}
		})
	}
	if v, err := volumes.Get(t.Context(), "v"); err != nil || v.Spec.Mode != volume.ModeNone {
		t.Errorf("volume after it: %+v, %v", v.Spec, err)
	}
}

// bounded gives a spec a dirty limit.
func bounded(most volume.Size, age time.Duration) func(*volume.Spec) {
	return func(s *volume.Spec) { s.DirtyLimit = volume.DirtyLimit{Max: most, Age: age} }
}
