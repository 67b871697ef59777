package kubectl

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nearflash/nearflash/pkg/quantity"
)

// none stands for a value that is not known.
const none = "-"

// orNone returns s, or what stands for nothing.
func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

// optionalSize prints bytes that may be unknown.
func optionalSize(n *int64) string {
	if n == nil {
		return none
	}
	return quantity.Text(*n)
}

// micros prints microseconds: 250us, 1.2ms, 15ms, 2.1s.
func micros(n *int64) string {
	if n == nil {
		return none
	}
	v, unit := float64(*n), "us"
	switch {
	case v >= 1e6:
		v, unit = v/1e6, "s"
	case v >= 1e3:
		v, unit = v/1e3, "ms"
	}
	text := strconv.FormatFloat(v, 'f', 1, 64)
	if v >= 10 {
		text = strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(text, ".0") + unit
}

// number prints a figure that may be unknown.
func number[T int32 | int64](n *T) string {
	if n == nil {
		return none
	}
	return strconv.FormatInt(int64(*n), 10)
}

// ago prints how long ago something was, as kubectl does.
func ago(now time.Time, t metav1.Time) string {
	if t.IsZero() {
		return none
	}
	return duration.HumanDuration(max(0, now.Sub(t.Time)))
}

// count prints a number of things in words: "1 error", "2 errors".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
