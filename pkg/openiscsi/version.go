package openiscsi

import (
	"fmt"
	"regexp"
	"strconv"
)

// Version is a version of open-iscsi.
type Version [3]int

// versionForm is what iscsiadm and iscsid say with --version; older ones write 2.0-873.
var versionForm = regexp.MustCompile(`\bversion (\d+)\.(\d+)[.-](\d+)(\S*)`)

// ParseVersion reads what iscsiadm and iscsid say of themselves. text is the version as they write
// it. known is false if it is none of open-iscsi's own: RHEL's are 6.2.1.4, with changes of its own.
func ParseVersion(said string) (v Version, text string, known bool) {
	m := versionForm.FindStringSubmatch(said)
	if m == nil {
		return Version{}, "", false
	}
	for i := range v {
		n, err := strconv.Atoi(m[i+1])
		if err != nil {
			return Version{}, "", false
		}
		v[i] = n
	}
	text = m[0][len("version "):]
	return v, text, v[0] == 2 && m[4] == ""
}

// String writes it as open-iscsi does.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// sizes are those of a request (struct iscsiadm_req) on machines of 64 bits, from the first
// version on that has it to the last. Those up to 2.1.11 are the compiler's, of each release;
// that of 2.1.13 is what Debian's iscsiadm sends.
var sizes = []struct {
	first, last Version
	bytes       int
}{
	{Version{2, 0, 873}, Version{2, 0, 873}, 12856},
	{Version{2, 0, 874}, Version{2, 0, 874}, 16080},
	{Version{2, 0, 875}, Version{2, 1, 0}, 16088},
	{Version{2, 1, 1}, Version{2, 1, 10}, 16104},
	{Version{2, 1, 11}, Version{2, 1, 11}, 16112},
	{Version{2, 1, 13}, Version{2, 1, 13}, 16136},
}

// RequestSize is the size of the requests of a version in bytes, 0 if it is not known.
func RequestSize(v Version) int {
	for _, s := range sizes {
		if !v.before(s.first) && !s.last.before(v) {
			return s.bytes
		}
	}
	return 0
}

func (v Version) before(w Version) bool {
	for i := range v {
		if v[i] != w[i] {
			return v[i] < w[i]
		}
	}
	return false
}
