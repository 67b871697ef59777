package controller

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/target/targetclient"
	"github.com/nearflash/nearflash/pkg/testutil/loopback"
)

func TestValidate(t *testing.T) {
	tls := []string{"--target-ca=ca", "--target-cert=cert", "--target-key=key"}
	cases := map[string]struct {
		args    []string
		wantErr []string
	}{
		"static":          {args: []string{"--endpoint=unix:///csi/csi.sock"}},
		"storage server":  {args: append([]string{"--endpoint=/csi/csi.sock", "--target-address=s:1", "--target-server-name=x"}, tls...)},
		"leader":          {args: []string{"--endpoint=/csi/csi.sock", "--leader-elect", "--leader-election-namespace=ns", "--health-address=:1"}},
		"origins":         {args: []string{"--endpoint=/csi/csi.sock", "--origin-namespace=nearflash-origins"}},
		"bad namespace":   {args: []string{"--endpoint=/csi/csi.sock", "--origin-namespace=Origins/x"}, wantErr: []string{`--origin-namespace "Origins/x"`, "nearflash-origins"}},
		"pods":            {args: []string{"--endpoint=/csi/csi.sock", "--node-pods=app.kubernetes.io/component=node,app.kubernetes.io/name=nearflash"}},
		"bad pods":        {args: []string{"--endpoint=/csi/csi.sock", "--node-pods=a=/="}, wantErr: []string{`--node-pods "a=/="`, "app.kubernetes.io/component=node"}},
		"account":         {args: []string{"--endpoint=/csi/csi.sock", "--chap-secret=nearflash-chap", "--chap-username=u"}},
		"bad account":     {args: []string{"--endpoint=/csi/csi.sock", "--chap-secret=a/b", "--chap-username="}, wantErr: []string{`--chap-secret "a/b"`, "nearflash-chap", "--chap-username is empty"}},
		"nothing":         {wantErr: []string{"--endpoint is required"}},
		"tcp":             {args: []string{"--endpoint=tcp://x:1"}, wantErr: []string{"--endpoint:", "unix:///absolute/path"}},
		"no certificates": {args: []string{"--endpoint=/x", "--target-address=s:1"}, wantErr: []string{"--target-ca is required", "--target-cert is required", "--target-key is required"}},
		"no address":      {args: append([]string{"--endpoint=/x"}, tls...), wantErr: []string{"--target-ca without --target-address"}},
		"no election":     {args: []string{"--endpoint=/x", "--leader-election-namespace=ns"}, wantErr: []string{"without --leader-elect"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var c Config
			fs := flag.NewFlagSet("x", flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			c.AddFlags(fs)
			if err := fs.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := c.Validate()
			if (err != nil) != (len(tc.wantErr) > 0) {
				t.Fatalf("got %v, want %v", err, tc.wantErr)
			}
			for _, want := range tc.wantErr {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q: %v", want, err)
				}
			}
		})
	}
}

// TestTargets: what is wrong with the file of storage servers is said with the entry, the value and
// what is accepted, all at once.
func TestTargets(t *testing.T) {
	const entry = "{name: second, address: s2:1, ca: a, cert: b, key: c}"
	for name, tc := range map[string]struct {
		text    string
		alone   bool
		want    []string
		wantErr []string
	}{
		"none":            {text: "[]", want: []string{""}},
		"nothing":         {text: "", alone: true},
		"beside":          {text: "[" + entry + ", {name: a-1, address: s3:1, serverName: x, ca: a, cert: b, key: c}]", want: []string{"", "a-1", "second"}},
		"alone":           {text: "[" + entry + "]", alone: true, want: []string{"second"}},
		"no list":         {text: entry, wantErr: []string{"accepted is a list of entries"}},
		"unknown key":     {text: "[{name: a, adress: s2:1}]", wantErr: []string{"accepted is a list of entries", `"adress"`}},
		"twice a key":     {text: "[{name: a, name: b}]", wantErr: []string{"accepted is a list of entries", `"name" already set`}},
		"bad name":        {text: "[{name: a.b, address: s2:1, ca: a, cert: b, key: c}]", wantErr: []string{`entry 1: name "a.b": accepted are 1 to 58`}},
		"no name":         {text: "[{address: s2:1, ca: a, cert: b, key: c}]", wantErr: []string{`entry 1: name "": accepted are 1 to 58`}},
		"name twice":      {text: "[" + entry + ", {name: second, address: s3:1, ca: a, cert: b, key: c}]", wantErr: []string{`entry 2: name "second" is another entry's`}},
		"address twice":   {text: "[" + entry + ", {name: a, address: S2:1, ca: a, cert: b, key: c}]", wantErr: []string{`entry 2: address "S2:1" is that of entry 1`}},
		"default address": {text: "[{name: a, address: s:1, ca: a, cert: b, key: c}]", wantErr: []string{`entry 1: address "s:1" is that of --target-address`}},
		"lacks all":       {text: "[{name: a}]", wantErr: []string{"entry 1: address is missing", "ca is missing", "cert is missing", "key is missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{TargetsFile: filepath.Join(t.TempDir(), "targets.yaml")}
			if !tc.alone {
				c.Target.Address = "s:1"
			}
			if err := os.WriteFile(c.TargetsFile, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := c.targets()
			if names := slices.Sorted(maps.Keys(got)); len(tc.wantErr) == 0 && (err != nil || !slices.Equal(names, tc.want)) || (err != nil) != (len(tc.wantErr) > 0) {
				t.Fatalf("got %q, %v", names, err)
			}
			if len(tc.wantErr) > 0 && !strings.Contains(err.Error(), "--targets "+c.TargetsFile) {
				t.Errorf("error does not name flag and file: %v", err)
			}
			for _, want := range tc.wantErr {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q: %v", want, err)
				}
			}
			want := targetclient.Config{Address: "s2:1", CAFile: "a", CertFile: "b", KeyFile: "c"}
			if slices.Contains(tc.want, "second") && got["second"] != want {
				t.Errorf("second is %+v", got["second"])
			}
		})
	}
	c := Config{Endpoint: "unix:///x", TargetsFile: filepath.Join(t.TempDir(), "none")}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "--targets") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// awayTargets configures storage servers that are not there: the default one, "second", and "unread",
// which has no certificates either. It returns their addresses.
func awayTargets(t *testing.T, c *Config) []string {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c.Target.Address = loopback.FreeAddress(t)
	c.Target.CertFile = write("cert.pem", "CERTIFICATE", der)
	c.Target.CAFile = c.Target.CertFile
	c.Target.KeyFile = write("key.pem", "PRIVATE KEY", keyDER)
	second, unread := loopback.FreeAddress(t), loopback.FreeAddress(t)
	c.TargetsFile = filepath.Join(dir, "targets.yaml")
	text := fmt.Sprintf("[{name: second, address: %q, ca: %q, cert: %q, key: %q}, {name: unread, address: %q, ca: /nowhere, cert: /nowhere, key: /nowhere}]",
		second, c.Target.CAFile, c.Target.CertFile, c.Target.KeyFile, unread)
	if err := os.WriteFile(c.TargetsFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{c.Target.Address, second, unread}
}

// TestConnectUnread: only the default server's certificates end the process.
func TestConnectUnread(t *testing.T) {
	nowhere := targetclient.Config{Address: "s:1", CAFile: "/nowhere", CertFile: "/nowhere", KeyFile: "/nowhere"}
	for name, fails := range map[string]bool{"": true, "second": false} {
		c, err := connect(t.Context(), name, nowhere)
		if fails != (err != nil) || fails != (c == nil) {
			t.Errorf("target %q: %v, %v", name, c, err)
		}
		if c != nil {
			_ = c.Close()
		}
	}
}
