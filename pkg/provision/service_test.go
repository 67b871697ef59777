package provision

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestService runs all tests of the Service against one real API server.
func TestService(t *testing.T) {
	cfg := apiserver.Start(t)
	makeNodes(t, apiserver.Client(t, cfg))
	tests := map[string]func(*testing.T, *rest.Config, *fixture){
		"create":                           testCreate,
		"create refused by the server":     testCreateRefused,
		"create with failures":             testCreateConverges,
		"delete":                           testDelete,
		"delete with failures":             testDeleteConverges,
		"delete dirty":                     testDeleteDirty,
		"deleted by hand":                  testDeletedByHand,
		"generation":                       testGeneration,
		"order of publish":                 testPublishOrder,
		"publish with failures":            testPublishConverges,
		"publish refused":                  testPublishRefused,
		"dirty release":                    testDirtyRelease,
		"dirty and accept node loss":       testAcceptNodeLoss,
		"unpublish with failures":          testUnpublishConverges,
		"unpublish of others":              testUnpublishOthers,
		"two writers":                      testTwoWriters,
		"late answer":                      testLateAnswer,
		"late order":                       testLateOrder,
		"unpublish dirty":                  testUnpublishDirty,
		"stale generation":                 testStaleGeneration,
		"restored record":                  testRestoredRecord,
		"restored record dirty":            testRestoredDirty,
		"restored record settled":          testRestoredSettle,
		"restored record old mark":         testRestoredMark,
		"restored record released":         testRestoredReleased,
		"restored record published":        testRestoredPublished,
		"restored record never dirty":      testRestoredReleasedClean,
		"twin initiators":                  testTwins,
		"warm source":                      testWarmSource,
		"restored warm source":             testWarmSourceRestored,
		"readers":                          testReaders,
		"readers with keys":                testReadersAccount,
		"readers refused":                  testReadersRefused,
		"readers of one initiator":         testReadersTwins,
		"readers of a lost record":         testReadersOfLostRecord,
		"readers unpublished late":         testReadersUnpublishedLate,
		"readers restored and cut":         testReadersCutRestored,
		"readers with failures":            testReadersConverge,
		"readers of a restored record":     testReadersRestored,
		"static":                           testStatic,
		"filesystem":                       testFilesystem,
		"filesystem of an adopted volume":  testFilesystemAdopted,
		"filesystem of an outdated record": testFilesystemOutdated,
		"filesystem of a static volume":    testFilesystemStatic,
		"filesystem of a foreign volume":   testFilesystemForeign,
		"no secret in an object":           testNoSecretStored,
		"accounts of admissions":           testDerivedAccounts,
		"account without a key":            testAccountFallback,
		"account of another key":           testRenewAccount,
		"account of a secret":              testRenewSecret,
		"deleted dirty volume is told":     testDeleteTold,
		"deleted after a restore":          testDeleteRestored,
		"adopted volume":                   testAdopt,
		"adopted writethrough volume":      testAdoptClean,
		"record made anew by hand":         testRemadeByHand,
		"no record":                        testNoRecord,
		"retire":                           testRetire,
		"retire finishes a deletion":       testRetireFinishesDeletion,
		"forget keeps a published record":  testForgetPublished,
		"expand":                           testExpand,
		"modify":                           testModify,
		"modify static":                    testModifyStatic,
		"list":                             testList,
		"no storage server":                testNoStorageServer,
		"snapshot":                         testSnapshot,
		"snapshot detached":                testSnapshotDetached,
		"snapshot of a lost node":          testSnapshotLostNode,
		"snapshot killed":                  testSnapshotKilled,
		"snapshot whose hold is over":      testSnapshotHoldOver,
		"snapshot by two controllers":      testSnapshotTwoControllers,
		"snapshot of a backup":             testSnapshotOfBackup,
		"snapshot and races":               testSnapshotRaces,
		"snapshot refused":                 testSnapshotRefused,
		"snapshot that is slow":            testSnapshotSlow,
		"snapshot that is frozen":          testFrozenSnapshot,
		"group":                            testGroup,
		"group killed":                     testGroupKilled,
		"group that moves":                 testGroupMoves,
		"group detached":                   testGroupDetached,
		"group swept":                      testGroupSwept,
		"group refused":                    testGroupRefused,
		"snapshot not frozen for long":     testUnfrozenSnapshot,
		"snapshot of nothing to freeze":    testFreezeNothing,
		"snapshot of a visited volume":     testFreezeVisited,
		"snapshot while it is formatted":   testSnapshotFormatted,
		"hold expires":                     testHoldExpires,
		"restored record with a hold":      testRestoredHold,
		"volume of a snapshot":             testRestore,
		"volume of a blank snapshot":       testRestoreNever,
		"volume of no snapshot":            testRestoreRefused,
		"clone":                            testClone,
		"clone and its cut":                testCloneHidden,
		"clone killed":                     testCloneKilled,
		"clone with a hot set":             testCloneHotSet,
		"clone of what has grown":          testCloneGrown,
		"clone of an earlier name":         testCloneAnew,
		"clone refused":                    testCloneRefused,
		"clone too large":                  testCloneTooLarge,
		"restore refused later":            testRestoreRefusedLater,
		"snapshot unanswered":              testSnapshotUnanswered,
		"cut for a clone that is gone":     testCloneStalled,
		"snapshot refused at the end":      testSnapshotRefusedLate,
		"holds are forgotten":              testHoldsForgotten,
		"cuts for nobody":                  testSweepCuts,
		"two servers":                      testServers,
		"one server down":                  testServerDown,
		"two servers and no record":        testServersUnrecorded,
		"two servers and another record":   testServersRemade,
		"two servers adopted":              testServersAdopt,
		"two servers taken over":           testServersTakeover,
		"server unknown":                   testServerUnknown,
		"server gone":                      testServerGone,
		"two servers and a parent":         testServersParent,
		"two servers and an account":       testServersAccount,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test(t, cfg, newFixture(t, cfg, volume.ID(strings.ReplaceAll(name, " ", "-"))))
		})
	}
}

func testCreate(t *testing.T, _ *rest.Config, f *fixture) {
	v, err := f.svc.Create(t.Context(), f.id, spec())
	if err != nil {
		t.Fatal(err)
	}
	f.wantSteps(t, "make record", "create")
	again, err := f.svc.Create(t.Context(), f.id, spec())
	if err != nil || again.Fence.UID != v.Fence.UID {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	otherClaim := spec()
	otherClaim.Claim = nil
	if _, err := f.svc.Create(t.Context(), f.id, otherClaim); err != nil {
		t.Errorf("the same for another claim: %v", err)
	}
	for field, change := range map[string]func(*volume.Spec){
		"capacityBytes":    func(s *volume.Spec) { s.CapacityBytes = 2 * gib },
		"provisioning":     func(s *volume.Spec) { s.Provisioning = "thick" },
		"cacheMode":        func(s *volume.Spec) { s.Mode = volume.ModeWritethrough },
		"cacheSize":        func(s *volume.Spec) { s.Cache = volume.Size{Percent: 20} },
		"chunkSizeBytes":   func(s *volume.Spec) { s.ChunkBytes = 1 << 20 },
		"warmStart.method": func(s *volume.Spec) { s.WarmStart.Method = volume.MethodStream },
		"warmStart.from":   func(s *volume.Spec) { s.WarmStart.From = volume.WarmOff },
	} {
		other := spec()
		change(&other)
		_, err := f.svc.Create(t.Context(), f.id, other)
		wantError(t, err, volume.ErrExists)
		if !strings.Contains(err.Error(), field) {
			t.Errorf("error does not name %s: %v", field, err)
		}
	}
	_, err = f.svc.Create(t.Context(), f.id, *staticSpec())
	wantError(t, err, volume.ErrInvalid)
}

// testCreateRefused wants no record left of a volume that cannot be made: the
// caller takes the error as final.
func testCreateRefused(t *testing.T, _ *rest.Config, f *fixture) {
	big := spec()
	big.CapacityBytes = 1000 * gib
	_, err := f.svc.Create(t.Context(), f.id, big)
	wantError(t, err, volume.ErrNoSpace)
	f.wantGone(t)
	// The server is another cluster's.
	if err := f.storage.SwapEpoch(t.Context(), "", "epoch-of-another-cluster"); err != nil {
		t.Fatal(err)
	}
	_, err = f.svc.Create(t.Context(), f.id, spec())
	wantError(t, err, volume.ErrFenced)
	f.wantGone(t)
	ctx := backend.WithEpoch(t.Context(), "epoch-of-another-cluster")
	if _, err := f.svc.Create(ctx, f.id, spec()); err != nil {
		t.Fatal(err)
	}
	// What an earlier call may have made is not forgotten.
	_, err = f.svc.Create(t.Context(), f.id, spec())
	wantError(t, err, volume.ErrFenced)
	f.record(t)
}

func testCreateConverges(t *testing.T, _ *rest.Config, f *fixture) {
	for _, step := range []string{"make record", "create"} {
		for _, done := range []bool{false, true} {
			f.failOnce(step, done)
			if _, err := f.svc.Create(t.Context(), f.id, spec()); err == nil || f.pending() {
				t.Fatalf("%s, done %v: got %v, want a failure", step, done, err)
			}
			f.create(t)
			f.wantExports(t)
			if err := f.svc.Delete(t.Context(), f.id); err != nil {
				t.Fatal(err)
			}
			f.wantGone(t)
		}
	}
}

func testDelete(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	wantError(t, f.svc.Delete(t.Context(), f.id), volume.ErrInUse)
	f.wantExports(t, iqnA)
	if f.record(t).Deleting {
		t.Error("a refused deletion marked the record")
	}
	f.unpublish(t, nodeA)
	f.takeSteps()
	for range 2 {
		if err := f.svc.Delete(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
		f.wantGone(t)
	}
	f.wantSteps(t, "delete record", "delete", "tell node", "change record", "delete-cut") // the last of what has no record
}

func testDeleteConverges(t *testing.T, _ *rest.Config, f *fixture) {
	for _, step := range []string{"delete record", "unexport", "delete", "tell node", "change record"} {
		for _, done := range []bool{false, true} {
			f.create(t)
			f.publish(t, nodeA, 1)
			f.mark(t, true) // so that somebody is still admitted
			f.unpublish(t, nodeA)
			f.failOnce(step, done)
			if err := f.svc.Delete(t.Context(), f.id); err == nil || f.pending() {
				t.Fatalf("%s, done %v: got %v, want a failure", step, done, err)
			}
			if err := f.svc.Delete(t.Context(), f.id); err != nil {
				t.Fatalf("%s, done %v: again: %v", step, done, err)
			}
			f.wantGone(t)
		}
	}
}

// testDeleteDirty: the data is not wanted any more, so nobody waits for a flush.
func testDeleteDirty(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	wantError(t, f.svc.Delete(t.Context(), f.id), volume.ErrInUse)
	f.unpublish(t, nodeA)
	f.wantExports(t, iqnA)
	f.takeSteps()
	if err := f.svc.Delete(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantSteps(t, "delete record", "unexport", "delete", "tell node", "change record")
	f.wantGone(t)
}

// testDeletedByHand: a record that somebody deletes stays, and so do owner and
// dirty mark, until the volume is deleted.
func testDeletedByHand(t *testing.T, cfg *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	obj := &v1alpha1.CachedVolume{}
	obj.Name = string(f.id)
	if err := apiserver.Client(t, cfg).Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	f.wantOwner(t, nodeA, 1, true)
	f.publish(t, nodeA, 1)
	_, err := f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
	wantError(t, err, volume.ErrInUse)
	f.unpublish(t, nodeA)
	_, err = f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
	wantError(t, err, volume.ErrFenced)
	_, err = f.svc.Create(t.Context(), f.id, spec())
	wantError(t, err, volume.ErrBusy)
	if err := f.svc.Delete(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantGone(t)
}

func testExpand(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	for _, want := range []int64{2 * gib, 2 * gib, 3 * gib} {
		got, err := f.svc.Expand(t.Context(), f.id, want)
		if err != nil || got != want || f.record(t).Spec.CapacityBytes != want {
			t.Errorf("got %d, %v, record %d; want %d", got, err, f.record(t).Spec.CapacityBytes, want)
		}
	}
	if got, err := f.svc.Expand(t.Context(), f.id, gib); err != nil || got != 3*gib || f.record(t).Spec.CapacityBytes != 3*gib {
		t.Errorf("a volume was shrunk: %d, %v", got, err)
	}
	f.failOnce("expand", true)
	if _, err := f.svc.Expand(t.Context(), f.id, 4*gib); err == nil {
		t.Fatal("want a failure")
	}
	if got, err := f.svc.Expand(t.Context(), f.id, 4*gib); err != nil || got != 4*gib || f.record(t).Spec.CapacityBytes != 4*gib {
		t.Errorf("again: %d, %v", got, err)
	}
	_, err := f.svc.Expand(t.Context(), f.id, 1000*gib)
	wantError(t, err, volume.ErrNoSpace)
	_, err = f.svc.Expand(t.Context(), "missing", gib)
	wantError(t, err, volume.ErrNotFound)
}

func testList(t *testing.T, _ *rest.Config, f *fixture) {
	ids := []volume.ID{f.id, "a-list"}
	for _, f.id = range ids {
		f.create(t)
	}
	all, err := f.svc.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found []volume.ID
	for i, v := range all {
		if i > 0 && all[i-1].ID >= v.ID {
			t.Errorf("%s comes after %s", v.ID, all[i-1].ID)
		}
		if slices.Contains(ids, v.ID) {
			found = append(found, v.ID)
		}
	}
	if len(found) != 2 {
		t.Errorf("found %q", found)
	}
}

func testNoStorageServer(t *testing.T, cfg *rest.Config, f *fixture) {
	svc := New(Config{Client: f.client, Events: f.events})
	_, err := svc.Create(t.Context(), f.id, spec())
	wantError(t, err, volume.ErrInvalid)
	f.create(t)
	_, err = svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrUnavailable)
	_, err = svc.Expand(t.Context(), f.id, 2*gib)
	wantError(t, err, volume.ErrUnavailable)
	wantError(t, svc.Delete(t.Context(), f.id), volume.ErrUnavailable)
	if err := apiserver.Client(t, cfg).Get(t.Context(), client.ObjectKey{Name: string(f.id)}, &v1alpha1.CachedVolume{}); err != nil {
		t.Errorf("the record was lost: %v", err)
	}
}
