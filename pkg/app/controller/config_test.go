package controller

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// awayTarget configures a storage server that is not there.
func awayTarget(t *testing.T, c *Config) {
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
	c.Target.Address = freeAddress(t)
	c.Target.CertFile = write("cert.pem", "CERTIFICATE", der)
	c.Target.CAFile = c.Target.CertFile
	c.Target.KeyFile = write("key.pem", "PRIVATE KEY", keyDER)
}
