package iscsi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/iscsi"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
	"github.com/nearflash/nearflash/pkg/volume"
)

// earlier is a server that does not know snapshots.
type earlier struct{ iscsi.API }

func (earlier) GetVolume(context.Context, string) (targetclient.Volume, error) {
	return targetclient.Volume{}, nil
}

func unknown() error { return fmt.Errorf("call: %w", targetclient.ErrUnknownCall) }

func (earlier) CreateSnapshot(context.Context, targetclient.SnapshotRequest) (targetclient.Snapshot, error) {
	return targetclient.Snapshot{}, unknown()
}

func (earlier) GetSnapshot(context.Context, string) (targetclient.Snapshot, error) {
	return targetclient.Snapshot{}, unknown()
}

func (earlier) AcceptSnapshot(context.Context, string, string) error { return unknown() }
func (earlier) DeleteSnapshot(context.Context, string, string) error { return unknown() }

func (earlier) ListSnapshots(context.Context, int32, string) ([]targetclient.Snapshot, string, error) {
	return nil, "", unknown()
}

func (earlier) CreateVolumeFromSnapshot(context.Context, string, int64, targetclient.Provisioning, string) (targetclient.Volume, error) {
	return targetclient.Volume{}, unknown()
}

// TestEarlierServer: what a server of an earlier version cannot do is refused with the remedy,
// and no volume is made that is not of its cut.
func TestEarlierServer(t *testing.T) {
	b := iscsi.New(earlier{})
	_, cutErr := b.Cut(t.Context(), "s", "v", backend.CutRequest{})
	_, findErr := b.Find(t.Context(), "s")
	_, listErr := b.Cuts(t.Context())
	canErr := b.CanCut(t.Context(), "v", "")
	for what, err := range map[string]error{
		"cut": cutErr, "find": findErr, "list": listErr, "can": canErr, "accept": b.Accept(t.Context(), "s", "h"), "delete": b.DeleteCut(t.Context(), "s"),
		"drop":   b.DropCut(t.Context(), "s", "h"),
		"create": b.Create(t.Context(), "w", backend.Request{SizeBytes: 8 << 20, From: "s"}),
	} {
		if !errors.Is(err, volume.ErrInvalid) || errors.Is(err, backend.ErrNoEpochs) || !strings.Contains(err.Error(), "upgrade nearflash-target") {
			t.Errorf("%s: got %v, want ErrInvalid with the remedy", what, err)
		}
	}
}

// paged is a server with more snapshots than one answer has.
type paged struct{ iscsi.API }

func (paged) ListSnapshots(_ context.Context, _ int32, token string) ([]targetclient.Snapshot, string, error) {
	next := map[string]string{"": "a", "a": "b"}
	name := map[string]string{"": "a", "a": "b", "b": "c"}
	return []targetclient.Snapshot{{Name: name[token], Done: true}}, next[token], nil
}

func (paged) ListVolumes(_ context.Context, _ int32, token string) ([]targetclient.Volume, string, error) {
	next := map[string]string{"": "a", "a": "b"}
	exports := map[string][]targetclient.Export{"b": {{InitiatorIQN: initiator}}}
	return []targetclient.Volume{{Name: "after-" + token, Exports: exports[token]}}, next[token], nil
}

func TestAdmittedOnAnyPage(t *testing.T) {
	got, err := iscsi.New(paged{}).AdmittedHosts(t.Context())
	if err != nil || len(got) != 1 || got[strings.ToLower(initiator)] != "after-b" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestCutsOfAllPages(t *testing.T) {
	all, err := iscsi.New(paged{}).Cuts(t.Context())
	if err != nil || len(all) != 3 || all[2].ID != "c" || !all[2].Ready {
		t.Errorf("got %+v, %v", all, err)
	}
}
