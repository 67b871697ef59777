package iscsi

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// rotated is the account of a Secret after a rotation from one password to another.
func rotated(from, to string) *volume.Credentials {
	c := &volume.Credentials{Username: "u", Password: "password-" + to}
	if from != "" {
		c.Previous = &volume.Credentials{Username: "u", Password: "password-" + from}
	}
	return c
}

// derived is an account that both sides have derived, before that of a Secret, if there is one.
func derived(name string, secret *volume.Credentials) *volume.Credentials {
	return &volume.Credentials{Username: "nf-" + name, Password: "password-" + name, Previous: secret}
}

// TestRotation: whichever account the server has, a node finds it, and tries no other after
// it; a Secret that was rotated after the publication locks nobody out (states.md, The
// account of an admission).
func TestRotation(t *testing.T) {
	tests := map[string]struct {
		server, record string
		secret         *volume.Credentials
		failFast       bool
		want           []string // passwords that are tried
		refused        bool
	}{
		"first login":                             {server: "one", secret: rotated("", "one"), want: []string{"one"}},
		"rotated after the publication":           {server: "one", record: "one", secret: rotated("", "two"), want: []string{"one"}},
		"rotated between publication and stage":   {server: "one", secret: rotated("one", "two"), want: []string{"two", "one"}},
		"rotated, then published":                 {server: "two", record: "one", secret: rotated("one", "two"), want: []string{"one", "two"}},
		"rotated twice since":                     {server: "two", record: "one", secret: rotated("two", "three"), want: []string{"one", "three", "two"}},
		"nothing was rotated":                     {server: "one", record: "one", secret: rotated("", "one"), want: []string{"one"}},
		"nothing was rotated, refused":            {server: "x", record: "one", secret: rotated("", "one"), want: []string{"one"}, refused: true},
		"refused with all":                        {server: "x", record: "one", secret: rotated("two", "three"), want: []string{"one", "three", "two"}, refused: true},
		"repair has no request":                   {server: "one", record: "one", want: []string{"one"}},
		"a lease's account is of this lease":      {server: "two", record: "one", secret: rotated("", "two"), failFast: true, want: []string{"two"}},
		"first login with a derived account":      {server: "key", secret: derived("key", rotated("", "one")), want: []string{"key"}},
		"published before the upgrade":            {server: "one", record: "one", secret: derived("key", rotated("", "one")), want: []string{"one"}},
		"published before it, and a new machine":  {server: "one", secret: derived("key", rotated("", "one")), want: []string{"key", "one"}},
		"published anew after the upgrade":        {server: "key", record: "one", secret: derived("key", rotated("", "one")), want: []string{"one", "key"}},
		"a key of the controller since":           {server: "key", record: "key", secret: derived("next", nil), want: []string{"key"}},
		"another key of the node, no Secret":      {server: "key", secret: derived("next", nil), want: []string{"next"}, refused: true},
		"admitted anew with another key":          {server: "next", record: "key", secret: derived("next", rotated("one", "two")), want: []string{"key", "next"}},
		"the previous one is what the record has": {server: "x", record: "one", secret: rotated("one", "two"), want: []string{"one", "two"}, refused: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			tried := h.server(tc.server, tc.record)
			target := at("192.0.2.1:3260")
			target.FailFast = tc.failFast
			_, err := h.i.Connect(t.Context(), target, tc.secret)
			if errors.Is(err, transport.ErrAuth) != tc.refused || !tc.refused && err != nil {
				t.Errorf("got %v, want refused: %v", err, tc.refused)
			}
			if !slices.Equal(*tried, tc.want) {
				t.Errorf("tried %v, want %v", *tried, tc.want)
			}
			if lines := h.run.Lines(); strings.Contains(strings.Join(lines, "\n"), "password-") {
				t.Errorf("a password is on a command line: %v", lines)
			}
		})
	}
}

// TestRotationKilled: killed at any login, the node still has the account of the admission.
func TestRotationKilled(t *testing.T) {
	for server, secret := range map[string]*volume.Credentials{"one": rotated("", "two"), "two": rotated("two", "three"), "three": rotated("", "three")} {
		for killed := range 3 {
			h := newHost(t)
			tried := h.server(server, "one")
			h.die = killed
			_, _ = h.i.Connect(t.Context(), at("192.0.2.1:3260"), secret)
			h.die = -1
			if _, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), secret); err != nil {
				t.Errorf("server has %s, killed at login %d, then: %v (tried %v)", server, killed, err, *tried)
			}
		}
	}
}

// server has the target take one password alone, and the record hold one; it returns those
// that are tried.
func (h *host) server(password, recorded string) *[]string {
	h.t.Helper()
	record := "nodes/" + iqn + "/192.0.2.1,3260"
	text := "# BEGIN RECORD 2.1.11\nnode.name = " + iqn + "\n"
	if recorded != "" {
		h.write(record, text+"node.session.auth.username = u\nnode.session.auth.password = password-"+recorded+"\n# END RECORD\n")
	}
	h.die = -1
	tried := &[]string{}
	h.run.On("iscsiadm --mode node --targetname " + iqn + " --portal 192.0.2.1:3260 --op new").Do(
		func(context.Context, hostexectest.Call) (string, error) {
			// As from a host whose iscsid.conf has a default account.
			h.write(record, text+"node.session.auth.username = default\nnode.session.auth.password = default\n# END RECORD\n")
			return "", nil
		})
	h.run.On("iscsiadm --mode node --targetname " + iqn + " --portal 192.0.2.1:3260 --login").Do(
		func(context.Context, hostexectest.Call) (string, error) { return "", h.answer(record, password, tried) })
	return tried
}

// answer is that of the target to a login with what the record has.
func (h *host) answer(record, password string, tried *[]string) error {
	h.t.Helper()
	if len(*tried) == h.die {
		return errKilled
	}
	known, err := recordedAccount(filepath.Join(h.dir, record))
	if err != nil || known == nil {
		h.t.Fatalf("login with account %v of %s: %v", known, record, err)
	}
	got := strings.TrimPrefix(known.Password, "password-")
	*tried = append(*tried, got)
	if got != password {
		return hostexec.NewExitError(hostexec.Cmd{Name: "iscsiadm"}, errLoginAuth, nil)
	}
	h.session("3", "192.0.2.1", "3260")
	h.lunDevice("3", "0", "sda", "naa.1", "2048")
	return nil
}

// errKilled stands for the end of the plugin.
var errKilled = errors.New("killed")
