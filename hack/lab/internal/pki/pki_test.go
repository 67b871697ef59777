package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func load(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	// LoadX509KeyPair also checks that the key belongs to the certificate.
	pair, err := tls.LoadX509KeyPair(Cert(dir, name), Key(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	pools := map[string]*x509.CertPool{CAName: x509.NewCertPool(), TargetCA: x509.NewCertPool()}
	for name, pool := range pools {
		pool.AddCert(load(t, dir, name))
	}
	tests := map[string]struct {
		ca    string
		name  string
		host  string
		use   x509.ExtKeyUsage
		valid bool
	}{
		"API server on the bridge":                {CAName, APIServer, "10.88.0.1", x509.ExtKeyUsageServerAuth, true},
		"API server on the service address":       {CAName, APIServer, "10.96.0.1", x509.ExtKeyUsageServerAuth, true},
		"API server elsewhere":                    {CAName, APIServer, "10.88.0.20", x509.ExtKeyUsageServerAuth, false},
		"admin":                                   {CAName, Admin, "", x509.ExtKeyUsageClientAuth, true},
		"kubelet serving":                         {CAName, KubeletServer("node-b"), "10.88.0.12", x509.ExtKeyUsageServerAuth, true},
		"storage server":                          {TargetCA, TargetServer, "10.88.0.20", x509.ExtKeyUsageServerAuth, true},
		"second storage server":                   {TargetCA, TargetServer2, "10.88.0.22", x509.ExtKeyUsageServerAuth, true},
		"second storage server as the first":      {TargetCA, TargetServer2, "10.88.0.20", x509.ExtKeyUsageServerAuth, false},
		"storage client":                          {TargetCA, TargetClient, "", x509.ExtKeyUsageClientAuth, true},
		"cluster admin towards the storage":       {TargetCA, Admin, "", x509.ExtKeyUsageClientAuth, false},
		"storage client certificate as a server":  {TargetCA, TargetClient, "", x509.ExtKeyUsageServerAuth, false},
		"storage server's certificate as cluster": {CAName, TargetServer, "10.88.0.20", x509.ExtKeyUsageServerAuth, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, dir, tc.name).Verify(x509.VerifyOptions{
				Roots: pools[tc.ca], DNSName: tc.host, KeyUsages: []x509.ExtKeyUsage{tc.use},
			})
			if (err == nil) != tc.valid {
				t.Errorf("verification: %v, want valid: %v", err, tc.valid)
			}
		})
	}
}

func TestNodeIdentity(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	s := load(t, dir, "node-a").Subject
	// The node authorizer knows a kubelet by exactly these two.
	if s.CommonName != "system:node:node-a" || len(s.Organization) != 1 || s.Organization[0] != "system:nodes" {
		t.Errorf("subject %s", s)
	}
}

func TestFilesAreClosedAndReadable(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files: %v, %v", files, err)
	}
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is open to others: %v", f, st.Mode())
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Clusters []struct {
			Cluster struct{ Server string }
		}
	}
	if err := json.Unmarshal(b, &got); err != nil || len(got.Clusters) != 1 || got.Clusters[0].Cluster.Server != "https://10.88.0.1:443" {
		t.Errorf("kubeconfig: %+v, %v", got, err)
	}
}
