package csi

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearflash/nearflash/pkg/volume"
)

// maxTopologies bounds what one PersistentVolume may be made of.
const maxTopologies = 256

// topologies are the places that a PersistentVolume can be reached from, each by labels of
// nodes; nil is everywhere. external-provisioner makes of a driver's topology nothing but
// terms with the operator In (GenerateVolumeNodeAffinity); Errors: ErrInvalid for what it
// cannot have made.
func topologies(pv *corev1.PersistentVolume) ([]map[string]string, error) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil, nil
	}
	var out []map[string]string
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		if len(term.MatchFields) > 0 || len(term.MatchExpressions) == 0 {
			return nil, fmt.Errorf("%w: PersistentVolume %s has a node affinity by fields, or an empty one: accepted for an origin are labels with the operator In", volume.ErrInvalid, pv.Name)
		}
		of := []map[string]string{{}}
		for _, e := range term.MatchExpressions {
			if e.Operator != corev1.NodeSelectorOpIn {
				return nil, fmt.Errorf("%w: PersistentVolume %s has a node affinity with the operator %s: accepted for an origin is In", volume.ErrInvalid, pv.Name, e.Operator)
			}
			of = withLabel(of, e.Key, e.Values)
			if len(out)+len(of) > maxTopologies {
				return nil, fmt.Errorf("%w: PersistentVolume %s can be reached from more than %d places, each by other labels", volume.ErrInvalid, pv.Name, maxTopologies)
			}
		}
		out = append(out, of...)
	}
	return out, nil
}

// withLabel is each of the places with each of the values.
func withLabel(places []map[string]string, key string, values []string) []map[string]string {
	var out []map[string]string
	for _, place := range places {
		for _, v := range values {
			next := maps.Clone(place)
			next[key] = v
			out = append(out, next)
		}
	}
	return out
}
