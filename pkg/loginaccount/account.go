// Package loginaccount derives the CHAP account of each admission to the storage server, of a
// key that each node has and one that the controller has, so that nobody sends a password and
// no node knows another one's (states.md, The account of an admission).
package loginaccount

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/volume"
)

// purpose separates what is derived here from whatever else is derived of keys, and has the
// version of the form below.
const purpose = "nearflash.io storage login CHAP secret v1"

// prefix begins the names of accounts that are derived.
const prefix = "nf"

// hashBytes of a public half become eight characters of an account's name.
const hashBytes = 5

// Admission is what an account is for.
type Admission struct {
	Volume volume.ID
	// Fence is the ownership: record, generation and node.
	Fence volume.Fence
}

// ForNode derives the account of an admission at the controller, of the node's public half.
// Errors: volume.ErrInvalid for a half that is none.
func ForNode(controller *keyagreement.Key, node string, a Admission) (volume.Credentials, error) {
	return derive(controller, node, a, controller.Public(), node)
}

// AtNode derives the same at the node, of the controller's public half. Errors:
// volume.ErrInvalid for a half that is none.
func AtNode(node *keyagreement.Key, controller string, a Admission) (volume.Credentials, error) {
	return derive(node, controller, a, controller, node.Public())
}

func derive(own *keyagreement.Key, peer string, a Admission, controller, node string) (volume.Credentials, error) {
	// No part has a zero byte: they are names of Kubernetes, numbers and base64.
	info := strings.Join([]string{
		purpose, a.Fence.UID, string(a.Volume), a.Fence.Node, strconv.FormatInt(a.Fence.Generation, 10), controller, node,
	}, "\x00")
	password, err := own.Password(peer, info)
	if errors.Is(err, keyagreement.ErrKey) {
		err = fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	if err != nil {
		return volume.Credentials{}, fmt.Errorf("CHAP account of volume %s: %w", a.Volume, err)
	}
	return volume.Credentials{Username: name(controller, node), Password: password}, nil
}

// name tells which keys an account was derived of, and is no secret.
func name(controller, node string) string {
	return strings.Join([]string{prefix, short(controller), short(node)}, "-")
}

// short is eight lower-case letters and digits that stand for a public half.
func short(public string) string {
	sum := sha256.Sum256([]byte(public))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:hashBytes]))
}

// NodeKeyChanged reports whether an account of that name is of this controller's key, and of
// another key of the node than the one given. "" is no name that is known.
func NodeKeyChanged(username, controller, node string) bool {
	parts := strings.Split(username, "-")
	return len(parts) == 3 && parts[0] == prefix && parts[1] == short(controller) && parts[2] != short(node)
}
