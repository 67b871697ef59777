package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/loginaccount"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// account is what a node is to be admitted with: derived of both keys, or given. The zero value is
// of a storage that has no accounts.
type account struct {
	// controller is nil if the account is given.
	controller *keyagreement.Key
	node       string
	given      volume.Credentials
}

// of is the account of one admission.
func (a account) of(id volume.ID, f volume.Fence) (volume.Credentials, error) {
	if a.controller == nil {
		return a.given, nil
	}
	return loginaccount.ForNode(a.controller, a.node, loginaccount.Admission{Volume: id, Fence: f})
}

// public is what the node is told, "" if the account is given.
func (a account) public() string {
	if a.controller == nil {
		return ""
	}
	return a.controller.Public()
}

// accountFor chooses the account of a node (states.md, The account of an admission). Errors:
// ErrInvalid without any, ErrUnavailable if the controller's key cannot be read: then the Secret's
// is not taken instead.
func (s *Service) accountFor(ctx context.Context, id volume.ID, node host, given *volume.Credentials) (account, error) {
	if s.loginKey != nil && node.LoginKey != "" {
		key, err := s.loginKey(ctx)
		return account{controller: key, node: node.LoginKey}, err
	}
	if given == nil || given.Username == "" {
		return account{}, fmt.Errorf("%w: volume %s needs a CHAP account, and there is none: the CachePool of its node has no loginPublicKey (its nearflash node plugin is of an earlier version), and the StorageClass names no Secret in csi.storage.k8s.io/controller-publish-secret-name and -namespace",
			volume.ErrInvalid, id)
	}
	return account{given: *given}, nil
}

// RenewAccount admits a node anew that is the owner of a volume or reads it, with the account of the
// key that it has now, if the storage server has that of another one (states.md, The account of an
// admission). wait reports that this is due once the node has no session any more. Errors:
// ErrUnavailable, ErrBackend.
func (s *Service) RenewAccount(ctx context.Context, id volume.ID, node string) (wait bool, err error) {
	if s.loginKey == nil {
		return false, nil
	}
	obj, err := records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) || err == nil && !HasAccount(obj) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	at := placeOf(obj)
	err = s.background(ctx, at, func(ctx context.Context) (err error) {
		wait, err = s.renewAccount(ctx, id, node, at)
		return err
	})
	return wait, err
}

func (s *Service) renewAccount(ctx context.Context, id volume.ID, node string, at place) (wait bool, err error) {
	storage, err := s.storage(at, volume.ErrUnavailable)
	if err != nil {
		return false, err
	}
	access, err := s.inspect(ctx, id, at)
	if errors.Is(err, volume.ErrNotFound) {
		return false, nil // it is gone
	}
	if err != nil {
		return false, err
	}
	obj, err := records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) {
		return false, nil
	}
	if err != nil || !HasAccount(obj) || placeOf(obj) != at || access.old(obj) {
		return false, err
	}
	if !slices.Contains(AccountsOf(obj), node) {
		return false, nil
	}
	owner, err := s.pool(ctx, node)
	if owner == nil || owner.Status.LoginPublicKey == "" || err != nil {
		return false, err
	}
	by, err := s.accountFor(ctx, id, host{LoginKey: owner.Status.LoginPublicKey}, nil)
	if err != nil {
		return false, err
	}
	fence := records.FenceFor(obj, node)
	for _, e := range access.Exports {
		switch {
		case !strings.EqualFold(e.Initiator, owner.Status.InitiatorIQN) || e.Generation != fence.Generation || access.Generation != fence.Generation,
			!loginaccount.NodeKeyChanged(e.Username, by.public(), owner.Status.LoginPublicKey):
			continue
		case e.LoggedIn:
			return true, nil
		}
		grant := backend.Grant{Initiator: e.Initiator, Generation: fence.Generation, ReadOnly: e.ReadOnly}
		if grant.Credentials, err = by.of(id, fence); err != nil {
			return false, err
		}
		if _, err := storage.Export(access.of(ctx), id, grant); err != nil {
			return false, fmt.Errorf("admit node %s to volume %s with its new key: %w", node, id, err)
		}
		logr.FromContextOrDiscard(ctx).Info("Admitted a node anew, which has another key", "volume", id, "node", node, "generation", fence.Generation, "was", e.Username)
	}
	return false, nil
}

// AccountsOf are the nodes that a storage server admits to a record's volume; none of a volume of
// another kind, or that is not published.
func AccountsOf(obj *v1alpha1.CachedVolume) []string {
	switch {
	case !HasAccount(obj):
		return nil
	case obj.Status.OwnerNode == volume.Readers:
		return obj.Status.Readers
	}
	return []string{obj.Status.OwnerNode}
}

// HasAccount reports whether a record's volume is one of a storage server that is published.
func HasAccount(obj *v1alpha1.CachedVolume) bool {
	return obj.Spec.Static == nil && !placeOf(obj).origin && obj.DeletionTimestamp == nil &&
		obj.Status.Publication == v1alpha1.PublicationPublished && obj.Status.OwnerNode != ""
}
