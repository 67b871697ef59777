package driver

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestParseCredentials(t *testing.T) {
	before := volume.Credentials{Username: "old", Password: "secret-before"}
	tests := map[string]struct {
		secret map[string]string
		want   *volume.Credentials
		fails  string
	}{
		"nothing":     {},
		"one account": {secret: map[string]string{"chap.username": "u", "chap.password": "secret"}, want: &volume.Credentials{Username: "u", Password: "secret"}},
		"open-iscsi":  {secret: map[string]string{"node.session.auth.username": "u", "node.session.auth.password": "secret"}, want: &volume.Credentials{Username: "u", Password: "secret"}},
		"rotated": {
			secret: map[string]string{"node.session.auth.username": "u", "node.session.auth.password": "secret", "chap.previous.username": "old", "chap.previous.password": "secret-before"},
			want:   &volume.Credentials{Username: "u", Password: "secret", Previous: &before},
		},
		"no password":          {secret: map[string]string{"chap.username": "u"}, fails: "chap.password"},
		"no previous password": {secret: map[string]string{"chap.username": "u", "chap.password": "secret", "chap.previous.username": "old"}, fails: "chap.previous.password"},
		"no previous user":     {secret: map[string]string{"chap.username": "u", "chap.password": "secret", "chap.previous.password": "secret-before"}, fails: "chap.previous.username"},
		"a previous one alone": {secret: map[string]string{"chap.previous.username": "old", "chap.previous.password": "secret-before"}, fails: "no current one"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseCredentials(tc.secret)
			if tc.fails != "" {
				if !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), tc.fails) || strings.Contains(err.Error(), "secret-") {
					t.Errorf("got %v, want an error with %q and no secret", err, tc.fails)
				}
				return
			}
			if err != nil || (got == nil) != (tc.want == nil) || got != nil && !got.Equal(*tc.want) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
