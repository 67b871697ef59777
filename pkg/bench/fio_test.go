package bench

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// recorded is an output of fio 3.33, as the script in a pod has it.
func recorded(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return []byte("cpu  100 0 50 800 50 0 0 0 0 0\nnote: both iodepth >= 1 and synchronous I/O engine are selected\n" + string(text) + "cpu  160 0 80 810 50 0 0 0 0 0\n")
}

func TestParseLoadGolden(t *testing.T) {
	busy := 90.0
	for name, want := range map[string]Load{
		"fio-oltp.json": {
			IOPS: 36381.309345, ReadIOPS: 25456.771614, WriteIOPS: 10924.537731, BytesPerSecond: 298035686, Seconds: 2.001, JobCPUPercent: 34.7, NodeCPUPercent: &busy,
			Latency: Latency{MeanMicros: 101.991067, P50Micros: 78.336, P90Micros: 160.768, P99Micros: 395.264, P999Micros: 1925.12, MaxMicros: 21626.88},
			Sync:    &Latency{MeanMicros: 215.496531, P50Micros: 171.008, P90Micros: 309.248, P99Micros: 962.56, P999Micros: 4177.92, MaxMicros: 21626.88},
			jobs:    1,
		},
		"fio-read-two-jobs.json": {
			IOPS: 53554.445554, ReadIOPS: 53554.445554, BytesPerSecond: 219359008, Seconds: 1.001, JobCPUPercent: 25.5, NodeCPUPercent: &busy,
			Latency: Latency{MeanMicros: 93.024351, P50Micros: 80.384, P90Micros: 111.104, P99Micros: 317.44, P999Micros: 2572.288, MaxMicros: 8585.216},
			jobs:    2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseLoad(recorded(t, name))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(Load{}), cmpopts.IgnoreFields(Load{}, "Distribution"), cmpopts.EquateApprox(1e-6, 0)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			last := got.Distribution[len(got.Distribution)-1]
			if n := len(got.Distribution); n < 20 || n > 200 || last.Share != 1 || last.Micros < got.Latency.MaxMicros {
				t.Errorf("%d steps, the last is %+v", n, last)
			}
			for i, s := range got.Distribution[1:] {
				if before := got.Distribution[i]; s.Share < before.Share || s.Micros <= before.Micros {
					t.Errorf("after %+v comes %+v", before, s)
				}
			}
		})
	}
}

func TestParseLoadErrors(t *testing.T) {
	const latency = `"lat_ns":{"bins":{"1000":5}}`
	for name, out := range map[string]string{
		"no JSON":      "fio: failed\n",
		"cut off":      `{"jobs":[`,
		"no job":       `{"jobs":[]}`,
		"job failed":   `{"jobs":[{"error":5,"read":{"total_ios":1,` + latency + `}}]}`,
		"nothing done": `{"jobs":[{"read":{"total_ios":0}}]}`,
		"another bin":  `{"jobs":[{"read":{"lat_ns":{"bins":{"fast":5}}}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := parseLoad([]byte(out)); !errors.Is(err, ErrFio) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestBusyPercent(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		want          float64
	}{
		"half":               {"cpu  10 0 10 20 0 0 0 0 0 0", "cpu  20 0 20 40 0 0 0 0 0 0", 50},
		"waiting is idle":    {"cpu  0 0 0 0 0 0 0 0", "cpu  10 0 0 0 90 0 0 0", 10},
		"others have it":     {"cpu  0 0 0 0 0 0 0 0", "cpu  10 0 0 0 0 0 0 90", 100},
		"guests count once":  {"cpu  0 0 0 0 0 0 0 0 0 0", "cpu  50 0 0 50 0 0 0 0 50 0", 50},
		"no line":            {"", "cpu  1 1 1 1 1", math.NaN()},
		"no number":          {"cpu  a b c d e", "cpu  1 1 1 1 1", math.NaN()},
		"no time has passed": {"cpu  1 1 1 1 1", "cpu  1 1 1 1 1", math.NaN()},
	} {
		t.Run(name, func(t *testing.T) {
			got := busyPercent(c.before+"\n", "\n"+c.after+"\n")
			if math.IsNaN(c.want) != (got == nil) || got != nil && math.Abs(*got-c.want) > 1e-9 {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestText(t *testing.T) {
	for micros, want := range map[float64]string{0.4: "0us", 250: "250us", 1234: "1.2ms", 15400: "15ms", 2_100_000: "2.1s", 12_000_000: "12s"} {
		if got := Text(micros); got != want {
			t.Errorf("%g is %s, want %s", micros, got, want)
		}
	}
}
