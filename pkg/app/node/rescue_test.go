package node

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRescueFlags(t *testing.T) {
	cases := map[string]struct {
		args string
		want string
	}{
		"list":                   {"--pool-devices /dev/nvme0n1", ""},
		"by device":              {"--pool-devices /dev/nvme* --volume v --origin /dev/sdb", ""},
		"by address":             {"--pool-devices /dev/nvme0n1 --volume v --portal h:3260 --iqn iqn.x --lun 2 --chap-file f", ""},
		"no device":              {"", "--pool-devices is required"},
		"a file":                 {"--pool-devices disk.img", "below /dev"},
		"no origin":              {"--pool-devices /dev/x --volume v", "needs either"},
		"two origins":            {"--pool-devices /dev/x --volume v --origin /dev/y --portal h --iqn i", "needs either"},
		"half an address":        {"--pool-devices /dev/x --volume v --portal h", "given together"},
		"an origin for the list": {"--pool-devices /dev/x --origin /dev/y", "go with --volume"},
		"a secret for a device":  {"--pool-devices /dev/x --volume v --origin /dev/y --chap-file f", "--chap-file goes with"},
		"no ID":                  {"--pool-devices /dev/x --volume V --origin /dev/y", "--volume"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var c Rescue
			fs := flag.NewFlagSet("rescue", flag.ContinueOnError)
			c.AddFlags(fs)
			if err := fs.Parse(strings.Fields(tc.args)); err != nil {
				t.Fatal(err)
			}
			err := c.validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestReadCHAP(t *testing.T) {
	file := filepath.Join(t.TempDir(), "chap")
	for text, good := range map[string]bool{"user\nsecret word\n": true, "user\n\nsecret word": true, "user\n": false, "a\nb\nc\n": false, "": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := readCHAP(file)
		if (err == nil) != good || good && (c.Username != "user" || c.Password != "secret word") {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}
