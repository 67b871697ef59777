package volume

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a cache size: a number of bytes or a percentage of the volume.
// Exactly one of the two is set; the zero Size means none.
type Size struct {
	Bytes   int64
	Percent int
}

// IsZero reports whether no size was given.
func (s Size) IsZero() bool { return s == Size{} }

// String returns the form that ParseSize accepts.
func (s Size) String() string {
	switch {
	case s.IsZero():
		return ""
	case s.Percent != 0:
		return strconv.Itoa(s.Percent) + "%"
	default:
		return strconv.FormatInt(s.Bytes, 10)
	}
}

// Of returns the size in bytes for a volume of the given number of bytes.
func (s Size) Of(volumeBytes int64) int64 {
	if s.Percent == 0 {
		return s.Bytes
	}
	// Divided first so that a volume of exbibytes cannot overflow.
	return volumeBytes/100*int64(s.Percent) + volumeBytes%100*int64(s.Percent)/100
}

var sizeSuffixes = []struct {
	suffix string
	factor int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"Pi", 1 << 50},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}, {"", 1},
}

// ParseBytes reads a whole Kubernetes quantity of bytes such as "512Mi".
func ParseBytes(s string) (int64, error) {
	for _, u := range sizeSuffixes {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok || (u.suffix != "" && digits == "") {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 0 || strings.HasPrefix(digits, "+") || n > math.MaxInt64/u.factor {
			break
		}
		return n * u.factor, nil
	}
	return 0, fmt.Errorf("%w: %q is not a whole number of bytes; accepted are digits with an optional Ki, Mi, Gi, Ti, Pi, k, M, G, T or P", ErrInvalid, s)
}

// ParseSize reads a cache size: bytes as ParseBytes does, or "1%" to "100%".
func ParseSize(s string) (Size, error) {
	if digits, ok := strings.CutSuffix(s, "%"); ok {
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 || n > 100 || digits[0] == '+' {
			return Size{}, fmt.Errorf("%w: %q is not a percentage; accepted are 1%% to 100%%", ErrInvalid, s)
		}
		return Size{Percent: n}, nil
	}
	n, err := ParseBytes(s)
	if err != nil {
		return Size{}, err
	}
	if n == 0 {
		return Size{}, fmt.Errorf("%w: a cache of %q bytes: use cacheMode none for no cache", ErrInvalid, s)
	}
	return Size{Bytes: n}, nil
}
