package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The golden files are outputs of fio 3.41 in a guest.
func TestParseFioGolden(t *testing.T) {
	cases := map[string]result{
		"fio-randread.json":  {IOPS: 4647.352647, Mean: 3278176, P50: 733184, P99: 49545216},
		"fio-randwrite.json": {IOPS: 10813.186813, Mean: 1428698, P50: 618496, P99: 19005440},
	}
	for name, want := range cases {
		t.Run(name, func(t *testing.T) {
			out, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseFio(append([]byte("note: both iodepth >= 1 and synchronous\n"), out...), 1)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]result{want}, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseFioErrors(t *testing.T) {
	const latency = `"clat_ns":{"mean":1,"percentile":{"50.000000":1,"99.000000":2}}`
	cases := map[string]string{
		"no JSON":        "fio: failed\n",
		"cut off":        `{"jobs":[`,
		"no job":         `{"jobs":[]}`,
		"one too many":   `{"jobs":[{"read":{"total_ios":1,` + latency + `}},{"read":{"total_ios":1,` + latency + `}}]}`,
		"job failed":     `{"jobs":[{"error":5,"read":{"total_ios":1,` + latency + `}}]}`,
		"nothing done":   `{"jobs":[{"read":{"total_ios":0,` + latency + `}}]}`,
		"no percentiles": `{"jobs":[{"read":{"total_ios":1,"clat_ns":{"mean":1}}}]}`,
		"mixed":          `{"jobs":[{"read":{"total_ios":1,` + latency + `},"write":{"total_ios":1,` + latency + `}}]}`,
	}
	for name, out := range cases {
		t.Run(name, func(t *testing.T) {
			if got, err := parseFio([]byte(out), 1); !errors.Is(err, errFio) {
				t.Errorf("result %+v, error %v, want %v", got, err, errFio)
			}
		})
	}
}

func TestFioScript(t *testing.T) {
	const common = "fio --filename=/dev/x --size=64m --rw=%s --direct=1 --ioengine=libaio --output-format=json"
	cases := map[string]struct {
		kind, want string
		jobs       []job
	}{
		"random read": {"randread", " --bs=4k --norandommap --randrepeat=0 --time_based" +
			" --name=depth-1 --stonewall --iodepth=1 --runtime=2 --name=depth-16 --stonewall --iodepth=16 --runtime=5", []job{{1, 2 * time.Second}, {16, 5 * time.Second}}},
		"fill": {"write", " --name=write --bs=1m --iodepth=4 --end_fsync=1", nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want := fmt.Sprintf(common, tc.kind) + tc.want
			if got := fioScript(tc.kind, "/dev/x", 64, tc.jobs...); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}
