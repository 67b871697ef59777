package records

import (
	"errors"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestErrorNotFound: only an API server that knows such objects can say that one is gone.
// A node wipes the cache of a volume that was deleted.
func TestErrorNotFound(t *testing.T) {
	kind := schema.GroupResource{Group: "nearflash.io", Resource: "cachedvolumes"}
	if err := Error("read", apierrors.NewNotFound(kind, "v")); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("an object that is gone: %v", err)
	}
	unserved := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", kind, "v", "404 page not found", 0, true)
	if err := Error("read", unserved); !errors.Is(err, volume.ErrUnavailable) || errors.Is(err, volume.ErrNotFound) {
		t.Errorf("a version that is not served: %v", err)
	}
}
