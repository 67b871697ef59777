package scheduling

import (
	"flag"
	"io"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	names := []string{"--scheduling-namespace=ns", "--scheduling-name=n"}
	cases := map[string]struct {
		args    []string
		want    Config
		wantErr []string
	}{
		"off":      {want: Config{Weights: Weights{80, 20}}},
		"on":       {args: append([]string{"--scheduling-address=:1"}, names...), want: Config{Address: ":1", Namespace: "ns", Name: "n", Weights: Weights{80, 20}}},
		"weights":  {args: append([]string{"--scheduling-address=[::1]:1", "--scheduling-warm-weight=0", "--scheduling-free-weight=100"}, names...), want: Config{Address: "[::1]:1", Namespace: "ns", Name: "n", Weights: Weights{0, 100}}},
		"no names": {args: []string{"--scheduling-address=:1"}, wantErr: []string{"--scheduling-namespace", "--scheduling-name"}},
		"bad":      {args: append([]string{"--scheduling-address=:0", "--scheduling-warm-weight=-1", "--scheduling-free-weight=101"}, names...), wantErr: []string{"--scheduling-address", "--scheduling-warm-weight -1", "--scheduling-free-weight 101"}},
		"no port":  {args: append([]string{"--scheduling-address=x"}, names...), wantErr: []string{"--scheduling-address"}},
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
