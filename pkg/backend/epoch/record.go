package epoch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend/format"
	"github.com/nearflash/nearflash/pkg/volume"
)

// RecordName is the name of the ConfigMap with the Records, one for each storage server,
// in the namespace of the controller. Its keys are the servers' own names.
const RecordName = "nearflash-epochs"

// RecordLabel and RecordLabelValue mark the ConfigMap.
const RecordLabel, RecordLabelValue = "app.kubernetes.io/name", "nearflash"

// known is the format of the records that this version writes, and the newest that it reads. Records of
// the versions before have no number and are of format 1.
const known = 1

// ErrNewer says that a record was written by a newer version, in a format that this one does not
// know. It is left alone: to act on half of it could let two clusters write.
var ErrNewer = format.ErrNewer

// stored is a Record as it is in the object.
type stored struct {
	Format int `json:"format,omitempty"`
	Record
}

// Record is what a cluster knows of the epoch of a storage server.
type Record struct {
	// Current is the one that this cluster has put on the server, Pending the one that
	// it is about to put there.
	Current string `json:"current,omitempty"`
	Pending string `json:"pending,omitempty"`
	// Refused is set while the server has another one.
	Refused *Refusal `json:"refused,omitempty"`
	// Takeover is an administrator's word that the server is this cluster's.
	Takeover *Takeover `json:"takeover,omitempty"`
	// TakenOver is the epoch that the last such word has replaced.
	TakenOver string `json:"takenOver,omitempty"`
}

// lastTakeover is what the last word of an administrator was about, done or not.
func (r Record) lastTakeover() string {
	if r.Takeover != nil {
		return r.Takeover.Epoch
	}
	return r.TakenOver
}

// Refusal is what a cluster was refused by.
type Refusal struct {
	// Epoch is the server's.
	Epoch string `json:"epoch"`
	// Since is when that one was met first.
	Since metav1.Time `json:"since"`
}

// Takeover is the consent to replace one epoch of another cluster.
type Takeover struct {
	// Epoch is what is to be replaced; any other is not meant.
	Epoch string      `json:"epoch"`
	Time  metav1.Time `json:"time"`
	// By is who said so, as the API server knows him.
	By string `json:"by,omitempty"`
}

// knows reports whether an epoch is one of the cluster's.
func (r Record) knows(epoch string) bool {
	return epoch != "" && (epoch == r.Current || epoch == r.Pending)
}

// Decode returns the record of a server, the zero one if there is none. Errors: ErrNewer.
func Decode(obj *corev1.ConfigMap, server string) (Record, error) {
	text, ok := obj.Data[server]
	if !ok {
		return Record{}, nil
	}
	var r Record
	err := format.Unmarshal([]byte(text), known, &r)
	if errors.Is(err, ErrNewer) {
		return Record{}, fmt.Errorf("ConfigMap %s/%s, key %s: %w: install that version again", obj.Namespace, obj.Name, server, err)
	}
	if err != nil {
		return Record{}, fmt.Errorf("ConfigMap %s/%s, key %s, is not what the controller writes: %w", obj.Namespace, obj.Name, server, err)
	}
	return r, nil
}

// Encode puts the record of a server into the object.
func Encode(obj *corev1.ConfigMap, server string, r Record) error {
	text, err := json.Marshal(stored{Format: known, Record: r})
	if err != nil {
		return fmt.Errorf("record of storage server %s: %w", server, err)
	}
	if obj.Data == nil {
		obj.Data = map[string]string{}
	}
	obj.Data[server] = string(text)
	return nil
}

// errConflict: somebody else has written the record since it was read.
var errConflict = errors.New("the record was written meanwhile")

// apiError is what becomes of an error of the API server. It never says of a volume that
// it is not found, or exists: the object is none.
func apiError(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s: %w: %w", doing, errConflict, err)
	}
	return fmt.Errorf("%s: %w: %w", doing, volume.ErrUnavailable, err)
}

// load reads the object, which may not exist yet: it has no version then.
// Errors: ErrUnavailable.
func (k *Keeper) load(ctx context.Context) (*corev1.ConfigMap, error) {
	obj := &corev1.ConfigMap{}
	err := k.client.Get(ctx, client.ObjectKey{Namespace: k.namespace, Name: RecordName}, obj)
	if apierrors.IsNotFound(err) {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: k.namespace, Name: RecordName, Labels: map[string]string{RecordLabel: RecordLabelValue},
		}}, nil
	}
	return obj, apiError("read ConfigMap "+RecordName, err)
}

// save writes the record on the version of the object that was read.
// Errors: errConflict, ErrUnavailable.
func (k *Keeper) save(ctx context.Context, obj *corev1.ConfigMap, server string, r Record) error {
	if err := Encode(obj, server, r); err != nil {
		return err
	}
	if obj.ResourceVersion == "" {
		return apiError("create ConfigMap "+RecordName, k.client.Create(ctx, obj))
	}
	return apiError("update ConfigMap "+RecordName, k.client.Update(ctx, obj))
}
