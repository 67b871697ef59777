package volume

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestParseID(t *testing.T) {
	cases := map[string]struct {
		in     string
		wantOK bool
	}{
		"name of a PersistentVolume": {"pvc-0f5a1e9c-8d4e-4d8c-9c0a-0f1e2d3c4b5a", true},
		"one letter":                 {"a", true},
		"longest":                    {strings.Repeat("a", MaxIDLength), true},
		"too long":                   {strings.Repeat("a", MaxIDLength+1), false},
		"empty":                      {"", false},
		"capital":                    {"Vol", false},
		"dot would end an LV name":   {"a.data", false},
		"underscore":                 {"a_b", false},
		"leading hyphen":             {"-a", false},
		"trailing hyphen":            {"a-", false},
		"slash":                      {"../a", false},
		"newline":                    {"a\n", false},
		"space":                      {"a b", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseID(tc.in)
			if tc.wantOK != (err == nil) {
				t.Fatalf("ParseID(%q) = %q, %v; want success %t", tc.in, got, err, tc.wantOK)
			}
			if err == nil && string(got) != tc.in {
				t.Errorf("ParseID(%q) = %q", tc.in, got)
			}
			if err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("error %v does not wrap ErrInvalid", err)
			}
		})
	}
}

func TestCredentialsAreRedacted(t *testing.T) {
	c := Credentials{Username: "alice", Password: "correct horse", Secrets: map[string]string{"key-of-alice": "horse power"}}
	holder := struct{ C *Credentials }{&c}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		for name, value := range map[string]any{"value": c, "pointer": &c, "field": holder, "slice": []Credentials{c}} {
			got := fmt.Sprintf(format, value)
			if strings.Contains(got, "horse") || strings.Contains(got, "alice") {
				t.Errorf("Sprintf(%q, %s) shows the credentials: %s", format, name, got)
			}
		}
	}
}

func TestSnapshotHandle(t *testing.T) {
	longest := SnapshotHandle{Backend: "iscsi", Target: strings.Repeat("a", 58), ID: SnapshotID(strings.Repeat("b", MaxIDLength))}
	if text := longest.String(); len(text) > 128 { // what the CSI specification has room for
		t.Errorf("the longest handle has %d bytes", len(text))
	} else if got, err := ParseSnapshotHandle(text); err != nil || got != longest {
		t.Errorf("the longest: %+v, %v", got, err)
	}
	for text, want := range map[string]SnapshotHandle{
		"iscsi/s-1":        {Backend: "iscsi", ID: "s-1"},
		"iscsi@second/s-1": {Backend: "iscsi", Target: "second", ID: "s-1"},
		"csi/s-1":          {Backend: "csi", ID: "s-1"},
	} {
		got, err := ParseSnapshotHandle(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v, %v, written as %s", text, got, err, got)
		}
	}
	for _, text := range []string{"", "s-1", "iscsi/", "iscsi@/s-1", "iscsi@Second/s-1", "iscsi@a@b/s-1", "iscsi@a.b/s-1", "csi@second/s-1", "csi@/s-1", "zfs/s-1", "iscsi@second", "iscsi@" + strings.Repeat("a", 59) + "/s"} {
		if got, err := ParseSnapshotHandle(text); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "iscsi@TARGET/ID") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}
