package metricserver

import (
	"flag"
	"io"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	cases := map[string]struct {
		args    []string
		want    Config
		wantErr []string
	}{
		"default":             {want: Config{Secure: true}},
		"self-signed":         {args: []string{"--metrics-address=:1"}, want: Config{Address: ":1", Secure: true}},
		"certificate":         {args: []string{"--metrics-address=:1", "--metrics-cert-dir=/c"}, want: Config{Address: ":1", Secure: true, CertDir: "/c"}},
		"plain text":          {args: []string{"--metrics-address=:1", "--metrics-secure=false"}, want: Config{Address: ":1"}},
		"relative":            {args: []string{"--metrics-address=:1", "--metrics-cert-dir=c"}, wantErr: []string{"--metrics-cert-dir", "absolute"}},
		"certificate for nil": {args: []string{"--metrics-secure=false", "--metrics-cert-dir=/c"}, wantErr: []string{"without --metrics-address", "--metrics-secure=false"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got Config
			fs := flag.NewFlagSet("x", flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			got.AddFlags(fs)
			if err := fs.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := got.Validate()
			if (err != nil) != (len(tc.wantErr) > 0) {
				t.Fatalf("got %v, want %v", err, tc.wantErr)
			}
			for _, want := range tc.wantErr {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q: %v", want, err)
				}
			}
			if err == nil && got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}
