package records_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestRetry: a race that is lost is run again, not for ever, and not for nobody.
func TestRetry(t *testing.T) {
	conflict := records.Error("write it", apierrors.NewConflict(schema.GroupResource{}, "it", errors.New("changed")))
	other := errors.New("other")
	cases := map[string]struct {
		answers []error
		leave   bool
		want    error
		tries   int
	}{
		"won":             {answers: []error{nil}, tries: 1},
		"won in the end":  {answers: []error{conflict, conflict, nil}, tries: 3},
		"always lost":     {answers: []error{conflict}, want: volume.ErrBusy, tries: 6},
		"another error":   {answers: []error{conflict, other}, want: other, tries: 2},
		"the caller left": {answers: []error{conflict}, leave: true, want: volume.ErrUnavailable, tries: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				tries := 0
				err := records.Retry(ctx, func() error {
					answer := tc.answers[min(tries, len(tc.answers)-1)]
					tries++
					if tc.leave {
						cancel()
					}
					return answer
				})
				if !errors.Is(err, tc.want) || tries != tc.tries {
					t.Errorf("got %v after %d tries, want %v after %d", err, tries, tc.want, tc.tries)
				}
				if tc.leave && !strings.Contains(err.Error(), "write it") {
					t.Errorf("%q does not say what was being done", err)
				}
			})
		})
	}
}
