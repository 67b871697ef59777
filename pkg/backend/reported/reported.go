// Package reported keeps what a storage server last said of itself in a ConfigMap, of its own, in
// the controller's namespace. `kubectl nearflash doctor` reads it: people do not reach the server.
package reported

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend/format"
)

const (
	// base is the name of the default server's ConfigMap, with which the names of others begin.
	base = "nearflash-storage"
	// key is where it has the answer.
	key = "answer"
	// Interval is how often an answer that says nothing new is written.
	Interval = 5 * time.Minute
	// most is how many problems are kept, and longest how long each: there may be one a volume,
	// and an object of the API server has 1 MiB.
	most, longest = 20, 1000
	// step is the part of a size by which a use must have moved to be news.
	step = 0.01
)

// known is the format of the answers that this version writes, and the newest that it reads. Answers of the
// versions before have no number and are of format 1.
const known = 1

// ErrNewer says that an answer was written by a newer version, in a format that this one does not
// know: nothing can be said of that storage server.
var ErrNewer = format.ErrNewer

// stored is an Answer as it is in the object.
type stored struct {
	Format int `json:"format,omitempty"`
	Answer
}

// Name returns the name of the ConfigMap of a storage server, "" being the default one. Its label
// is that of the epochs (pkg/backend/epoch).
func Name(target string) string {
	if target == "" {
		return base
	}
	return base + "." + target
}

// Target returns the storage server whose ConfigMap has a name; ok is false if it is none's.
func Target(name string) (target string, ok bool) {
	target, named := strings.CutPrefix(name, base+".")
	if !named {
		return "", name == base
	}
	return target, target != ""
}

// Answer is what a storage server said, or that it did not.
type Answer struct {
	// Address is that which the controller asks.
	Address string `json:"address"`
	// Asked is when.
	Asked metav1.Time `json:"asked"`
	// Error says why there is no answer; the sizes are 0 then.
	Error string `json:"error,omitempty"`
	// Problems are the server's own, one line each.
	Problems []string `json:"problems,omitempty"`
	// CapacityBytes, UsedBytes and MetadataRatio are those of backend.Report.
	CapacityBytes int64   `json:"capacityBytes,omitempty"`
	UsedBytes     int64   `json:"usedBytes,omitempty"`
	MetadataRatio float64 `json:"metadataRatio,omitempty"`
	// ServerNotAfter and ClientNotAfter are when the certificates end; nil if that is not known.
	ServerNotAfter *metav1.Time `json:"serverNotAfter,omitempty"`
	ClientNotAfter *metav1.Time `json:"clientNotAfter,omitempty"`
}

// UsedRatio is how much of the server's space is used, from 0 to 1; 0 if that is not known.
func (a Answer) UsedRatio() float64 {
	if a.CapacityBytes <= 0 {
		return 0
	}
	return float64(a.UsedBytes) / float64(a.CapacityBytes)
}

// news reports whether an answer says what the one before did not, or is so much later that it
// must be seen that somebody still asks.
func news(before, a Answer) bool {
	moved := func(x, y float64) bool { return math.Abs(x-y) >= step }
	return a.Address != before.Address || a.Error != before.Error || !slices.Equal(a.Problems, before.Problems) ||
		a.CapacityBytes != before.CapacityBytes || moved(a.UsedRatio(), before.UsedRatio()) || moved(a.MetadataRatio, before.MetadataRatio) ||
		!a.ServerNotAfter.Equal(before.ServerNotAfter) || !a.ClientNotAfter.Equal(before.ClientNotAfter) ||
		a.Asked.Sub(before.Asked.Time) >= Interval
}

// cut keeps of an answer what an object has room for.
func (a Answer) cut() Answer {
	all := a.Problems
	a.Problems = nil
	for _, p := range all[:min(len(all), most)] {
		a.Problems = append(a.Problems, short(p))
	}
	if more := len(all) - most; more > 0 {
		a.Problems = append(a.Problems, fmt.Sprintf("and %d more problems, which the server's log has", more))
	}
	a.Error = short(a.Error)
	return a
}

func short(text string) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + " ..."
}

// Keeper writes answers.
type Keeper struct {
	Client    client.Client
	Namespace string
	// Target is the name of the storage server, "" being the default one.
	Target string
	// Labels mark the ConfigMap.
	Labels map[string]string

	written Answer
}

// Keep writes an answer if it is news.
func (k *Keeper) Keep(ctx context.Context, a Answer) error {
	a = a.cut()
	if !news(k.written, a) {
		return nil
	}
	text, err := json.Marshal(stored{Format: known, Answer: a})
	if err != nil {
		return err
	}
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: Name(k.Target), Labels: k.Labels}, Data: map[string]string{key: string(text)}}
	// One process writes, the one that leads: it overwrites whatever there is.
	err = k.Client.Update(ctx, obj)
	if apierrors.IsNotFound(err) {
		err = k.Client.Create(ctx, obj)
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", obj.Name, err)
	}
	k.written = a
	return nil
}

// Decode reads the answer of a ConfigMap of that name. Errors: ErrNewer.
func Decode(obj *corev1.ConfigMap) (Answer, error) {
	var a Answer
	if err := format.Unmarshal([]byte(obj.Data[key]), known, &a); err != nil {
		return Answer{}, fmt.Errorf("ConfigMap %s/%s, key %s: %w", obj.Namespace, obj.Name, key, err)
	}
	return a, nil
}
