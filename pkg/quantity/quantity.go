// Package quantity reads sizes as users write them: Kubernetes' quantities
// (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/) and
// percentages. It stands at the edge, in front of pkg/volume, which knows neither.
package quantity

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Bytes reads a quantity that is a whole number of bytes and not negative, such as "512Mi",
// "1.5Gi" or "1e9". Errors: volume.ErrInvalid.
func Bytes(s string) (int64, error) {
	q, err := resource.ParseQuantity(s)
	if err == nil && strings.ContainsAny(s, "0123456789") {
		// What is larger than the largest is cut down to it without an error, and parts of
		// a byte are rounded up.
		n := q.Value()
		if n >= 0 && n < math.MaxInt64 && q.Cmp(*resource.NewQuantity(n, resource.DecimalSI)) == 0 {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: %q is not a whole number of bytes; accepted are quantities such as 10Gi, 1.5Gi or 500M", volume.ErrInvalid, s)
}

var units = []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}

// Text writes bytes for people, with at most four digits: 512Mi, 1.5Gi, 0. It is rounded, and not
// meant to be read again.
func Text(n int64) string {
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v /= 1024
		u++
	}
	text := strconv.FormatFloat(v, 'f', 1, 64)
	if v >= 100 {
		text = strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(text, ".0") + units[u]
}

// Size reads a cache size: bytes as Bytes does, or "1%" to "100%". Errors:
// volume.ErrInvalid.
func Size(s string) (volume.Size, error) {
	if digits, ok := strings.CutSuffix(s, "%"); ok {
		n, err := strconv.Atoi(digits)
		if err != nil || n < 1 || n > 100 || digits[0] == '+' {
			return volume.Size{}, fmt.Errorf("%w: %q is not a percentage; accepted are 1%% to 100%%", volume.ErrInvalid, s)
		}
		return volume.Size{Percent: n}, nil
	}
	n, err := Bytes(s)
	if err != nil {
		return volume.Size{}, err
	}
	if n == 0 {
		return volume.Size{}, fmt.Errorf("%w: a cache of %q bytes: use cacheMode none for no cache", volume.ErrInvalid, s)
	}
	return volume.Size{Bytes: n}, nil
}
