package target

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

const (
	// iqnPrefix starts all our target names. The longest one is prefix, server id
	// (63), volume name (63) and generation (20) with colons between them: below the
	// 223 bytes of RFC 3720 3.2.6.
	iqnPrefix = "iqn.2026-11.io.nearflash:"

	maxIQN          = 223
	minChapPassword = 12 // RFC 3720 8.2.1: 96 bits
	maxChapText     = 255
)

const (
	volumeNameAccepted = `^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`
	initiatorAccepted  = `an iqn, eui or naa name of at most 223 characters`
	usernameAccepted   = `1 to 255 of letters, digits and . _ : @ -, not beginning with NULL`
	admissionAccepted  = `at most 64 letters, digits and -, with an initiator_iqn`
	passwordAccepted   = `12 to 255 printable ASCII characters without blanks, not beginning with NULL`
)

var (
	volumeNamePattern = regexp.MustCompile(volumeNameAccepted)
	initiatorPattern  = regexp.MustCompile(`^(iqn\.[0-9]{4}-[0-9]{2}\.[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[a-z0-9_.:-]+)?|eui\.[0-9a-f]{16}|naa\.[0-9a-f]{16}([0-9a-f]{16})?)$`)
	usernamePattern   = regexp.MustCompile(`^[A-Za-z0-9._:@-]{1,255}$`)
	admissionPattern  = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
	passwordPattern   = regexp.MustCompile(`^[\x21-\x7e]+$`)
)

// InvalidError says what is wrong with one field of a request. Value is empty for
// secrets.
type InvalidError struct {
	Field, Value, Accepted string
}

// Error implements error.
func (e *InvalidError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s is missing or invalid; accepted: %s", e.Field, e.Accepted)
	}
	return fmt.Sprintf("%s %q is invalid; accepted: %s", e.Field, e.Value, e.Accepted)
}

func checkVolumeName(name string) error {
	if !volumeNamePattern.MatchString(name) {
		return &InvalidError{Field: "name", Value: name, Accepted: volumeNameAccepted}
	}
	return nil
}

// normalInitiator checks an initiator's name and returns it in lower case: that is
// how the kernel compares it (RFC 3720 3.2.6.1).
func normalInitiator(name string) (string, error) {
	lower := strings.ToLower(name)
	if len(lower) > maxIQN || !initiatorPattern.MatchString(lower) {
		return "", &InvalidError{Field: "initiator_iqn", Value: name, Accepted: initiatorAccepted}
	}
	return lower, nil
}

// checkAdmission takes an admission of an initiator, or none.
func checkAdmission(initiator, admission string) error {
	if admission != "" && (initiator == "" || !admissionPattern.MatchString(admission)) {
		return &InvalidError{Field: "admission", Value: admission, Accepted: admissionAccepted}
	}
	return nil
}

// checkCHAP knows that LIO takes a value beginning with NULL as "not set".
func checkCHAP(username, password string) error {
	if !usernamePattern.MatchString(username) || strings.HasPrefix(username, "NULL") {
		return &InvalidError{Field: "chap_username", Value: username, Accepted: usernameAccepted}
	}
	if len(password) < minChapPassword || len(password) > maxChapText || !passwordPattern.MatchString(password) || strings.HasPrefix(password, "NULL") {
		return &InvalidError{Field: "chap_password", Accepted: passwordAccepted}
	}
	return nil
}

// iqn names the target of one export of a volume (states.md, The record). Neither a
// server's nor a volume's name has a colon, so that the parts of a name are told apart.
func (c Config) iqn(volume, target string) string {
	if target == "" {
		return c.iqnBase() + volume
	}
	return c.iqnBase() + volume + ":" + target
}

// volumeOf is the volume that one of our targets is of.
func (c Config) volumeOf(iqn string) string {
	volume, _, _ := strings.Cut(strings.TrimPrefix(iqn, c.iqnBase()), ":")
	return volume
}

// targetOf names the target of a new admission: what an earlier one had is never found
// again.
func targetOf(generation int64) string {
	return "g" + strconv.FormatInt(generation, 10)
}

func (c Config) iqnBase() string {
	return iqnPrefix + c.ServerID + ":"
}

// backstore names the kernel's backstore of a volume. Two servers on one machine
// must not take each other's.
func (c Config) backstore(volume string) string {
	return c.ServerID + ":" + volume
}
