package backendtest_test

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
)

func TestServer(t *testing.T) {
	backendtest.Conformance(t, func(*testing.T) backend.Backend { return backendtest.New(256 << 20) })
}

func TestServerSnapshots(t *testing.T) {
	backendtest.SnapshotConformance(t, func(*testing.T) backendtest.Store { return backendtest.New(256 << 20) })
}
