package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/volume"
)

// problems collects everything that is wrong with a set of parameters, so that
// its author learns of all of it at once.
type problems struct {
	// what is "parameter" of a StorageClass or "volumeAttribute" of a static PV.
	what string
	list []string
}

func (p *problems) add(key, format string, args ...any) {
	p.list = append(p.list, fmt.Sprintf("%s %s: %s", p.what, key, fmt.Sprintf(format, args...)))
}

// addErr adds an error of the domain without the words that err repeats.
func (p *problems) addErr(key string, err error) {
	p.add(key, "%s", strings.TrimPrefix(err.Error(), volume.ErrInvalid.Error()+": "))
}

// err returns all problems as one ErrInvalid, nil if there are none.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", volume.ErrInvalid, errors.New(strings.Join(p.list, "; ")))
}

// oneOf returns value if it is accepted, fallback if it is empty.
func (p *problems) oneOf(key, value, fallback string, accepted ...string) string {
	if value == "" {
		return fallback
	}
	if !slices.Contains(accepted, value) {
		p.add(key, "%q is not accepted; accepted are %s%s", value, strings.Join(accepted, ", "), didYouMean(value, accepted))
	}
	return value
}

// unknown reports every key that is not accepted. Keys in the namespaces of
// Kubernetes come from its sidecars and kubelet, not from the author.
func (p *problems) unknown(got map[string]string, accepted []string) {
	keys := make([]string, 0, len(got))
	for k := range got {
		if !slices.Contains(accepted, k) && !strings.HasPrefix(k, "csi.storage.k8s.io/") && !strings.HasPrefix(k, "storage.kubernetes.io/") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		p.list = append(p.list, fmt.Sprintf("unknown %s %q (value %q)%s; accepted are %s", p.what, k, got[k], didYouMean(k, accepted), strings.Join(accepted, ", ")))
	}
}

// maxTypos is the edit distance up to which a word counts as mistyped.
const maxTypos = 2

// didYouMean suggests the accepted word nearest to a mistyped one.
func didYouMean(got string, accepted []string) string {
	best, bestDistance := "", maxTypos+1
	for _, a := range accepted {
		if d := distance(strings.ToLower(got), strings.ToLower(a)); d < bestDistance && d < len(a) {
			best, bestDistance = a, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// distance is the Levenshtein distance of two words in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
