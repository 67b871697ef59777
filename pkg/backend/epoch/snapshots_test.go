package epoch

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestSnapshots: with an epoch a server's snapshots are what they are without.
func TestSnapshots(t *testing.T) {
	backendtest.SnapshotConformance(t, func(*testing.T) backendtest.Store {
		return newCluster(backendtest.New(256 << 20)).controller()
	}, "epoch")
}

// plain is a server that makes no snapshots.
type plain struct{ backend.Backend }

func TestNoSnapshots(t *testing.T) {
	k := New(Config{Storage: plain{newStorage(t)}})
	_, cutErr := k.Cut(t.Context(), "s", "v", backend.CutRequest{})
	_, findErr := k.Find(t.Context(), "s")
	_, listErr := k.Cuts(t.Context())
	for _, err := range []error{cutErr, findErr, listErr, k.Accept(t.Context(), "s", "h"), k.DropCut(t.Context(), "s", "h"), k.DeleteCut(t.Context(), "s")} {
		if !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("got %v, want ErrInvalid", err)
		}
	}
}
