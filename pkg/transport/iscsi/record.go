package iscsi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// setting is one line of an initiator's record.
type setting struct{ name, value string }

// patience is how long a path waits for its portal.
type patience struct {
	// replacement is how long I/O is held back while the session is lost; login
	// bounds one try of a login, logout the portal's answer to a logout.
	replacement, login, logout time.Duration
	logins                     int
	// interval is the time between two questions whether the portal is there,
	// answer how long it may take to answer, reset how long to a reset of a
	// command, a LUN or the target. 0 is open-iscsi's default.
	interval, answer, reset time.Duration
}

// patienceOf decides how long the paths of a target wait.
func patienceOf(t transport.Target) patience {
	p := patience{
		replacement: replacementSingle, logout: 15 * time.Second,
		// iscsid would try a dead portal for two minutes, as long as kubelet
		// waits for the whole stage. Kubelet comes again by itself, and where
		// there are several portals the others are enough.
		logins: 2, login: 8 * time.Second,
	}
	switch {
	case t.FailFast:
		// A session that is lost is given up at once. A login may take its time: one is
		// 1.4 s at rest in a guest of the lab, and more than 4 s were seen under load.
		const least = time.Second // of open-iscsi
		return patience{replacement: least, logins: 1, login: 5 * least, logout: least, interval: least, answer: least, reset: least}
	case len(t.Portals) > 1:
		p.replacement = replacementMulti
	}
	return p
}

func (p patience) settings() []setting {
	seconds := func(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }
	out := []setting{
		{"node.session.timeo.replacement_timeout", seconds(p.replacement)},
		{"node.session.initial_login_retry_max", strconv.Itoa(p.logins)},
		{"node.conn[0].timeo.login_timeout", seconds(p.login)},
		{"node.conn[0].timeo.logout_timeout", seconds(p.logout)},
	}
	if p.interval > 0 {
		out = append(out,
			setting{"node.conn[0].timeo.noop_out_interval", seconds(p.interval)},
			setting{"node.conn[0].timeo.noop_out_timeout", seconds(p.answer)},
			setting{"node.session.err_timeo.abort_timeout", seconds(p.reset)},
			setting{"node.session.err_timeo.lu_reset_timeout", seconds(p.reset)},
			setting{"node.session.err_timeo.tgt_reset_timeout", seconds(p.reset)})
	}
	return out
}

// recordSettings are the settings of a path. Without credentials what the record
// has stays.
func (i *Initiator) recordSettings(t transport.Target, cred *volume.Credentials) []setting {
	out := append([]setting{
		// Sessions are this driver's to make; after a reboot nothing may log in
		// before its volume has been looked at.
		{"node.startup", "manual"},
		{"node.session.scan", "manual"},
	}, patienceOf(t).settings()...)
	if i.name != "" {
		out = append(out, setting{"iface.initiatorname", i.name})
	}
	if cred == nil {
		return out
	}
	out = append(out, setting{"node.session.auth.authmethod", "CHAP"},
		setting{usernameSetting, cred.Username}, setting{passwordSetting, cred.Password})
	return out
}

// accounts are those to try, in their order; nil is the one of the record. The name of a
// target has the generation of the admission, so that the record's account is the one
// that this admission was made with, unless the volume was published anew since. Of a
// lease (once) no account is used twice.
func accounts(known, cred *volume.Credentials, once bool) []*volume.Credentials {
	if cred == nil {
		return []*volume.Credentials{nil}
	}
	var out []*volume.Credentials
	if known != nil && !once {
		out = append(out, nil)
	}
	for c := cred; c != nil; c = c.Previous {
		if known == nil || once || !sameAccount(*known, *c) {
			out = append(out, c)
		}
	}
	return out
}

func sameAccount(a, b volume.Credentials) bool {
	return a.Username == b.Username && a.Password == b.Password
}

// recordedAccount is the CHAP account of a record, nil if it has none.
func recordedAccount(path string) (*volume.Credentials, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("initiator record: %w", err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(line, "="); found {
			values[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	known := &volume.Credentials{Username: values[usernameSetting], Password: values[passwordSetting]}
	if known.Username == "" || known.Password == "" {
		return nil, nil
	}
	return known, nil
}

// Names of a record's account.
const (
	usernameSetting = "node.session.auth.username"
	passwordSetting = "node.session.auth.password"
)

// scratch is how the names of files begin that are about to be records.
const scratch = ".nearflash-"

// editRecord sets values in a record. The file is replaced, so that iscsid never
// reads half of it, and only its owner can read it. It is made in another folder of the
// same filesystem: iscsiadm goes through all targets, and fails at a file where it
// expects a target's folder.
func editRecord(path, folder string, settings []setting) error {
	for _, s := range settings {
		if strings.ContainsAny(s.value, "\n\r") || s.value != strings.TrimSpace(s.value) {
			// The value may be a secret and is not shown.
			return fmt.Errorf("%w: %s has a line break, or blanks at an end", transport.ErrInvalid, s.name)
		}
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("initiator record: %w", err)
	}
	text := applySettings(string(old), settings)
	f, err := os.CreateTemp(folder, scratch+"*") // mode 0600
	if err != nil {
		return fmt.Errorf("initiator record: %w", err)
	}
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("initiator record: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// sweep removes what a plugin that was killed left of records, with passwords in it: in
// folder, and in that of the records, where earlier versions had it.
func sweep(folder, records string) error {
	var errs []error
	for _, dir := range []string{folder, records} {
		left, err := filepath.Glob(filepath.Join(dir, scratch+"*"))
		errs = append(errs, err)
		for _, path := range left {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// applySettings replaces lines "name = value" and adds missing ones before the
// end mark.
func applySettings(text string, settings []setting) string {
	const end = "# END RECORD"
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		name, _, _ := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if line == end || slices.ContainsFunc(settings, func(s setting) bool { return s.name == name }) {
			continue
		}
		lines = append(lines, line)
	}
	for _, s := range settings {
		lines = append(lines, s.name+" = "+s.value)
	}
	return strings.Join(append(lines, end), "\n") + "\n"
}
