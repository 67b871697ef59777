package driver

import (
	"fmt"

	"github.com/nearflash/nearflash/pkg/loginaccount"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Keys of the CHAP secret. The second pair is how open-iscsi and other drivers
// name them, so that an existing secret can be used. The previous account is the
// one that a rotation has replaced.
var (
	usernameKeys         = []string{"chap.username", "node.session.auth.username"}
	passwordKeys         = []string{"chap.password", "node.session.auth.password"}
	previousUsernameKeys = []string{"chap.previous.username"}
	previousPasswordKeys = []string{"chap.previous.password"}
)

// parseCredentials reads CHAP credentials; nil when there are none. The error
// names keys and never values.
func parseCredentials(secrets map[string]string) (*volume.Credentials, error) {
	cred, err := parseAccount(secrets, usernameKeys, passwordKeys)
	if err != nil {
		return nil, err
	}
	previous, err := parseAccount(secrets, previousUsernameKeys, previousPasswordKeys)
	if err != nil {
		return nil, err
	}
	if cred == nil && previous != nil {
		return nil, fmt.Errorf("%w: the secret has a previous CHAP account and no current one: give %s and %s", volume.ErrInvalid, usernameKeys[0], passwordKeys[0])
	}
	if cred != nil {
		cred.Previous = previous
	}
	return cred, nil
}

// parseAccount reads one account of the secret.
func parseAccount(secrets map[string]string, usernameKeys, passwordKeys []string) (*volume.Credentials, error) {
	user, password := firstOf(secrets, usernameKeys), firstOf(secrets, passwordKeys)
	switch {
	case user == "" && password == "":
		return nil, nil
	case user == "":
		return nil, fmt.Errorf("%w: the secret has %s and not %s: give both, or neither", volume.ErrInvalid, passwordKeys[0], usernameKeys[0])
	case password == "":
		return nil, fmt.Errorf("%w: the secret has %s and not %s: give both, or neither", volume.ErrInvalid, usernameKeys[0], passwordKeys[0])
	}
	return &volume.Credentials{Username: user, Password: password}, nil
}

// credentialsFor reads the secrets of a stage: the other driver's, as they are, for a volume of
// it, and CHAP credentials for a LUN.
func credentialsFor(s volume.Source, secrets map[string]string) (*volume.Credentials, error) {
	if s.CSI == nil {
		return parseCredentials(secrets)
	}
	return &volume.Credentials{Secrets: secrets}, nil
}

// withDerived puts the account that is derived for an admission before those of the Secret, which
// is what the admission has if it is of a controller of before (states.md, The account of an
// admission). Without a key of this node, or of the controller, it is what it was.
func (n *Node) withDerived(id volume.ID, p volume.Publication, given *volume.Credentials) (*volume.Credentials, error) {
	if n.loginKey == nil || p.LoginKey == "" || p.Source.CSI != nil {
		return given, nil
	}
	derived, err := loginaccount.AtNode(n.loginKey, p.LoginKey, loginaccount.Admission{Volume: id, Fence: p.Fence})
	if err != nil {
		return nil, fmt.Errorf("publish_context %s: %w", keyLogin, err)
	}
	derived.Previous = given
	return &derived, nil
}

func firstOf(m map[string]string, keys []string) string {
	for _, k := range keys {
		if m[k] != "" {
			return m[k]
		}
	}
	return ""
}
