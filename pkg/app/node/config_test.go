package node

import (
	"flag"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestConfig(t *testing.T) {
	base := []string{"--endpoint=unix:///csi/csi.sock", "--node-name=node-a"}
	cases := map[string]struct {
		args    []string
		wantErr []string
	}{
		"least": {args: base},
		"all": {args: append(base, "--kubelet-registration-path=/var/lib/kubelet/plugins/x/csi.sock", "--registration-dir=/registration",
			"--pool-devices=/dev/nvme0n1", "--pool-devices=/dev/disk/by-id/nvme-*", "--pool-redundancy=mirror", "--max-volumes=20", "--namespace-share-percent=100", "--health-address=:9808",
			"--without-targets=clone,iscsi", "--udev-rule")},
		"stream": {args: append(base, "--stream-address=192.0.2.1,2001:db8::1", "--stream-port=4000",
			"--stream-token-file=/token", "--stream-account=system:serviceaccount:storage:nearflash-node")},
		"half a stream":    {args: append(base, "--stream-address=192.0.2.1"), wantErr: []string{"--stream-token-file", "--stream-account"}},
		"every address":    {args: append(base, "--stream-address=0.0.0.0"), wantErr: []string{"0.0.0.0", "this node"}},
		"a zone":           {args: append(base, "--stream-address=fe80::1%eth0"), wantErr: []string{"fe80::1%eth0", "zone"}},
		"one port for two": {args: append(base, "--stream-port=3262"), wantErr: []string{"--stream-port 3262", "--warm-start-port"}},
		"no stream port":   {args: append(base, "--stream-port=0"), wantErr: []string{"--stream-port"}},
		"relative token":   {args: append(base, "--stream-token-file=token"), wantErr: []string{"--stream-token-file", "absolute"}},
		"not an account":   {args: append(base, "--stream-account=nearflash-node"), wantErr: []string{"--stream-account", "system:serviceaccount"}},
		"nothing":          {wantErr: []string{"--endpoint", "--node-name"}},
		"half registered":  {args: append(base, "--registration-dir=/registration"), wantErr: []string{"--kubelet-registration-path"}},
		"relative state":   {args: append(base, "--state-dir=x"), wantErr: []string{"--state-dir", "absolute"}},
		"not a device":     {args: append(base, "--pool-devices=/etc/passwd"), wantErr: []string{"/etc/passwd", "/dev"}},
		"evacuate":         {args: append(base, "--pool-evacuate=/dev/sdb", "--pool-evacuate=/dev/disk/by-id/nvme-*")},
		"evacuate no path": {args: append(base, "--pool-evacuate=sdb"), wantErr: []string{`--pool-evacuate "sdb"`, "/dev"}},
		"pool's evacuate":  {args: append(base, `--pool={"nodeSelector":{"a":"b"},"devices":[],"evacuate":["sdb"]}`), wantErr: []string{`--pool evacuate "sdb"`, "/dev"}},
		"bad glob":         {args: append(base, "--pool-devices=/dev/["), wantErr: []string{"/dev/["}},
		"bad redundancy":   {args: append(base, "--pool-redundancy=raid5"), wantErr: []string{"raid5", "none, mirror"}},
		"pools": {args: append(base, `--pool={"nodeSelector":{"example.com/kind":"a"},"devices":["/dev/sd[b-d]"],"redundancy":"mirror"}`,
			`--pool={"nodeSelector":{"example.com/kind":"b"},"devices":[]}`)},
		"pool of everybody":     {args: append(base, `--pool={"devices":["/dev/sdb"]}`), wantErr: []string{"--pool nodeSelector", "/dev/sdb", "--pool-devices"}},
		"pool of no label":      {args: append(base, `--pool={"nodeSelector":{"a b":"c"},"devices":[]}`), wantErr: []string{"--pool nodeSelector", "a b"}},
		"pool's devices":        {args: append(base, `--pool={"nodeSelector":{"a":"b"},"devices":["sdb"]}`), wantErr: []string{`--pool devices "sdb"`, "/dev"}},
		"pool's redundancy":     {args: append(base, `--pool={"nodeSelector":{"a":"b"},"devices":[],"redundancy":"raid5"}`), wantErr: []string{`--pool redundancy "raid5"`, "none, mirror"}},
		"without nothing":       {args: append(base, "--without-targets=")},
		"reports all the time":  {args: append(base, "--report-interval=1s"), wantErr: []string{"--report-interval 1s", "at least 10s"}},
		"hot sets of nothing":   {args: append(base, "--hot-set-size=100"), wantErr: []string{"--hot-set-size 100", "1024 to 65536"}},
		"hot sets all the time": {args: append(base, "--hot-set-interval=0"), wantErr: []string{"--hot-set-interval 0s", "5m"}},
		"unknown target":        {args: append(base, "--without-targets=clone,klone"), wantErr: []string{`--without-targets "klone"`, "clone, iscsi, multipath, zero"}},
		"half a list":           {args: append(base, "--without-targets=clone,"), wantErr: []string{`--without-targets ""`, "clone, iscsi"}},
		"method":                {args: append(base, "--warm-start-method=stream")},
		"bad method":            {args: append(base, "--warm-start-method=Clone"), wantErr: []string{`--warm-start-method "Clone"`, "auto, clone, stream"}},
		"origins":               {args: append(base, "--origins", "--kubelet-registration-path=/var/lib/kubelet/plugins/x/csi.sock", "--registration-dir=/registration")},
		"limit":                 {args: append(base, "--origins", "--attach-limit-of=disks.example.org", "--kubelet-registration-path=/var/lib/kubelet/plugins/x/csi.sock", "--registration-dir=/registration")},
		"limit of nobody":       {args: append(base, "--attach-limit-of=disks.example.org"), wantErr: []string{`--attach-limit-of "disks.example.org"`, "--origins"}},
		"origins nowhere":       {args: append(base, "--origins"), wantErr: []string{"--origins", `--kubelet-registration-path ""`}},
		"kubelet elsewhere":     {args: append(base, "--origins", "--kubelet-registration-path=/run/x/csi.sock", "--registration-dir=/registration"), wantErr: []string{"/run/x/csi.sock", "/var/lib/kubelet/plugins"}},
		"a long name": {args: append(base, "--origins", "--kubelet-registration-path=/k/plugins/x/csi.sock", "--registration-dir=/registration",
			"--node-name="+strings.Repeat("n", 64))},
		"negative volumes": {args: append(base, "--max-volumes=-1"), wantErr: []string{"-1"}},
		"more than a pool": {args: append(base, "--namespace-share-percent=101"), wantErr: []string{"--namespace-share-percent 101", "1 to 100"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var c Config
			fs := flag.NewFlagSet("x", flag.ContinueOnError)
			c.AddFlags(fs)
			if err := fs.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := c.Validate()
			if len(tc.wantErr) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range tc.wantErr {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

// TestPoolFlag: a misspelt key is refused, with what is accepted.
func TestPoolFlag(t *testing.T) {
	for _, text := range []string{`{"nodeSelector":{"a":"b"},"device":["/dev/sdb"]}`, `/dev/sdb`} {
		var l choiceList
		if err := l.Set(text); err == nil || !strings.Contains(err.Error(), "accepted is JSON") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestMethod: what a flag says is what the node uses.
func TestMethod(t *testing.T) {
	for word, want := range map[string]volume.MoveMethod{"": "", "auto": "", "clone": volume.MethodClone, "stream": volume.MethodStream} {
		c := Config{WarmStartMethod: word}
		if got := c.Method(); got != want {
			t.Errorf("%q is %q, want %q", word, got, want)
		}
	}
	var c Config
	c.AddFlags(flag.NewFlagSet("x", flag.ContinueOnError))
	if c.WarmStartMethod != "auto" || c.Method() != "" || c.Stream.Port != 3263 {
		t.Errorf("without flags: method %q, port %d", c.WarmStartMethod, c.Stream.Port)
	}
}

// TestTopologyOfLongNames: what cannot be the value of a label is not said.
func TestTopologyOfLongNames(t *testing.T) {
	for name, want := range map[string]bool{"node-a": true, strings.Repeat("n", 63): true, strings.Repeat("n", 64): false} {
		for _, origins := range []bool{false, true} {
			if c := (Config{NodeName: name, Origins: origins}); c.topology() != (want && origins) {
				t.Errorf("%s, origins %v: %v", name, origins, c.topology())
			}
		}
	}
}
