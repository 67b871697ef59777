package volume

import (
	"errors"
	"math"
	"math/big"
	"testing"
)

func TestParseBytes(t *testing.T) {
	cases := map[string]struct {
		in      string
		want    int64
		wantErr string
	}{
		"bytes":      {in: "4096", want: 4096},
		"zero":       {in: "0", want: 0},
		"kibi":       {in: "32Ki", want: 32 << 10},
		"mebi":       {in: "512Mi", want: 512 << 20},
		"gibi":       {in: "10Gi", want: 10 << 30},
		"tebi":       {in: "2Ti", want: 2 << 40},
		"pebi":       {in: "1Pi", want: 1 << 50},
		"kilo":       {in: "5k", want: 5000},
		"mega":       {in: "5M", want: 5_000_000},
		"giga":       {in: "5G", want: 5_000_000_000},
		"tera":       {in: "5T", want: 5_000_000_000_000},
		"peta":       {in: "5P", want: 5_000_000_000_000_000},
		"largest":    {in: "9223372036854775807", want: math.MaxInt64},
		"too large":  {in: "9223372036854775808", wantErr: `invalid argument: "9223372036854775808" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
		"overflow":   {in: "8192Pi", wantErr: `invalid argument: "8192Pi" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
		"negative":   {in: "-1", wantErr: `invalid argument: "-1" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
		"plus":       {in: "+1", wantErr: `invalid argument: "+1" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
		"fraction":   {in: "1.5Gi", wantErr: `invalid argument: "1.5Gi" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
		"empty":      {in: "", wantErr: `invalid argument: "" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
		"no digits":  {in: "Gi", wantErr: `invalid argument: "Gi" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
		"underscore": {in: "1_000", wantErr: `invalid argument: "1_000" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
		"GB":         {in: "1GB", wantErr: `invalid argument: "1GB" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseBytes(tc.in)
			checkError(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("ParseBytes(%q) = %d, want %d", tc.in, got, tc.want)
			}
		})
	}
}

func TestParseSize(t *testing.T) {
	cases := map[string]struct {
		in      string
		want    Size
		wantErr string
	}{
		"percent":       {in: "10%", want: Size{Percent: 10}},
		"whole volume":  {in: "100%", want: Size{Percent: 100}},
		"bytes":         {in: "10Gi", want: Size{Bytes: 10 << 30}},
		"zero percent":  {in: "0%", wantErr: `invalid argument: "0%" is not a percentage; accepted are 1% to 100%`},
		"101 percent":   {in: "101%", wantErr: `invalid argument: "101%" is not a percentage; accepted are 1% to 100%`},
		"plus percent":  {in: "+5%", wantErr: `invalid argument: "+5%" is not a percentage; accepted are 1% to 100%`},
		"only a sign":   {in: "%", wantErr: `invalid argument: "%" is not a percentage; accepted are 1% to 100%`},
		"zero bytes":    {in: "0", wantErr: `invalid argument: a cache of "0" bytes: use cacheMode none for no cache`},
		"zero gibi":     {in: "0Gi", wantErr: `invalid argument: a cache of "0Gi" bytes: use cacheMode none for no cache`},
		"not a number":  {in: "lots", wantErr: `invalid argument: "lots" is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P`},
		"percent of Gi": {in: "5Gi%", wantErr: `invalid argument: "5Gi%" is not a percentage; accepted are 1% to 100%`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseSize(tc.in)
			checkError(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("ParseSize(%q) = %+v, want %+v", tc.in, got, tc.want)
			}
		})
	}
}

func TestSizeOf(t *testing.T) {
	cases := map[string]struct {
		size   Size
		volume int64
		want   int64
	}{
		"bytes":                      {Size{Bytes: 7}, 1 << 30, 7},
		"tenth":                      {Size{Percent: 10}, 1 << 30, 107374182},
		"all":                        {Size{Percent: 100}, 1<<30 + 1, 1<<30 + 1},
		"none":                       {Size{}, 1 << 30, 0},
		"largest does not overflow":  {Size{Percent: 99}, math.MaxInt64, 9131138316486228048},
		"percent of an unknown size": {Size{Percent: 10}, 0, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.size.Of(tc.volume); got != tc.want {
				t.Errorf("%v.Of(%d) = %d, want %d", tc.size, tc.volume, got, tc.want)
			}
		})
	}
}

// FuzzParseBytes compares with arbitrary precision: an accepted text has
// exactly the value that its digits and suffix say.
func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"0", "1", "10Gi", "8191Pi", "8192Pi", "-1", "Ki", "1e3", "1 Gi", "9223372036854775807", "00012k", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseBytes(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || got != 0 {
				t.Fatalf("ParseBytes(%q) = %d, %v", s, got, err)
			}
			return
		}
		digits, factor := s, int64(1)
		for suffix, n := range map[string]int64{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} {
			if len(s) > len(suffix) && s[len(s)-len(suffix):] == suffix {
				digits, factor = s[:len(s)-len(suffix)], n
			}
		}
		want, ok := new(big.Int).SetString(digits, 10)
		if !ok {
			t.Fatalf("ParseBytes accepted %q, which has no digits", s)
		}
		if want.Mul(want, big.NewInt(factor)); want.Cmp(big.NewInt(got)) != 0 {
			t.Fatalf("ParseBytes(%q) = %d, want %s", s, got, want)
		}
	})
}

// FuzzParseSize checks that the printed form of an accepted size is accepted
// and means the same, and that a size is never negative or beyond the volume.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"1%", "100%", "0%", "10Gi", "%", "+1%", "1%%", "1000000000000000000000%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		size, err := ParseSize(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("ParseSize(%q): %v does not wrap ErrInvalid", s, err)
			}
			return
		}
		again, err := ParseSize(size.String())
		if err != nil || again != size {
			t.Fatalf("ParseSize(%q) = %+v, printed %q, parsed again %+v, %v", s, size, size.String(), again, err)
		}
		if got := size.Of(math.MaxInt64); got <= 0 {
			t.Fatalf("ParseSize(%q).Of(max) = %d", s, got)
		}
	})
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("error %v does not wrap ErrInvalid", err)
		}
	}
	if got != want {
		t.Errorf("error\n got: %s\nwant: %s", got, want)
	}
}
