package quantity

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestBytes(t *testing.T) {
	const bad = " is not a whole number of bytes; accepted are quantities such as 10Gi, 1.5Gi or 500M"
	cases := map[string]struct {
		in      string
		want    int64
		wantErr string
	}{
		"bytes":                        {in: "4096", want: 4096},
		"zero":                         {in: "0", want: 0},
		"kibi":                         {in: "32Ki", want: 32 << 10},
		"mebi":                         {in: "512Mi", want: 512 << 20},
		"gibi":                         {in: "10Gi", want: 10 << 30},
		"pebi":                         {in: "1Pi", want: 1 << 50},
		"exbi":                         {in: "1Ei", want: 1 << 60},
		"kilo":                         {in: "5k", want: 5000},
		"peta":                         {in: "5P", want: 5_000_000_000_000_000},
		"fraction":                     {in: "1.5Gi", want: 3 << 29},
		"exponent":                     {in: "1e9", want: 1_000_000_000},
		"plus":                         {in: "+1", want: 1},
		"milli that is whole":          {in: "2000m", want: 2},
		"nearly largest":               {in: "9223372036854775806", want: math.MaxInt64 - 1},
		"largest, as what is larger":   {in: "9223372036854775807", wantErr: `invalid argument: "9223372036854775807"` + bad},
		"too large":                    {in: "9223372036854775808", wantErr: `invalid argument: "9223372036854775808"` + bad},
		"overflow":                     {in: "8192Pi", wantErr: `invalid argument: "8192Pi"` + bad},
		"far too large":                {in: "100000000000000000000000000000000Gi", wantErr: `invalid argument: "100000000000000000000000000000000Gi"` + bad},
		"negative":                     {in: "-1", wantErr: `invalid argument: "-1"` + bad},
		"part of a byte":               {in: "1500m", wantErr: `invalid argument: "1500m"` + bad},
		"part of a byte of a fraction": {in: "1.0001k0", wantErr: `invalid argument: "1.0001k0"` + bad},
		"less than a nano":             {in: "1.0000000001", wantErr: `invalid argument: "1.0000000001"` + bad},
		"empty":                        {in: "", wantErr: `invalid argument: ""` + bad},
		"no digits":                    {in: "Gi", wantErr: `invalid argument: "Gi"` + bad},
		"underscore":                   {in: "1_000", wantErr: `invalid argument: "1_000"` + bad},
		"GB":                           {in: "1GB", wantErr: `invalid argument: "1GB"` + bad},
		"Gib":                          {in: "10Gib", wantErr: `invalid argument: "10Gib"` + bad},
		"blank":                        {in: "1 Gi", wantErr: `invalid argument: "1 Gi"` + bad},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Bytes(tc.in)
			checkError(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("Bytes(%q) = %d, want %d", tc.in, got, tc.want)
			}
		})
	}
}

func TestSize(t *testing.T) {
	cases := map[string]struct {
		in      string
		want    volume.Size
		wantErr string
	}{
		"percent":       {in: "10%", want: volume.Size{Percent: 10}},
		"whole volume":  {in: "100%", want: volume.Size{Percent: 100}},
		"bytes":         {in: "10Gi", want: volume.Size{Bytes: 10 << 30}},
		"zero percent":  {in: "0%", wantErr: `invalid argument: "0%" is not a percentage; accepted are 1% to 100%`},
		"101 percent":   {in: "101%", wantErr: `invalid argument: "101%" is not a percentage; accepted are 1% to 100%`},
		"plus percent":  {in: "+5%", wantErr: `invalid argument: "+5%" is not a percentage; accepted are 1% to 100%`},
		"only a sign":   {in: "%", wantErr: `invalid argument: "%" is not a percentage; accepted are 1% to 100%`},
		"zero bytes":    {in: "0", wantErr: `invalid argument: a cache of "0" bytes: use cacheMode none for no cache`},
		"zero gibi":     {in: "0Gi", wantErr: `invalid argument: a cache of "0Gi" bytes: use cacheMode none for no cache`},
		"not a number":  {in: "lots", wantErr: `invalid argument: "lots" is not a whole number of bytes; accepted are quantities such as 10Gi, 1.5Gi or 500M`},
		"percent of Gi": {in: "5Gi%", wantErr: `invalid argument: "5Gi%" is not a percentage; accepted are 1% to 100%`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Size(tc.in)
			checkError(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("Size(%q) = %+v, want %+v", tc.in, got, tc.want)
			}
		})
	}
}

// FuzzBytes compares with arbitrary precision: a decimal with a suffix that is accepted has
// exactly the value that it says.
func FuzzBytes(f *testing.F) {
	for _, s := range []string{"0", "1", "10Gi", "1.5Gi", "8191Pi", "8192Pi", "-1", "Ki", "1e3", "1 Gi", "9223372036854775807", "00012k", ".5k", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Bytes(s)
		if err != nil {
			if !errors.Is(err, volume.ErrInvalid) || got != 0 {
				t.Fatalf("Bytes(%q) = %d, %v", s, got, err)
			}
			return
		}
		digits, factor := s, int64(1)
		for suffix, n := range map[string]int64{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} {
			if cut, ok := strings.CutSuffix(s, suffix); ok {
				digits, factor = cut, n
			}
		}
		if strings.Trim(digits, "0123456789.") != "" {
			return // another suffix, an exponent or a sign
		}
		want, ok := new(big.Rat).SetString(digits)
		if !ok {
			t.Fatalf("Bytes accepted %q, which is no number", s)
		}
		if want.Mul(want, new(big.Rat).SetInt64(factor)); want.Cmp(new(big.Rat).SetInt64(got)) != 0 {
			t.Fatalf("Bytes(%q) = %d, want %s", s, got, want)
		}
	})
}

// FuzzSize checks that the printed form of an accepted size is accepted
// and means the same, and that a size is never negative or beyond the volume.
func FuzzSize(f *testing.F) {
	for _, s := range []string{"1%", "100%", "0%", "10Gi", "%", "+1%", "1%%", "1000000000000000000000%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		size, err := Size(s)
		if err != nil {
			if !errors.Is(err, volume.ErrInvalid) {
				t.Fatalf("Size(%q): %v does not wrap ErrInvalid", s, err)
			}
			return
		}
		again, err := Size(size.String())
		if err != nil || again != size {
			t.Fatalf("Size(%q) = %+v, printed %q, parsed again %+v, %v", s, size, size.String(), again, err)
		}
		if got := size.Of(math.MaxInt64); got <= 0 {
			t.Fatalf("Size(%q).Of(max) = %d", s, got)
		}
	})
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
		if !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("error %v does not wrap ErrInvalid", err)
		}
	}
	if got != want {
		t.Errorf("error\n got: %s\nwant: %s", got, want)
	}
}

// TestSizeString: what a record gets is for people, and is read as the same size again.
func TestSizeString(t *testing.T) {
	for text, size := range map[string]volume.Size{
		"1Gi": {Bytes: 1 << 30}, "1536Mi": {Bytes: 3 << 29}, "107374182": {Bytes: 107374182}, "1048577": {Bytes: 1<<20 + 1}, "1Ki": {Bytes: 1024},
		"1023": {Bytes: 1023}, "1024Pi": {Bytes: 1 << 60}, "1Pi": {Bytes: 1 << 50}, "10%": {Percent: 10},
	} {
		if got := size.String(); got != text {
			t.Errorf("%d bytes, %d %%: %s, want %s", size.Bytes, size.Percent, got, text)
		}
		if got, err := Size(text); err != nil || got != size {
			t.Errorf("%s is read as %+v, %v, want %+v", text, got, err, size)
		}
	}
	if text := (volume.Size{}).String(); text != "" {
		t.Errorf("no size: %q", text)
	}
}
